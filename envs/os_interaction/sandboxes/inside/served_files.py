"""Files as plain data: for a grader, which reads them from outside, and for a check.

Runs in bubblewrap's helper and in a container's first process, when nothing of the agent is alive.
Paths are taken as the kernel takes them, below this process's root. Standard library only.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

Fields = dict[str, Any]
_MAX_LINKS = 40
"""Symlinks that a path may lead through: the kernel's own limit."""
_MAX_STEPS = 200
"""Or many links to long paths would keep a check waiting for minutes."""
_BETWEEN_NAMES = re.compile(r"[^\w.~+-]+")
_SAME_FOR_ALL = ("/dev/null", "/proc/mounts", "/proc/self/mounts")
"""Allowed targets of links: common programs make them, and they show nothing of the reader."""
_MAX_PATH_BYTES = 4095
"""Of the kernel. Folders may lie deeper, where no path leads and a link does."""
_NO_FILES = frozenset({"/proc", "/sys", "/dev"})
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
_DEEP = {"kind": "other", "mode": 0, "uid": 0, "gid": 0, "size": 0, "target": "", "mtime": 0.0}
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def inside(root: str) -> Iterator[None]:
    """Resolves paths inside a tree, with the kernel's own rules for symlinks."""
    outside = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.chroot(root)
        os.chdir("/")
        yield
    finally:
        os.fchdir(outside)
        os.chroot(".")
        os.close(outside)


def stat_path(path: str) -> Fields | None:
    """Returns the fields of a `FileStat`; None if nothing is there."""
    try:
        status = os.lstat(path)
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "other")
        target = os.readlink(path) if kind == "symlink" else ""
    except (OSError, ValueError):
        return None
    return {
        "kind": kind,
        "mode": stat.S_IMODE(status.st_mode),
        "uid": status.st_uid,
        "gid": status.st_gid,
        "size": status.st_size,
        "target": target,
        "mtime": status.st_mtime,
    }


def read_file(path: str, max_bytes: int) -> str | None:
    """Returns a regular file's first bytes in base64; None if there is none."""
    try:
        descriptor = os.open(path, _OPEN_FLAGS)
    except (OSError, ValueError):
        return None
    try:  # `open` would leave the descriptor of a directory open, and with it a whole tmpfs
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return base64.b64encode(file.read(max_bytes)).decode()
    except OSError:
        return None
    finally:
        os.close(descriptor)


def walk(path: str) -> list[tuple[str, Fields]]:
    """Returns all paths at and below a path, by name, each directory before its files.

    What lies deeper than a path may lead is there as one of another kind.
    """
    entries, pending = [], [path]
    while pending:
        current = pending.pop()
        if fields := stat_path(current):
            entries.append((current, fields))
            if fields["kind"] == "directory":
                names = reversed(_list_names(current))
                pending += [f"{current.rstrip('/')}/{name}" for name in names]
        elif _is_too_deep(current):
            entries.append((current, _DEEP))
    return entries


def _is_too_deep(path: str) -> bool:
    return len(os.fsencode(path)) > _MAX_PATH_BYTES


def list_changes(since: float, max_bytes: int) -> Fields:
    """Returns every path, and what has changed since a time: stat, content or hard link.

    "links" are the symlinks among them. Raises: OSError if contents and names are larger than
    `max_bytes` in all, or a path is longer than the kernel takes one.
    """
    paths, changes, inodes = [], [], dict[tuple[int, int], str]()
    for path, fields in _walk_all():
        paths.append(path)
        max_bytes -= len(f"{path}{fields['target']}".encode("ascii", "backslashreplace"))
        status = os.lstat(path)
        if status.st_ctime < since:
            continue
        if stat.S_ISSOCK(status.st_mode):
            fields["kind"] = "socket"
        is_linked = status.st_nlink > 1 and fields["kind"] != "directory"
        inode = (status.st_dev, status.st_ino)
        first = inodes.setdefault(inode, path) if is_linked else path
        is_link = first != path
        content = read_file(path, max_bytes) if fields["kind"] == "file" and not is_link else None
        max_bytes -= fields["size"] if content else 0
        if max_bytes < 0:
            raise OSError("the files that have changed are too large for a check")
        changes.append((path, fields, content, first if is_link else None))
    links = [path for path, fields, *_ in changes if fields["kind"] == "symlink"]
    return {"paths": paths, "changes": changes, "links": links}


