"""What keeps a process that computes fast: fewer threads that wait, fewer objects to look at.

GNU OpenMP wakes a thread's pool of workers for each operation that they share. Once a process has
more of them than the machine has cores, they no longer wait for work awake, not even for
microseconds, and thousands of small operations take twice as long. So a thread that has computed,
and leaves the rest to another one, gives its pool back.
"""

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_SOFT = 1
"""`omp_pause_soft`: settings stay, and a new pool begins with the next operation."""


def release_threads() -> None:
    """Ends the worker threads of the calling thread; a no-op without GNU OpenMP."""
    for pause in _find_pauses():
        pause(_SOFT)


@cache
def _find_pauses() -> list[Callable[[int], int]]:
    """Returns `omp_pause_resource_all` of each GNU OpenMP that the process has loaded."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return []
    paths = {line.split(maxsplit=5)[5] for line in lines if "libgomp" in line}
    found: list[Callable[[int], int]] = []
    for path in sorted(paths):
        with suppress(OSError, AttributeError):  # replaced on the disk meanwhile, or too old for it
            found.append(ctypes.CDLL(path).omp_pause_resource_all)
    return found


def set_present_objects_apart() -> None:
    """Excludes the present objects from all later collections.

    They are hundreds of thousands of the libraries' objects, which would take 0.2 s each time.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def present_objects_set_apart() -> Iterator[None]:
    """Excludes the present objects within the block; see `set_present_objects_apart`."""
    set_present_objects_apart()
    try:
        yield
    finally:
        gc.unfreeze()
