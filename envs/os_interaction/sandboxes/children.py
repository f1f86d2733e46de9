"""This process's children: how they have ended, and how they are ended.

Standard library only (Python 3.9), since it also runs inside of a container.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress


class Children:
    """How this process's children have ended; reaps them as they do."""

    def __init__(self) -> None:
        self.exit_codes: dict[int, int] = {}
        self.roots: set[int] = set()
        """Those that `end` leaves alone, being the roots of others."""
        signal.signal(signal.SIGCHLD, lambda *_: self.reap())

    def reap(self) -> None:
        """Reaps whoever has ended."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                code = os.waitstatus_to_exitcode(ended[1])
                self.exit_codes[ended[0]] = code if code >= 0 else 128 - code

    def kill(self, pid: int) -> None:
        """Kills a process, -1 for all that can be, and returns once there is no child any more."""
        with suppress(ChildProcessError):
            while True:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.0005)
        self.exit_codes.clear()

    def end(self, root: int) -> None:
        """Kills a child and the orphans it leaves, and returns once no child but `roots` is left.

        Its orphans are children of this process by the time that it can be waited for. Raises:
        OSError.
        """
        self.roots.discard(root)
        victims = [root]
        while victims:
            for pid in victims:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)
            victims = [pid for pid in _read_children(os.getpid()) if pid not in self.roots]
        kept = self.roots & self.exit_codes.keys()
        self.exit_codes = {pid: self.exit_codes[pid] for pid in kept}


def list_children(pid: int) -> list[int]:
    """Returns a process's children, the oldest first."""
    with suppress(OSError):
        return _read_children(pid)
    return []


def _read_children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]
