"""Pipes that an episode has left among its files, for checks that open them: `LeftPipes`.

The processes at the other end are gone, so a check that reads such a pipe, or writes to it, would
wait until its time is over. So both ends are opened for a moment, again and again: a check that
waits to open one continues, and after the moment reads the end of the file, or cannot write. What
a check does with both ends itself, within a moment, is not disturbed. Standard library only.
"""

from __future__ import annotations

import os
import select
import stat
import time
from contextlib import suppress
from typing import Any

_MOMENT_S = 0.25
_SHORT_MOMENT_S = 0.01
_NUM_MOMENTS = 20
"""Moments are short after these, or a check of many pipes would wait long."""
_IDLE_S = 60.0
_MAX_OPEN = 100
"""At a time; further pipes have their turn later."""


class LeftPipes:
    """Opens and closes pipes in turn; `attend` to them while a check runs."""

    def __init__(self) -> None:
        self._paths: list[str] = []
        self._opened: set[int] = set()
        self._spared: set[int] = set()
        self._next_s = 0.0
        self._num_moments = 0

    def watch(self, root: str, entries: list[tuple[str, dict[str, Any]]]) -> None:
        """Adds the pipes among paths below a root, given with their fields."""
        paths = [f"{root}{path}" for path, fields in entries if fields["kind"] == "other"]
        self._paths += [path for path in paths if path not in self._paths]

    def attend(self) -> float:
        """Opens some, or closes those that are open, if a moment has passed.

        Returns in how many seconds to call it again.
        """
        if not self._paths:
            return _IDLE_S
        if (left_s := self._next_s - time.monotonic()) > 0:
            return left_s
        self._num_moments += 1
        moment_s = _MOMENT_S if self._num_moments < _NUM_MOMENTS else _SHORT_MOMENT_S
        self._next_s = time.monotonic() + moment_s
        if self._opened:
            self._close_read()
        else:
            self._open_some()
        return moment_s

    def _open_some(self) -> None:
        turn, self._paths = self._paths[:_MAX_OPEN], self._paths[_MAX_OPEN:]
        for path in turn:
            with suppress(OSError):
                if stat.S_ISFIFO(os.lstat(path).st_mode):
                    flags = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
                    self._opened.add(os.open(path, flags))
        self._paths += turn

    def forget(self) -> None:
        """Closes all: no check runs any more."""
        self._paths = []
        self._num_moments = 0
        for _ in range(2):
            self._close_read()

    def _close_read(self) -> None:
        """Closes all but those with something unread, for which a reader has another moment."""
        poll = select.poll()
        for descriptor in self._opened:
            poll.register(descriptor, select.POLLIN)
        unread = {descriptor for descriptor, _ in poll.poll(0)} - self._spared
        for descriptor in self._opened - unread:
            os.close(descriptor)
        self._opened, self._spared = unread, set(unread)
