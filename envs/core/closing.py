"""Objects closed once, and never during a call: `Closable`, and `gated` for its calls.

A call may be under way in a thread of its own when another one closes: after Ctrl-C, or at the end
of a program. SQLite ends the process then, and file descriptors go to the next file opened.
So calls and the end take one lock. It does not stop a call: `close` waits a while for it, and a
call that takes longer frees what it used by itself.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import ClassVar, Concatenate, ParamSpec, TypeVar

from gymnasium.error import ClosedEnvironmentError

_LOGGER = logging.getLogger(__name__)
CLOSE_TIMEOUT_S = 30.0

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
ClosableT = TypeVar("ClosableT", bound="Closable")


class Closable(ABC):
    """An object used by one call at a time, and by none once it is closed.

    `_release` runs once: in `close`, or at the end of a call that `close` could not wait for:
    another thread's, or the one that `close` was called from (by a signal handler).
    """

    close_timeout_s: ClassVar[float] = CLOSE_TIMEOUT_S
    """How long `close` waits for a call that is under way."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0  # of calls within calls, by the thread that has the lock
        self._is_closed = False
        self._is_released = False

    @abstractmethod
    def _release(self) -> None:
        """Frees what this holds; called once, when no call is under way."""

    def close(self) -> None:
        """Closes the object: later calls raise ClosedEnvironmentError. Idempotent.

        Waits for a call that is under way in another thread, for `close_timeout_s` at most.
        """
        self._is_closed = True
        if not self._lock.acquire(timeout=self.close_timeout_s):
            _LOGGER.warning("%s is still in use: it is released afterwards", type(self).__name__)
            return
        try:
            self._release_if_free()
        finally:
            self._lock.release()

    def _release_if_free(self) -> None:
        if not self._depth and not self._is_released:
            self._is_released = True
            self._release()


def gated(
    method: Callable[Concatenate[ClosableT, P], ResultT],
) -> Callable[Concatenate[ClosableT, P], ResultT]:
    """Makes a method a call in the sense of `Closable`. Raises: ClosedEnvironmentError."""

    @wraps(method)
    def call(self: ClosableT, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        # Python looks at signals after calls, so that Ctrl-C can come between `acquire()` and a
        # `try`; it cannot between `with` and the next call.
        with self._lock:
            # A call within a call (depth > 0) may finish: the outer one frees everything after it.
            if self._is_closed and not self._depth:
                raise ClosedEnvironmentError(f"this {type(self).__name__} has been closed")
            self._depth += 1
            try:
                result = method(self, *args, **kwargs)
            finally:
                self._depth -= 1
                if self._is_closed:
                    self._release_if_free()
            if self._is_closed and not self._depth:
                raise ClosedEnvironmentError(f"this {type(self).__name__} was closed meanwhile")
            return result

    return call
