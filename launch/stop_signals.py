"""SIGTERM and Ctrl-C as a stop at the next safe point."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(KeyboardInterrupt):
    """The run was asked to stop; `exit_status` is 128 + the signal."""

    def __init__(self, signum: int) -> None:
        """`signum` is the signal that asked."""
        super().__init__(signal.Signals(signum).name)
        self.exit_status = 128 + signum


class StopSignals:
    """Remembers a signal until `check`, or raises within `immediately`; a second one exits."""

    def __init__(self) -> None:
        """Nothing has been received, and nothing is handled before `handle`."""
        self._received: int | None = None
        self._is_immediate = False

    @contextmanager
    def handle(self) -> Iterator[None]:
        """Handles SIGTERM and SIGINT inside the block (in the main thread)."""
        old = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in old:
            signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    @contextmanager
    def immediately(self) -> Iterator[None]:
        """Around work that nothing is lost by: a signal ends it at once. Raises: Stopped."""
        self.check()
        self._is_immediate = True
        try:
            yield
        finally:
            self._is_immediate = False

    @property
    def is_stopping(self) -> bool:
        """Whether a signal has come."""
        return self._received is not None

    def check(self) -> None:
        """Raises: Stopped if a signal has come."""
        if self._received is not None:
            raise Stopped(self._received)

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        if self._received is not None:
            os._exit(128 + signum)
        self._received = signum
        if self._is_immediate:
            raise Stopped(signum)
        print("stopping after this iteration; a second signal exits at once", file=sys.stderr)
