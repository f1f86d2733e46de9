"""Cores of this machine that engines take for themselves, so that no two share one by accident.

vLLM would bind the threads of every engine to the same ones. A core is a locked file: the kernel
frees it when its owner ends, however that happens. Only engines of one user see each other.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


class CoreClaim:
    """Cores that are held until it is closed; none at all where too few are free."""

    def __init__(self, num_cores: int, cores: Iterable[int] | None = None) -> None:
        """`cores` are those to choose from; None are all that this process may run on."""
        self._files: dict[int, int] = {}
        for core in sorted(os.sched_getaffinity(0) if cores is None else cores):
            if len(self._files) < num_cores:
                self._try(core)
        if len(self._files) < num_cores:
            self.close()

    @property
    def cores(self) -> frozenset[int]:
        """The cores' numbers."""
        return frozenset(self._files)

    def close(self) -> None:
        """Gives the cores back; idempotent."""
        while self._files:
            os.close(self._files.popitem()[1])

    def _try(self, core: int) -> None:
        folder = Path(tempfile.gettempdir(), f"agentpeft-cores-{os.getuid()}")
        folder.mkdir(exist_ok=True)
        file = os.open(folder / str(core), os.O_CREAT | os.O_RDWR, 0o600)
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._files[core] = file
            return
        os.close(file)
