"""Disk usage of a container, as the host's root sees it: `ContainerDisk`.

Counted are the container's own layer, its volumes, the files that docker mounts into it
(`/etc/hostname` and such), and files that are unlinked but still open or mapped. Nothing is asked
of a process inside. One look is bounded: it stops as soon as a limit is passed.

What it does not see: what is written between two looks, and a file that processes which live for
less than a look hand on to one another.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentpeft.envs.os_interaction.sandboxes.sandbox import SandboxLimits

_BLOCK_BYTES = 512
_MAX_PATH_BYTES = 200
"""How far a path goes before its directory is opened: the kernel walks each from its start."""
_MAX_OPENED = 64
"""Directories held open on the way to one; nobody needs paths longer than all this."""
_MAX_HELD = 100_000
"""Descriptors and mappings that a look goes through."""
_MAX_LOOKS_IN_FLIGHT = 5
"""Descriptors on their way through a socket cannot be measured; a receiver takes them at once."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _PassOver:
    """Ignores errors by which the container hides a file or process while it is looked at.

    Errors that this process is short of descriptors or memory are raised: it may miss files.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, traceback: object) -> bool:
        return isinstance(error, OSError) and error.errno not in _OWN_LACKS


_OWN_LACKS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
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
        self._max_bytes = limits.disk_mib << 20
        self._max_inodes = limits.num_inodes
        start = _Usage(None, None)
        self._count(start)
        self._max_bytes += start.num_bytes
        self._max_inodes += start.num_inodes

    def is_over(self) -> bool:
        """Returns whether the episode's files are more or larger than they may be."""
        usage = _Usage(self._max_bytes, self._max_inodes)
        self._count(usage)
        self._num_looks_in_flight = self._num_looks_in_flight + 1 if usage.num_in_flight else 0
        return usage.is_over or self._num_looks_in_flight >= _MAX_LOOKS_IN_FLIGHT

    def _count(self, usage: "_Usage") -> None:
        for place in self._places:
            _count_tree(place, usage)
        if self._first_process:
            _count_held(self._first_process, self._find_devices(), usage)

    def _find_devices(self) -> set[int]:
        """Returns the devices whose files are on the disk, and not in memory."""
        devices = set()
        for path in (*self._places, f"/proc/{self._first_process}/root"):
            with _PASS_OVER:
                devices.add(Path(path).stat().st_dev)
        return devices


class _Usage:
    """Sums of a look; None for a limit: there is none."""

    def __init__(self, max_bytes: int | None, max_inodes: int | None) -> None:
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
        return (
            self.is_too_much
            or (self._max_bytes is not None and self.num_bytes > self._max_bytes)
            or (self._max_inodes is not None and self.num_inodes > self._max_inodes)
        )

    def add(self, status: os.stat_result) -> None:
        """Counts a file, once for all its names and holders."""
        if status.st_nlink != 1 and not stat.S_ISDIR(status.st_mode):
            if status.st_ino in self._seen:
                return
            self._seen.add(status.st_ino)
        self.num_inodes += 1
        self.num_bytes += status.st_blocks * _BLOCK_BYTES


def _count_tree(top: str, usage: _Usage) -> None:
    """Counts what is at and below a path, however deep: no recursion, no path over 4,095 bytes.

    `opened` has the directories that paths are relative to, each with those left to be visited.
    """
    # A deep tree is walked in stages: a path is kept below `_MAX_PATH_BYTES` from a directory that
    # is open, and from where it would be longer, the next directory is opened.
    opened: list[tuple[int, list[str]]] = []
    try:
        with _PASS_OVER:
            if not stat.S_ISDIR((status := os.lstat(top)).st_mode):
                usage.add(status)
                return
            opened.append((os.open(top, _DIRECTORY), ["."]))
        while opened and not usage.is_over:
            base, paths = opened[-1]
            if not paths:
                os.close(opened.pop()[0])
                continue
            path = paths.pop()
            if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
                paths += _count_directory(base, path, usage)
            elif len(opened) == _MAX_OPENED:
                usage.is_too_much = True
            else:
                with _PASS_OVER:
                    opened.append((os.open(path, _DIRECTORY, dir_fd=base), ["."]))
    finally:
        for descriptor, _ in opened:
            os.close(descriptor)


def _count_directory(base: int, path: str, usage: _Usage) -> Iterator[str]:
    """Counts what is in a directory, and yields the directories among it."""
    with _PASS_OVER:
        directory = os.open(path, _DIRECTORY, dir_fd=base)
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    with _PASS_OVER:
                        usage.add(entry.stat(follow_symlinks=False))
                        if entry.is_dir(follow_symlinks=False):
                            yield f"{path}/{entry.name}"
                    if usage.is_over:
                        return
        finally:
            os.close(directory)


def _count_held(first_process: int, devices: set[int], usage: _Usage) -> None:
    """Counts the files without a name that a process and its descendants hold."""
    for i, path in enumerate(_list_held(first_process)):
        if i == _MAX_HELD:
            usage.is_too_much = True
        if usage.is_over:
            return
        if not path:
            continue
        with _PASS_OVER:
            status = os.stat(path)  # noqa: PTH116 (of many; a Path would cost as much again)
            if stat.S_ISSOCK(status.st_mode):
                usage.num_in_flight += _count_in_flight(path)
            elif stat.S_ISREG(status.st_mode) and not status.st_nlink and status.st_dev in devices:
                usage.add(status)


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


def _list_names(folder: str) -> Sequence[str]:
    with _PASS_OVER:
        return os.listdir(folder)  # noqa: PTH208 (names only)
    return ()


def _read_lines(path: str) -> list[str]:
    with _PASS_OVER:
        # only "\n" ends a line: names in it may have all that Python takes for an end
        return Path(path).read_bytes().decode(errors="replace").split("\n")
    return []


def _count_in_flight(path: str) -> int:
    """Returns how many descriptors wait in a socket, named by its link in a folder `fd`."""
    folder, _, number = path.rpartition("/fd/")
    for line in _read_lines(f"{folder}/fdinfo/{number}"):
        name, _, value = line.partition(":")
        if name == "scm_fds":
            return int(value)
    return 0
