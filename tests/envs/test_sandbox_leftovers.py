"""Nothing is left of a sandbox: not after `close`, not after a crash, not after many episodes."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from small_sandbox import SMALL

from agentpeft.envs.os_interaction.sandboxes.cgroups import Cgroups
from agentpeft.envs.os_interaction.sandboxes.sandbox import SandboxKind, SandboxLimits, make_sandbox
from agentpeft.envs.system.processes import identify_process

pytestmark = pytest.mark.slow

MARK = str(10_000_000 + os.getpid())
"""Seconds of sleep, by which this test's processes are known on a machine with others."""
PLAY = f"""
import os, sys
from agentpeft.envs.os_interaction.sandboxes.sandbox import make_sandbox
from agentpeft.envs.system.processes import identify_process
sandbox = make_sandbox(sys.argv[1])
sandbox.reset()
sandbox.run("sleep {MARK} & setsid sleep {MARK} &", 5)
assert sandbox.check_live("pgrep -fx 'sleep {MARK}' && sleep 0.2", 30).exit_code == 0
print(identify_process(os.getpid()), flush=True)
if sys.argv[2] == "crash":
    os.kill(os.getpid(), 9)
"""
LEAVE = f"""
import os, subprocess
from agentpeft.envs.os_interaction.sandboxes.sandbox import SandboxLimits
from agentpeft.envs.os_interaction.sandboxes.cgroups import Cgroups
groups = Cgroups(SandboxLimits())
left = subprocess.Popen(["sleep", "{MARK}"], stdout=subprocess.DEVNULL)
for descriptor in groups.descriptors:
    os.write(descriptor, str(left.pid).encode())
print(len(groups.descriptors), flush=True)
os.kill(os.getpid(), 9)
"""


def list_marked() -> set[str]:
    """Returns the sleeps of this file's tests, by the host's process numbers."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            is_marked = path.read_bytes().endswith(f"\0{MARK}\0".encode())
        except OSError:
            continue
        if is_marked:
            found.add(path.parent.name)
    return found


def list_children() -> set[str]:
    children = Path("/proc/self/task").glob("*/children")
    return {pid for path in children for pid in path.read_text().split()}


def list_cgroups(owner: str) -> set[Path]:
    name = f"agentpeft-os-{owner.replace('/', '-')}-*"
    return {path for depth in ("", "*/") for path in Path("/sys/fs/cgroup").glob(f"{depth}{name}")}


def list_containers(kind: SandboxKind, owner: str) -> list[str]:
    label = f"label=agentpeft.os_interaction={owner}"
    command = ["docker", "ps", "-aq", "--filter", label]
    if kind != "docker":
        return []
    return subprocess.run(command, capture_output=True, check=True).stdout.decode().split()


def list_roots(containers: list[str]) -> set[str]:
    """Returns where containers' files are mounted (overlay2), once they run."""
    form = "{{with .GraphDriver.Data}}{{.MergedDir}}{{end}}"
    command = ["docker", "inspect", "--format", form, *containers]
    if not containers:
        return set()
    shown = subprocess.run(command, capture_output=True, check=False)  # one may be gone by now
    return set(filter(None, shown.stdout.decode().split("\n")))


def list_mounts() -> set[str]:
    return {line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()}


def list_all(kind: SandboxKind) -> tuple[object, ...]:
    owner = identify_process(os.getpid())
    mounts = {path for path in list_mounts() if "/docker/" not in path}  # others' come and go
    processes = list_marked() | list_children()
    return mounts, processes, list_cgroups(owner), list_containers(kind, owner)


def wait_for(is_so: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.2)


def test_close_leaves_nothing(sandbox_kind: SandboxKind):
    before = list_all(sandbox_kind)
    sandbox = make_sandbox(sandbox_kind, SMALL)
    sandbox.reset()
    sandbox.run(f"sleep {MARK} & setsid sleep {MARK} & echo x >/tmp/agentpeft-left", 5)
    sandbox.freeze()
    sandbox.check(f"sleep {MARK} &", 5)
    assert list_all(sandbox_kind) != before
    roots = list_roots(list_containers(sandbox_kind, identify_process(os.getpid())))
    assert bool(roots & list_mounts()) == (sandbox_kind == "docker")
    sandbox.close()
    wait_for(lambda: list_all(sandbox_kind) == before)
    wait_for(lambda: not roots & list_mounts())
    assert not Path("/tmp/agentpeft-left").exists()


@pytest.mark.parametrize("end", ["exit", "crash"])
def test_end_of_the_process_leaves_nothing_for_the_next(sandbox_kind: SandboxKind, end: str):
    command = [sys.executable, "-c", PLAY, sandbox_kind, end]
    played = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    owner = played.stdout.decode().strip()
    assert owner
    if end == "crash":
        sandbox = make_sandbox(sandbox_kind, SMALL)
        sandbox.reset()
        sandbox.close()
    wait_for(lambda: not list_containers(sandbox_kind, owner) and not list_cgroups(owner))
    wait_for(lambda: not list_marked())


def test_process_that_outlives_its_dead_owner_is_ended_by_the_next(control_groups):
    played = subprocess.run([sys.executable, "-c", LEAVE], stdout=subprocess.PIPE, check=False)
    assert int(played.stdout) > 0
    assert list_marked()
    Cgroups(SandboxLimits()).close()
    wait_for(lambda: not list_marked())


def measure() -> tuple[int, int, int]:
    status = Path("/proc/self/status").read_text()
    memory_kib = int(status.split("VmRSS:")[1].split()[0])
    num_files, num_threads = (len(list(Path("/proc/self", n).iterdir())) for n in ("fd", "task"))
    return memory_kib, num_files, num_threads


def test_episodes_do_not_add_up(sandbox_kind: SandboxKind):
    sandbox = make_sandbox(sandbox_kind, SMALL)
    num_episodes = 25 if sandbox_kind == "bubblewrap" else 10

    def play() -> None:
        for _ in range(num_episodes):
            sandbox.reset()
            sandbox.run("head -c 1M /dev/zero >/f; sleep 9 & exit", 5)
            sandbox.freeze().read("/f", 1 << 20)

    play()
    before = measure()
    play()
    after = measure()
    assert after[0] < before[0] + 8000
    assert after[1] <= before[1] + 8
    assert after[2] <= before[2] + 4
    sandbox.close()
