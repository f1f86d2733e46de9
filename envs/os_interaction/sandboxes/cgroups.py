"""Control groups of version 1 and 2 for one sandbox: `Cgroups`.

Where none can be written (no root, no delegation), there are none, and rlimits are all there is.
"""

import itertools
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from agentpeft.envs.os_interaction.sandboxes.sandbox import SandboxLimits
from agentpeft.envs.system.processes import identify_process

_PREFIX = "agentpeft-os-"
_CONTROLLERS = ("memory", "pids", "cpu")
_PERIOD_US = 100_000
_OWN_PROCESSES = 8
_MEMORY_FILES = {
    "memory.current": ("inactive_file", "active_file", "slab_reclaimable"),
    "memory.usage_in_bytes": ("total_inactive_file", "total_active_file"),
}
"""The files with the memory charged, in version 2 and 1, and the fields that are only cached."""
_counter = itertools.count()


class Cgroups:
    """Groups that bound memory, processes and processors; `descriptors` let a process in."""

    def __init__(self, limits: SandboxLimits) -> None:
        """Makes the groups that can be made, and removes those of processes that have ended."""
        name = f"{_PREFIX}{identify_process(os.getpid()).replace('/', '-')}-{next(_counter)}"
        self._paths: list[Path] = []
        self.descriptors: list[int] = []
        for parent, controllers in _find_parents():
            _remove_leftovers(parent)
            path = parent / name
            with suppress(OSError):
                path.mkdir()
                self._paths.append(path)
                for file, value in _compute_settings(limits, controllers, _is_v2(path)):
                    (path / file).write_text(value)
                self.descriptors.append(os.open(path / "cgroup.procs", os.O_WRONLY))

    def measure_held_bytes(self) -> int:
        """Returns the memory that is charged and could not be had back; 0 where none is counted."""
        return max(map(_measure_held_bytes, self._paths), default=0)

    def close(self) -> None:
        """Removes the groups with the processes that are left in them. Idempotent."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        for path in self._paths:
            _remove(path)
        self.descriptors, self._paths = [], []


def _compute_settings(
    limits: SandboxLimits, controllers: set[str], is_v2: bool
) -> list[tuple[str, str]]:
    memory = str((limits.memory_mib + limits.disk_mib) << 20)  # files lie in memory too
    quota = str(int(limits.cpus * _PERIOD_US))
    settings = {
        "memory": [("memory.max" if is_v2 else "memory.limit_in_bytes", memory)],
        "pids": [("pids.max", str(limits.num_processes + _OWN_PROCESSES))],
        "cpu": [("cpu.max", f"{quota} {_PERIOD_US}")] if is_v2 else [("cpu.cfs_quota_us", quota)],
    }
    if is_v2:
        settings["memory"].append(("memory.swap.max", "0"))
    return [setting for name in _CONTROLLERS if name in controllers for setting in settings[name]]


def _measure_held_bytes(path: Path) -> int:
    for usage, fields in _MEMORY_FILES.items():
        with suppress(FileNotFoundError):  # of the other version, or of another controller
            num_bytes = int((path / usage).read_text())
            lines = (path / "memory.stat").read_text().splitlines()
            statistics = dict(line.split() for line in lines)
            return num_bytes - sum(int(statistics.get(field, 0)) for field in fields)
    return 0


def _find_parents() -> list[tuple[Path, set[str]]]:
    """Returns the folders in which groups can be made, each with its controllers."""
    own_groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    parents = []
    for _, mount, kind, options, *_ in mounts:
        controllers = set(options.split(",")) & set(_CONTROLLERS)
        if kind == "cgroup" and controllers and os.access(mount, os.W_OK):
            parents.append((Path(mount), controllers))
        elif kind == "cgroup2":
            path = next((path for number, _, path in own_groups if number == "0"), "/")
            parents += _find_v2_parent(Path(mount), path.strip("/"))
    return parents


def _find_v2_parent(mount: Path, own_path: str) -> list[tuple[Path, set[str]]]:
    """Returns the outermost group, from the root to the own one, that lets us make others."""
    names = own_path.split("/") if own_path else []
    for depth in range(len(names) + 1):
        path = mount.joinpath(*names[:depth])
        with suppress(OSError):
            available = set((path / "cgroup.controllers").read_text().split())
            wanted = available & set(_CONTROLLERS)
            if wanted and os.access(path / "cgroup.procs", os.W_OK):
                control = " ".join(f"+{name}" for name in sorted(wanted))
                (path / "cgroup.subtree_control").write_text(control)
                return [(path, wanted)]
    return []


def _is_v2(path: Path) -> bool:
    return (path / "cgroup.controllers").exists()


def _remove_leftovers(parent: Path) -> None:
    here = identify_process(os.getpid()).split("/")[0]
    for path in parent.glob(f"{_PREFIX}{here}-*"):
        pid, start, _ = path.name.rsplit("-", 3)[-3:]
        if identify_process(int(pid)) != f"{here}/{pid}/{start}":
            _remove(path)


def _remove(path: Path) -> None:
    for _ in range(50):
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            with suppress(OSError):
                for pid in (path / "cgroup.procs").read_text().split():
                    if pid != "0":  # one of another process namespace
                        os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.02)  # the last process is still on its way out
        else:
            return
