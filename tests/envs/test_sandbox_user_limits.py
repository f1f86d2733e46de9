"""What the kernel counts for each user: no sandbox may use it up for the host or another one."""

import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_sandbox import SMALL

from agentpeft.envs.os_interaction.sandboxes.sandbox import (
    Sandbox,
    SandboxKind,
    TrustedScript,
    make_sandbox,
)

pytestmark = pytest.mark.slow

TAKE = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
what, most = sys.argv[1], int(sys.argv[2])

class Queue(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("flags", "num", "size", "now")]
    _fields_ += [("rest", ctypes.c_long * 4)]

def take(i):
    if what == "inotify instances":
        return libc.inotify_init()
    if what == "message queues":
        flags = os.O_RDWR | os.O_CREAT
        return libc.mq_open(b"/q%d" % i, flags, 0o600, ctypes.byref(Queue(0, 10, 4096, 0)))
    if what == "pending signals":
        return libc.sigqueue(os.getpid(), signal.SIGRTMIN, None)
    if what == "asynchronous requests":
        return libc.syscall(206, 1000, ctypes.byref(ctypes.c_long(0)))

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
num_taken = 0
while num_taken < most and take(num_taken) >= 0:
    num_taken += 1
print(num_taken, flush=True)
if len(sys.argv) > 3 and not os.fork():
    os.setsid()
    if what == "pending signals":
        while take(0) >= 0:
            pass
    for descriptor in range(3):
        os.close(descriptor)
    signal.pause()
"""
MANY = {"inotify instances": 200, "message queues": 60, "pending signals": 200_000}
SOME = {"inotify instances": 8, "message queues": 1, "pending signals": 300}
"""What another sandbox still wants."""


def take(sandbox: Sandbox, what: str, most: int, *hold: str) -> int:
    """Returns how many an episode could take."""
    return int(sandbox.prepare(TrustedScript(TAKE, "python3", (what, str(most), *hold)), 30).output)


def count_pending_signals() -> int:
    """Returns how many signals are pending for this process's user on the whole host."""
    line = Path("/proc/self/status").read_text().split("SigQ:")[1].split()[0]
    return int(line.split("/")[0])


def count_free_inotify_instances() -> int:
    libc, taken = ctypes.CDLL(None), list[int]()
    while (descriptor := libc.inotify_init()) >= 0:
        taken.append(descriptor)
    for descriptor in taken:
        os.close(descriptor)
    return len(taken)


@pytest.fixture
def other(sandbox_kind: SandboxKind) -> Iterator[Sandbox]:
    """Another sandbox, in an episode of its own."""
    sandbox = make_sandbox(sandbox_kind, SMALL)
    sandbox.reset()
    yield sandbox
    sandbox.close()


@pytest.mark.parametrize("sandbox_kind", ["bubblewrap"], indirect=True)
@pytest.mark.parametrize("what", MANY)
def test_a_sandbox_takes_nothing_from_another_one(sandbox, other, what: str):
    taken = take(sandbox, what, MANY[what], "hold")
    assert SOME[what] <= taken < MANY[what]
    assert take(other, what, SOME[what]) == SOME[what]
    sandbox.reset()
    for _ in range(50):  # the kernel frees what a dead namespace held by and by
        if (taken := take(sandbox, what, SOME[what])) == SOME[what]:
            break
        time.sleep(0.2)
    assert taken == SOME[what]


@pytest.mark.parametrize("sandbox_kind", ["bubblewrap"], indirect=True)
def test_the_host_keeps_its_inotify_instances(sandbox):
    before = count_free_inotify_instances()
    assert take(sandbox, "inotify instances", 200, "hold") == 16
    assert count_free_inotify_instances() >= before - 3  # others of this machine may want some


def test_the_host_keeps_its_pending_signals_and_message_queues(sandbox):
    before = count_pending_signals()
    assert take(sandbox, "pending signals", 200_000, "hold") <= 1024
    assert count_pending_signals() <= before + 2 * 1024
    assert take(sandbox, "message queues", 60, "hold") <= 3


def test_requests_that_are_counted_for_the_whole_machine_cannot_be_made(sandbox):
    assert take(sandbox, "asynchronous requests", 3) == 0


def test_an_episode_has_what_tools_want_of_them(sandbox):
    follow = "touch /tmp/f; (timeout 9 tail -f /tmp/f >/tmp/g &) ; sleep 0.5; echo new >>/tmp/f"
    wait = "for i in {1..60}; do grep new /tmp/g && break; sleep 0.1; done"
    assert sandbox.run(f"{follow}; {wait}", 15).output == "new\n"
