"""Torch's worker threads on CPUs: a pool of them for each thread of the process that computes.

GNU OpenMP wakes a pool's threads for each operation that they share. Once a process has more of
them than the machine has cores, they no longer wait for work awake, not even for microseconds, and
thousands of small operations take twice as long. So a thread that has computed, and leaves the
rest to another one, gives its pool back.
"""

import ctypes
from collections.abc import Callable
from contextlib import suppress
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
