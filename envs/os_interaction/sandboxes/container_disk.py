"""Disk usage of a container, as the host's root sees it: `ContainerDisk`.

Counted are the container's own layer, its volumes, the files that docker mounts into it
(`/etc/hostname` and such), and files that are unlinked but still open or mapped. Nothing is asked
of a process inside. One look is bounded: it stops as soon as a limit is passed.

What it does not see: what is written between two looks, and a file that processes which live for
less than a look hand on to one another.
"""

import errno
import math
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from agentpeft.envs.os_interaction.sandboxes.sandbox import SandboxLimits

_BLOCK_BYTES = 512
_MAX_PATH_BYTES = 1000
"""Nobody needs longer ones, and the kernel walks each from its start."""
_MAX_HELD = 100_000
"""Descriptors and mappings that a look goes through."""
_MAX_LOOKS_IN_FLIGHT = 5
"""Descriptors on their way through a socket cannot be measured; a receiver takes them at once."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWN_LACKS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class _PassOver(AbstractContextManager[None]):
    """Ignores errors by which the container hides a file or process while it is looked at.

    Errors that this process is short of descriptors or memory are raised: it may miss files.
    """

    def __exit__(self, kind: object, error: object, traceback: object) -> bool:
        return isinstance(error, OSError) and error.errno not in _OWN_LACKS


_PASS_OVER = _PassOver()


class ContainerDisk:
    """The disk of one running container."""

    def __init__(self, attributes: dict[str, Any], limits: SandboxLimits) -> None:
        """`attributes` is what docker's inspection says of the container once it runs."""
        layer = (attributes.get("GraphDriver") or {}).get("Data") or {}
        volumes = [mount.get("Source") for mount in attributes.get("Mounts") or []]
        files = [attributes.get(f"{name}Path") for name in ("Hosts", "Hostname", "ResolvConf")]
        places = [layer.get("UpperDir"), *volumes, *files]
        self._places = [path for path in places if path and os.access(path, os.R_OK)]
        self._first_process = 0
        pid = (attributes.get("State") or {}).get("Pid") or 0
        with _PASS_OVER:  # a daemon elsewhere has other processes
            is_it = attributes.get("Id", "?") in Path(f"/proc/{pid}/cgroup").read_text()
            if is_it and os.access(f"/proc/{pid}/fd", os.R_OK):
                self._first_process = pid
        self._num_looks_in_flight = 0
        start = self._count(_Usage())
        self._max_bytes = start.num_bytes + (limits.disk_mib << 20)
        self._max_inodes = start.num_inodes + limits.num_inodes

    def is_over(self) -> bool:
        """Returns whether the episode's files are more or larger than they may be."""
        usage = self._count(_Usage(self._max_bytes, self._max_inodes))
        self._num_looks_in_flight = self._num_looks_in_flight + 1 if usage.num_in_flight else 0
        return usage.is_over or self._num_looks_in_flight >= _MAX_LOOKS_IN_FLIGHT

    def _count(self, usage: "_Usage") -> "_Usage":
        devices = set()  # whose files are on the disk, and not in memory
        for place in self._places:
            with _PASS_OVER:
                usage.add_tree(place)
                devices.add(os.stat(place).st_dev)  # noqa: PTH116
        if self._first_process:
            with _PASS_OVER:
                devices.add(os.stat(f"/proc/{self._first_process}/root").st_dev)  # noqa: PTH116
            usage.add_held(self._first_process, devices)
        return usage


