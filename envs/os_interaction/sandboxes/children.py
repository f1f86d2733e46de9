"""This process's children: how they have ended, and how they are ended.

Standard library only (Python 3.9), since it also runs inside of a container.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path


class Children:
    """How this process's children have ended; reaps them as they do."""

    def __init__(self) -> None:
        self.exit_codes: dict[int, int] = {}
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


def list_children(pid: int) -> list[int]:
    """Returns a process's children, the oldest first."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in text.split()]
    return []
