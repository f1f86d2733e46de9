"""Calls that hang: the caller goes on, and the process ends all the same."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from process_parts import seconds_until_gone

from agentpeft.policies.errors import RayHangsError
from agentpeft.policies.workers.time_limits import await_interrupted, is_hanging, leave, within


def test_what_a_call_returns_or_raises_is_the_callers():
    assert within(60, "adding", lambda: 1 + 1) == 2
    with pytest.raises(ZeroDivisionError):
        within(60, "dividing", lambda: 1 / 0)
    with pytest.raises(SystemExit):
        within(60, "leaving", lambda: sys.exit(3))


def test_a_call_that_hangs_is_said_and_the_next_ones_wait_less():
    free = threading.Event()
    with pytest.raises(RayHangsError, match=r"listing took longer than 0.1 s.*--resume"):
        within(0.1, "listing", free.wait)
    start_s = time.monotonic()
    with pytest.raises(RayHangsError, match="ending took longer than 5 s"):
        within(1000, "ending", free.wait)
    assert time.monotonic() - start_s < 100
    free.set()
    while is_hanging():  # else `leave` would end this process
        assert time.monotonic() - start_s < 160
        time.sleep(0.01)
    assert leave(4) == 4
    assert within(60, "asking", lambda: "all is well again") == "all is well again"


def test_a_signal_interrupts_the_wait_and_what_it_left_is_waited_for():
    free = threading.Event()
    old = signal.signal(signal.SIGALRM, lambda *_: [].pop())
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(IndexError):
        within(60, "waiting", free.wait)
    signal.signal(signal.SIGALRM, old)
    threading.Timer(0.2, free.set).start()
    await_interrupted(60)
    assert free.is_set()


HANGS = """
import subprocess, sys, threading
from agentpeft.policies.errors import RayHangsError
from agentpeft.policies.workers.time_limits import leave, within

child = subprocess.Popen([sys.executable, "-c", '''
import subprocess, time
print(subprocess.Popen(["sleep", "1000"]).pid, flush=True)
time.sleep(1000)
'''], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
print(int(child.stdout.readline()))
try:
    within(0.1, "waiting", threading.Event().wait)
except RayHangsError:
    print(child.pid, "hangs")
sys.exit(leave(7) + 1)
"""


def test_a_process_whose_call_hangs_ends_with_its_status_and_its_childrens_children():
    run = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, check=False)
    grandchild, child, said = run.stdout.split()
    assert (run.returncode, said) == (7, "hangs")
    seconds_until_gone([int(grandchild)], 60)
    os.kill(int(child), signal.SIGKILL)