class _Usage:
    """The sums of a look."""

    def __init__(self, max_bytes: float = math.inf, max_inodes: float = math.inf) -> None:
        self._max_bytes = max_bytes
        self._max_inodes = max_inodes
        self._seen: set[int] = set()
        self.num_bytes = 0
        self.num_inodes = 0
        self.num_in_flight = 0
        self.is_too_much = False
        """True if there is more than can be looked at."""

    @property
    def is_over(self) -> bool:
        is_more = self.num_bytes > self._max_bytes or self.num_inodes > self._max_inodes
        return self.is_too_much or is_more

    def add(self, status: os.stat_result) -> None:
        """Counts a file, once for all its names and holders."""
        if status.st_nlink != 1 and not stat.S_ISDIR(status.st_mode):
            if status.st_ino in self._seen:
                return
            self._seen.add(status.st_ino)
        self.num_inodes += 1
        self.num_bytes += status.st_blocks * _BLOCK_BYTES

    def add_tree(self, top: str) -> None:
        """Counts what is at and below a path. Raises: OSError if nothing is there."""
        if not stat.S_ISDIR((status := os.lstat(top)).st_mode):
            self.add(status)
            return
        pending = [top]  # no recursion: a tree may be deep
        while pending and not self.is_over:
            folder = pending.pop()
            self.is_too_much |= len(os.fsencode(folder)) - len(top) > _MAX_PATH_BYTES
            with _PASS_OVER:
                directory = os.open(folder, _DIRECTORY)
                try:
                    pending += self._add_entries(directory, folder)
                finally:
                    os.close(directory)

    def _add_entries(self, directory: int, path: str) -> Iterator[str]:
        """Counts what is in a directory, and yields the directories among it."""
        with os.scandir(directory) as entries:
            for entry in entries:
                with _PASS_OVER:
                    self.add(entry.stat(follow_symlinks=False))
                    if entry.is_dir(follow_symlinks=False):
                        yield f"{path}/{entry.name}"
                if self.is_over:
                    return

    def add_held(self, first_process: int, devices: set[int]) -> None:
        """Counts the files without a name that a process and its descendants hold."""
        for i, path in enumerate(_list_held(first_process)):
            self.is_too_much |= i == _MAX_HELD
            if self.is_over:
                return
            if not path:
                continue
            with _PASS_OVER:
                status = os.stat(path)  # noqa: PTH116 (of many; a Path would cost as much again)
                if stat.S_ISSOCK(status.st_mode):
                    self.num_in_flight += _count_in_flight(path)
                is_unlinked = stat.S_ISREG(status.st_mode) and not status.st_nlink
                if is_unlinked and status.st_dev in devices:
                    self.add(status)


def _list_held(first_process: int) -> Iterator[str]:
    """Yields links of /proc to what processes have open and mapped; "" if it surely has a name.

    Each thread is asked: it may have descriptors of its own, and outlive the first one.
    """
    processes = [first_process]
    for process in processes:  # which grows on the way
        mappings: list[str] = []
        for thread in _list_names(f"/proc/{process}/task"):
            place = f"/proc/{process}/task/{thread}"
            with _PASS_OVER:
                processes += map(int, Path(f"{place}/children").read_text().split())
            for name in _list_names(f"{place}/fd"):
                yield f"{place}/fd/{name}"
            if not mappings:  # threads share them; one that has ended has none
                mappings = _read_lines(f"{place}/maps")
                yield from (_find_mapping(thread, line) for line in mappings)


def _find_mapping(thread: str, line: str) -> str:
    if not line.endswith(" (deleted)"):
        return ""
    start, end = (int(number, 16) for number in line.split(maxsplit=1)[0].split("-"))
    return f"/proc/{thread}/map_files/{start:x}-{end:x}"


def _list_names(folder: str) -> list[str]:
    with _PASS_OVER:
        return os.listdir(folder)  # noqa: PTH208 (names only)
    return []


def _read_lines(path: str) -> list[str]:
    with _PASS_OVER:
        # only "\n" ends a line: names in it may have all that Python takes for an end
        return Path(path).read_bytes().decode(errors="replace").split("\n")
    return []


def _count_in_flight(path: str) -> int:
    """Returns how many descriptors wait in a socket, named by its link in a folder `fd`."""
    folder, _, number = path.rpartition("/fd/")
    lines = _read_lines(f"{folder}/fdinfo/{number}")
    return sum(int(line.split(":")[1]) for line in lines if line.startswith("scm_fds:"))
