"""Files and folders that appear whole or not at all, even if their writer is killed.

They are written in a temporary folder beside their place, brought to the disk and renamed. A
temporary folder whose maker was killed is deleted by the next maker.
"""

import glob
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/[0-9]{1,6}")
_MIN_AGE_S = 60.0
"""A younger folder may be one that its maker has not locked yet."""


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Makes an OSError in the block name `path`: a full disk names nothing, or a temporary file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_file(path: Path, content: bytes) -> None:
    """Writes a file atomically, over an older one. Raises: OSError that names `path`.

    A link stays one, and its target is written. What is no file, as a pipe or a device, is written
    to, as is an open descriptor (`/dev/stdout`, `/dev/fd/3`), after what it has.
    """
    with naming_file(path):
        if str(path) in _STREAMS or _DESCRIPTOR.fullmatch(str(path)):
            sys.stdout.flush()
            number = _STREAMS.get(str(path), path.name)
            with os.fdopen(os.dup(int(number)), "wb") as file:
                file.write(content)
            return
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        with making(Path(os.path.realpath(path))) as new:
            new.write_bytes(content)


@contextmanager
def making(path: Path, *, replaces_folder: bool = False, kind: str | None = None) -> Iterator[Path]:
    """Yields where to make the file or folder that becomes `path` when the block ends.

    An older file is replaced; an older folder only with `replaces_folder`. Either stays until the
    new one is on the disk. If the block raises, or makes nothing, nothing changes. Folders above
    `path` must be there. What a killed maker has left is deleted by the next one of the same
    `kind` (None: of the same name). Raises: OSError.
    """
    with temporary_folder(path.parent, f".new-{kind or path.name}-") as folder:
        new = folder / path.name
        yield new
        if new.exists():
            for made in (new, *new.rglob("*")):
                bring_to_disk(made)
            _rename(new, path, replaces_folder)
            bring_to_disk(path.parent)


def _rename(new: Path, path: Path, replaces_folder: bool) -> None:
    try:
        new.rename(path)
    except OSError:  # the system replaces a file, but no folder that holds something
        if not (replaces_folder and path.exists()):
            raise
        # Beside it, not in the temporary folder: it is still there if the process is killed here
        old = path.with_name(f".old-{path.name}")
        shutil.rmtree(old, ignore_errors=True)
        try:
            path.rename(old)
            new.rename(path)
        finally:
            if old.exists() and not path.exists():
                old.rename(path)
        shutil.rmtree(old, ignore_errors=True)


def bring_to_disk(path: Path) -> None:
    """Returns when a file's content, or the names in a folder, would survive a loss of power."""
    with _opened(path) as descriptor:
        os.fsync(descriptor)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def temporary_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yields a new folder in `parent` and deletes it at the end, as well as those of dead makers.

    A living maker holds a lock on its folder, which ends with it however it ends. Where folders
    cannot be locked (NFS), those of others are left alone.
    """
    import fcntl  # Windows lacks it, and imports modules that make folders on Linux only

    delete_orphans(parent, prefix)
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
    with _opened(folder) as descriptor:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def recover(folder: Path) -> None:
    """Undoes what killed makers in a folder, which has no other maker now, had begun."""
    delete_orphans(folder, ".new-", min_age_s=0)
    for old in folder.glob(".old-*"):
        place = old.with_name(old.name.removeprefix(".old-"))
        if place.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            with suppress(OSError):
                old.rename(place)


def delete_orphans(parent: Path, prefix: str, min_age_s: float = _MIN_AGE_S) -> None:
    """Deletes the temporary folders in `parent` whose makers were killed, and temporary links.

    What is younger than `min_age_s` seconds stays, as do folders that are locked or cannot be.
    """
    import fcntl  # Windows lacks it, and imports modules that make folders on Linux only

    for orphan in parent.glob(f"{glob.escape(prefix)}*"):
        with suppress(OSError):
            if time.time() - orphan.lstat().st_mtime < min_age_s:
                continue
            if orphan.is_symlink():
                orphan.unlink()
                continue
            with _opened(orphan) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(orphan, ignore_errors=True)
