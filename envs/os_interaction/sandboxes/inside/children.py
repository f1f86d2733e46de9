"""This process's children: their exit codes, and how they are killed.

Standard library only (Python 3.9), since it also runs inside of a container.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Children:
    """The exit codes of this process's children, which it reaps."""

    def __init__(self) -> None:
        self.exit_codes: dict[int, int] = {}
        signal.signal(signal.SIGCHLD, lambda *_: self.reap())

    def reap(self) -> None:
        """Reaps children that have ended."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                code = os.waitstatus_to_exitcode(ended[1])
                self.exit_codes[ended[0]] = code if code >= 0 else 128 - code

    @contextmanager
    def unreaped(self) -> Iterator[None]:
        """Defers reaping, so that the number of a child that has ended is not given out again."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def kill(self, pid: int | None = None) -> None:
        """Kills every child, also adopted ones (-1: all that can be), until there is none."""
        with suppress(ChildProcessError):
            while True:
                for victim in [pid] if pid else list_children(os.getpid()):
                    send_signal(victim, signal.SIGKILL)
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.0005)
        self.exit_codes.clear()


def send_signal(pid: int, number: int) -> None:
    """Sends a signal, if the process exists (0: no process)."""
    if pid:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def add_descendants(pids: list[int]) -> list[int]:
    """Returns processes and all below them."""
    for pid in pids:  # which grows on the way
        pids += list_children(pid)
    return pids


def list_children(pid: int) -> list[int]:
    """Returns a process's children, the oldest first."""
    with suppress(OSError):
        return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    return []
