"""The shell that bubblewrap has ready for the next episode: never reached, never missed."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_sandbox import SMALL

from agentpeft.envs.os_interaction.sandboxes import Sandbox, SandboxKind, make_sandbox

pytestmark = pytest.mark.parametrize("sandbox_kind", ["bubblewrap"], indirect=True)

PLACE = "cat /proc/self/oom_score_adj; ls /proc/self/fd | wc -l; ls /tmp; id -u"
"""What a shell says of itself: its score, its descriptors (with those of `ls`), files, user."""


def list_descendants(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        for path in Path(f"/proc/{each}/task").glob("*/children"):
            found += map(int, path.read_text().split())
    return found[1:]


@pytest.fixture
def spared(sandbox_kind: SandboxKind) -> Iterator[Sandbox]:
    """A bubblewrap sandbox within an episode, with a spare."""
    sandbox = make_sandbox(sandbox_kind, SMALL)
    sandbox.reset()
    sandbox.run("touch /tmp/mine", 10)
    yield sandbox
    sandbox.close()


def is_usable(sandbox: Sandbox) -> bool:
    return sandbox.run("ls /tmp; echo fine", 20).output == "fine\n"


def test_every_episode_is_alike_whoever_started_its_shell(spared: Sandbox):
    spared.reset()
    second = spared.run(PLACE, 10).output
    spared.reset()
    assert spared.run(PLACE, 10).output == second == "1000\n4\n0\n"


@pytest.mark.parametrize("position", [0, 1, 2])
def test_killed_spare_is_made_anew(spared: Sandbox, position: int):
    spared.freeze()
    spare = list_descendants(os.getpid())[-3:]
    os.kill(spare[position], signal.SIGKILL)
    for _ in range(2):
        spared.reset()
        assert is_usable(spared)


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
def test_attacks_while_a_spare_waits_do_not_reach_it_or_are_noticed(spared: Sandbox, attack: str):
    spared.run(attack, 1.0)
    for _ in range(2):
        spared.reset()
        assert is_usable(spared)


def test_spare_is_gone_after_close(spared: Sandbox):
    processes = list_descendants(os.getpid())
    assert len(processes) >= 8
    spared.close()
    deadline_s = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in processes):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_two_sandboxes_have_a_spare_each(spared: Sandbox):
    other = make_sandbox("bubblewrap", SMALL)
    other.reset()
    for _ in range(2):
        other.run("touch /tmp/other", 10)
        spared.reset()
        assert is_usable(spared)
        other.reset()
        assert is_usable(other)
    other.close()
