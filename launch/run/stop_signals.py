"""SIGTERM, Ctrl-C and a terminal's hang-up as a stop at the next safe point, which is near."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from agentpeft.launch.run.ray_folder import GOODBYE, tell_sweeper

_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SAME_S = 0.2
"""Within it a second signal is the first one again: `timeout` tells the process and its group."""
_PATIENCE_S = 3.0
"""How long an iteration may go on after a signal, before it is given up."""


class Stopped(KeyboardInterrupt):
    """The run was asked to stop; `exit_status` is 128 + the signal."""

    def __init__(self, signum: int) -> None:
        """`signum` is the signal that asked."""
        super().__init__(signal.Signals(signum).name)
        self.exit_status = 128 + signum


class StopSignals:
    """Remembers a signal until `check`; a second one exits.

    Within `immediately` it raises at once, within `patiently` after `_PATIENCE_S`.
    """

    def __init__(self) -> None:
        """Nothing has been received, and nothing is handled before `handle`."""
        self._received: int | None = None
        self._received_s = 0.0
        self._handled: tuple[signal.Signals, ...] = ()
        self._is_immediate = self._is_patient = False
        self._is_late = threading.Event()

    @contextmanager
    def handle(self) -> Iterator[None]:
        """Handles SIGTERM, SIGINT and SIGHUP inside the block (in the main thread), and after one.

        A SIGHUP that is ignored, as `nohup` has it, stays so. Raises: Stopped, also where others
        have made something else of a signal: Ray interrupts its waits with an error of its own, and
        exits by SIGTERM while it starts.
        """
        old = {number: signal.getsignal(number) for number in _HANDLED}
        if old[signal.SIGHUP] is signal.SIG_IGN:
            del old[signal.SIGHUP]
        self._handled = tuple(old)
        self.take_back()
        try:
            yield
        except Stopped:
            raise
        except KeyboardInterrupt:
            self.check()
            raise
        except SystemExit as error:
            if error.code == signal.SIGTERM:
                self._received = signal.SIGTERM
                self.take_back()
                self.check()
            raise
        finally:
            if self._received is None:  # else a second signal may come until the process has ended
                for number, handler in old.items():
                    signal.signal(number, handler)

    def take_back(self) -> None:
        """Handles the signals again that `handle` does; others may have handlers of their own."""
        for number in self._handled:
            signal.signal(number, self._on_signal)

    @contextmanager
    def immediately(self) -> Iterator[None]:
        """Around work that nothing is lost by: a signal ends it at once. Raises: Stopped."""
        self.check()
        before, self._is_immediate = self._is_immediate, True
        try:
            yield
        finally:
            self._is_immediate = before

    @contextmanager
    def patiently(self) -> Iterator[None]:
        """Around work that should be done whole, if it does not take long. Raises: Stopped.

        After a signal it may go on for `_PATIENCE_S`, counted from here where one has come before.
        """
        self._is_patient = True
        if self.is_stopping:
            self._start_timer()
        try:
            yield
        finally:
            self._is_patient = False

    @property
    def is_stopping(self) -> bool:
        """Whether a signal has come."""
        return self._received is not None

    def check(self) -> None:
        """Raises: Stopped if a signal has come."""
        if self._received is not None:
            raise Stopped(self._received)

    def _start_timer(self) -> None:
        """Has `_on_signal` called again later; a thread can send signals, and not raise here."""

        def remind() -> None:
            self._is_late.set()
            main = threading.main_thread().ident
            if main is not None and self._received is not None:
                signal.pthread_kill(main, self._received)

        timer = threading.Timer(_PATIENCE_S, remind)
        timer.daemon = True
        timer.start()

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        name = signal.Signals(signum).name
        if self._is_late.is_set():
            self._is_late.clear()
            if self._is_patient:
                self._is_patient = False
                _say(f"{name}: given up what took longer than {_PATIENCE_S:g} s")
                raise Stopped(signum)
            return
        if self._received is not None:
            if time.monotonic() - self._received_s < _SAME_S:
                return
            _say(f"{name}: stopped at once, without waiting for what was still to be saved")
            tell_sweeper(GOODBYE)
            os._exit(128 + signum)
        self._received, self._received_s = signum, time.monotonic()
        if self._is_immediate:
            raise Stopped(signum)
        _say(f"{name}: stopping after this iteration; a second signal exits at once")
        if self._is_patient:
            self._start_timer()


def _say(line: str) -> None:
    """Writes a line on standard error, past Python's buffer, which may be at work itself."""
    with suppress(OSError):  # the terminal may be what has hung up
        os.write(2, f"{line}\n".encode())
