"""Files and folders that appear whole or not at all, even if their writer is killed.

They are written in a temporary folder beside their place, brought to the disk and renamed.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agentpeft.envs.system.temporary_folders import temporary_folder


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Makes an OSError in the block name `path`: a full disk names nothing, or a temporary file.

    Raises: OSError.
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_file(path: Path, content: bytes) -> None:
    """Writes a file atomically, over an older one. Raises: OSError that names `path`."""
    with naming_file(path), making(path) as new:
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


@contextmanager
def making_parents(path: Path) -> Iterator[None]:
    """Makes the folders above `path`; removes them if the block leaves no `path`.

    Raises: OSError.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        for folder in () if path.exists() else missing:
            with suppress(OSError):  # another process has put something there
                folder.rmdir()


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
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
