"""Control groups of version 2, as a tree of files; the machine's own are in the tests of limits."""

from pathlib import Path

import pytest

from agentpeft.envs.os_interaction.sandboxes import cgroups
from agentpeft.envs.os_interaction.sandboxes.sandbox import SandboxLimits

LIMITS = SandboxLimits(memory_mib=100, disk_mib=28, num_processes=10, cpus=0.5)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A mount whose root has no controller of ours, and a slice and a service below that have."""
    held = {"": "cpuset io", "a.slice": "cpu io memory pids", "a.slice/b.service": "memory pids"}
    for name, controllers in held.items():
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text(controllers)
        (folder / "cgroup.procs").touch()
        (folder / "cgroup.subtree_control").touch()
    return tmp_path


def test_groups_are_made_as_far_out_as_their_controllers_are(tree: Path):
    found = cgroups._find_v2_parent(tree, "a.slice/b.service")
    assert found == [(tree / "a.slice", {"cpu", "memory", "pids"})]
    assert (tree / "a.slice/cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert not (tree / "a.slice/b.service/cgroup.subtree_control").read_text()


def test_where_nothing_is_delegated_there_is_no_group(tree: Path):
    assert cgroups._find_v2_parent(tree, "") == []


@pytest.mark.parametrize(
    ("usage", "prefix"), [("memory.current", ""), ("memory.usage_in_bytes", "total_")]
)
def test_memory_that_is_only_cached_is_not_held(tmp_path: Path, usage: str, prefix: str):
    (tmp_path / usage).write_text("1000\n")
    cached = f"{prefix}inactive_file 300\n{prefix}active_file 50\n"
    (tmp_path / "memory.stat").write_text(f"anon 600\n{cached}shmem 7\n")
    assert cgroups._measure_held_bytes(tmp_path) == 650


def test_group_that_counts_no_memory_holds_none(tmp_path: Path):
    assert cgroups._measure_held_bytes(tmp_path) == 0


def test_limits_have_the_names_and_units_of_each_version():
    controllers = {"memory", "pids", "cpu"}
    second = dict(cgroups._compute_settings(LIMITS, controllers, is_v2=True))
    memory, processes = str(128 << 20), str(10 + 8)
    assert second == {
        "memory.max": memory, "memory.swap.max": "0", "pids.max": processes,
        "cpu.max": "50000 100000",
    }  # fmt: skip
    first = dict(cgroups._compute_settings(LIMITS, controllers, is_v2=False))
    assert first == {
        "memory.limit_in_bytes": memory, "pids.max": processes, "cpu.cfs_quota_us": "50000",
    }  # fmt: skip
    assert cgroups._compute_settings(LIMITS, {"pids"}, is_v2=True) == [("pids.max", processes)]