def apply_changes(
    before: Fields,
    guarded: list[str],
    named: list[str],
    start_files: list[str],
    script: str,
    gone: list[str] | None = None,
) -> str:
    """Makes the files here equal to another machine's, from its `list_changes`, for a check.

    What lies at and below `guarded` stays; directly in `named`, so does what is there, and no other
    gets a name that one of them has. `gone`: the paths to remove; None are all that the other
    machine does not have. Returns what `remove_traps` does.
    """
    above = {parent for path in (*guarded, *named) for parent in _list_parents(path)}
    programs = {name for folder in named for name in _list_names(folder)}
    names = {f"{folder}/{name}" for folder in named for name in programs}
    fixed = (*(f"{path}/" for path in guarded), "/etc/python3.", "/usr/bin/python3.")

    def is_fixed(path: str) -> bool:
        return path in above or path in named or path in names or f"{path}/".startswith(fixed)

    if gone is None:
        there = set(before["paths"])
        gone = [path for path, _ in _walk_all() if path not in there]
    for path in gone:
        if not is_fixed(path):
            _remove(path)
    changes = [change for change in before["changes"] if not is_fixed(change[0])]
    for path, fields, content, first in changes:
        with suppress(OSError):
            _write(path, fields, content, first)
    for path, fields, *_ in reversed(changes):  # a directory's time after that of what is in it
        with suppress(OSError):
            os.utime(path, (fields["mtime"],) * 2, follow_symlinks=False)
    return remove_traps(before["links"], [change[0] for change in changes], start_files, script)


def remove_traps(links: list[str], changed: list[str], start_files: list[str], script: str) -> str:
    """Removes files by which a check could read itself, or its tools obey the episode.

    These are symlinks that lead into /proc or /dev, and changed paths at and below `start_files`
    that the script does not name. Returns why the check cannot succeed, if it cannot: its script
    names such a link. Without the link, what asks that something is not there would hold.
    """
    if any(map(_is_too_deep, changed)):
        return f"a path is longer than {_MAX_PATH_BYTES} bytes, where a check cannot look"
    words = set(_BETWEEN_NAMES.split(script))
    traps = [path for path in links if leads_to_reader(path)]
    starts = tuple(f"{path}/" for file in start_files for path in {file, _resolve_folder(file)})
    begun = [path for path in changed if f"{path}/".startswith(starts)]
    unasked = [path for path in begun if os.path.basename(path) not in words]
    for path in (*traps, *reversed(unasked)):  # what is in a folder before it
        is_folder = os.path.isdir(path) and not os.path.islink(path)
        with suppress(OSError):
            (os.rmdir if is_folder else os.unlink)(path)
    named = [path for path in traps if _is_named(os.path.basename(path), words, script)]
    return f"{named[0]} leads into /proc or /dev, where a check may read itself" if named else ""


def _resolve_folder(path: str) -> str:
    folder, name = os.path.split(path)
    return f"{os.path.realpath(folder)}/{name}"


def _is_named(name: str, words: set[str], script: str) -> bool:
    return name in words or (name in script and bool(_BETWEEN_NAMES.search(name)))


def leads_to_reader(path: str) -> bool:
    """Returns whether a path leads into /proc or /dev, or to the root directory above them.

    There are a reader's command line, environment and descriptors. It follows links as the kernel
    does, but for what is not there: `..` leads out of that too. A path with more than `_MAX_STEPS`
    names on its way is taken to lead there.
    """
    place, pending, num_links, num_steps = "", path.split("/")[::-1], 0, 0
    while pending:
        num_steps += 1
        if num_steps > _MAX_STEPS:
            return True
        name = pending.pop()
        if name in ("", "."):
            continue
        if name == "..":
            place = place.rpartition("/")[0]
            continue
        place = f"{place}/{name}"
        if place in ("/proc", "/dev"):
            names_below = [name for name in pending[::-1] if name not in ("", ".")]
            return "/".join((place, *names_below)) not in _SAME_FOR_ALL
        with suppress(OSError):
            target = os.readlink(place)
            num_links += 1
            if num_links > _MAX_LINKS:
                return False
            pending += target.split("/")[::-1]
            place = "" if target.startswith("/") else place.rpartition("/")[0]
    return not place


def _walk_all() -> list[tuple[str, Fields]]:
    tops = [f"/{name}" for name in _list_names("/")]
    return [entry for top in tops if top not in _NO_FILES for entry in walk(top)]


def _list_names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _list_parents(path: str) -> list[str]:
    return [path[:i] for i, character in enumerate(path) if character == "/" and i]


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(path)


def _write(path: str, fields: Fields, content: str | None, first: str | None) -> None:
    there = stat_path(path)
    is_same_folder = there and fields["kind"] == there["kind"] == "directory"
    if there and not is_same_folder:
        _remove(path)
    if first:
        os.link(first, path, follow_symlinks=False)
    elif fields["kind"] == "symlink":
        os.symlink(fields["target"], path)
    elif fields["kind"] == "file":
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        descriptor = os.open(path, flags)
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(base64.b64decode(content or ""))
        finally:
            os.close(descriptor)
    elif fields["kind"] == "other":
        os.mkfifo(path)
    elif fields["kind"] == "socket":
        os.mknod(path, stat.S_IFSOCK)
    elif not is_same_folder:
        os.mkdir(path)
    os.chown(path, fields["uid"], fields["gid"], follow_symlinks=False)
    if fields["kind"] != "symlink":
        os.chmod(path, fields["mode"])
