"""Temporary folders; those whose maker was killed are deleted by the next maker."""

import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MIN_AGE_S = 60.0
"""A younger folder may be one that its maker has not locked yet."""


@contextmanager
def temporary_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yields a new folder in `parent` and deletes it at the end, as well as those of dead makers.

    A living maker holds a lock on its folder, which ends with it however it ends. Where folders
    cannot be locked (NFS), those of others are left alone.
    """
    import fcntl  # Windows lacks it, and imports modules that make folders on Linux only

    for orphan in parent.glob(f"{glob.escape(prefix)}*"):
        with suppress(OSError):
            _delete_unlocked(orphan)
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _delete_unlocked(folder: Path) -> None:
    """Raises: OSError where it is locked, or cannot be."""
    import fcntl

    if time.time() - folder.stat().st_mtime < _MIN_AGE_S:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
