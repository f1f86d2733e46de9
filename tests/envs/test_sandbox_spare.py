"""The shell that bubblewrap starts for the next episode, once the last one is frozen."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from process_parts import children_of, seconds_until_gone
from small_sandbox import SMALL

from agentpeft.envs.os_interaction.sandboxes.bubblewrap import BubblewrapSandbox
from agentpeft.envs.os_interaction.sandboxes.sandbox import SandboxKind, make_sandbox

pytestmark = pytest.mark.parametrize("sandbox_kind", ["bubblewrap"], indirect=True)

PLACE = "cat /proc/self/oom_score_adj; ls /proc/self/fd | wc -l; ls /tmp; id -u"
"""What a shell says of itself: its score, its descriptors (with those of `ls`), files, user."""


@pytest.fixture
def sandbox(sandbox_kind: SandboxKind) -> Iterator[BubblewrapSandbox]:
    """A bubblewrap sandbox within an episode."""
    sandbox = make_sandbox(sandbox_kind, SMALL)
    sandbox.reset()
    sandbox.run("touch /tmp/mine", 10)
    yield sandbox
    sandbox.close()


def freeze(sandbox: BubblewrapSandbox, num_processes: int | None = None) -> list[int]:
    """Ends the episode; returns the helper, its worker, and the spare's processes.

    `num_processes`: return as soon as there are so many, where None waits for the spare's shell.
    """
    sandbox.freeze()
    helper = sandbox._helper._process.pid
    deadline_s = time.monotonic() + 30
    while True:
        processes = [helper, *children_of(helper)]
        if is_shell(processes[-1]) if num_processes is None else len(processes) >= num_processes:
            return processes
        assert time.monotonic() < deadline_s
        time.sleep(0.01 if num_processes is None else 0)


def is_shell(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"/bin/bash")
    return False


def is_usable(sandbox: BubblewrapSandbox) -> bool:
    return sandbox.run("ls /tmp; echo fine", 20).output == "fine\n"


def test_every_episode_is_alike_whenever_its_shell_was_started(sandbox: BubblewrapSandbox):
    sandbox.reset()
    late = sandbox.run(PLACE, 10).output
    freeze(sandbox)
    sandbox.reset()
    assert sandbox.run(PLACE, 10).output == late == "1000\n4\n0\n"
    sandbox.run("exit", 10)
    assert sandbox.run("touch /tmp/later; ls /tmp", 10).output == "later\n"
    assert sandbox.freeze().stat("/tmp/later") is not None


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("is_starting", [True, False])
def test_killed_spare_is_made_anew(sandbox: BubblewrapSandbox, position: int, is_starting: bool):
    spare = freeze(sandbox, 3 + position if is_starting else None)[2:]
    os.kill(spare[position], signal.SIGKILL)
    seconds_until_gone(spare[position : position + 1], 30)
    for _ in range(2):
        sandbox.reset()
        assert is_usable(sandbox)
    # Not before the reset: what a starting bubblewrap left has no death signal yet.
    seconds_until_gone(spare, 30)


@pytest.mark.parametrize(
    "attack",
    [
        ":(){ :|:& };:; sleep 60",
        "tail /dev/zero; tail /dev/zero",
        "kill -9 -1",
        "head -c 99M /dev/zero >/f; touch /{1..1500}",
        "for fd in /proc/$$/fd/*; do echo exit >$fd; done",
    ],
)
def test_next_episode_begins_well_after_an_attack(sandbox: BubblewrapSandbox, attack: str):
    sandbox.run(attack, 1.0)
    for _ in range(2):
        freeze(sandbox)
        sandbox.reset()
        assert is_usable(sandbox)


def test_spare_sees_nothing_of_a_check_and_a_check_nothing_of_it(sandbox: BubblewrapSandbox):
    freeze(sandbox)
    assert sandbox.check("ls /tmp; touch /tmp/checked", 10).output == "mine\n"
    assert sandbox.check("ls /tmp", 10).output == "mine\n"
    sandbox.reset()
    assert is_usable(sandbox)


def test_spare_is_gone_after_close(sandbox: BubblewrapSandbox):
    processes = freeze(sandbox)
    sandbox.close()
    seconds_until_gone(processes, 30)


def test_two_sandboxes_have_a_spare_each(sandbox: BubblewrapSandbox):
    other = make_sandbox("bubblewrap", SMALL)
    other.reset()
    for _ in range(2):
        other.run("touch /tmp/other", 10)
        for each in (sandbox, other):
            each.freeze()
            each.reset()
            assert is_usable(each)
    other.close()
