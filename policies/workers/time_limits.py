"""A limit for calls that may never return, as Ray's do while one of its processes is stopped.

Ray's own timeouts do not hold then: `ray.get` of a large object waits for the raylet,
`ray.nodes` for the GCS, `ray.shutdown` for both. So such a call runs in a thread of its own, and
the caller waits for that thread. A thread cannot be ended: one that hangs is left behind, and
`leave` then ends the process without waiting for it. Standard library only.
"""

import _thread
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from agentpeft.policies.errors import RayHangsError

T = TypeVar("T")
RAY_START_S = 300.0
"""How long Ray may take to start, or to be joined."""
_AFTER_A_HANG_S = 5.0
"""What calls have once one has hung: it is most likely that they hang too."""
_unfinished: "set[_Call[Any]]" = set()
_hung: "set[_Call[Any]]" = set()
"""Of those, the ones that had longer than their limit."""


class _Call(Generic[T]):
    """One call in a thread of its own, and what came of it."""

    def __init__(self, function: Callable[[], T], stays: bool) -> None:
        self._function, self._stays = function, stays
        self.is_over = threading.Event()
        self.result: T
        self.error: BaseException | None = None

    def start(self) -> None:
        """Begins the call, without `threading.Thread`.

        `Thread.start` waits, without a limit, for a sign of life that never comes where the thread
        finds no memory for its first step. Raises: RuntimeError where there can be no more threads.
        """
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        with self:
            self.result = self._function()
        if self._stays:
            threading.Event().wait()

    def __enter__(self) -> None:
        """Nothing: what matters is how it ends."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        """Keeps an error for the thread that waits, which raises it again."""
        self.error = error
        self.is_over.set()
        _unfinished.discard(self)
        _hung.discard(self)
        return True


def within(limit_s: float, what: str, function: Callable[[], T], *, stays: bool = False) -> T:
    """Returns what `function()` does, and raises what it raises.

    `stays` keeps its thread for the rest of the process: Linux ends the processes that Ray starts
    when the thread that has started them ends. Raises: RayHangsError after `limit_s`.
    """
    call = _Call(function, stays)
    _unfinished.add(call)
    try:
        call.start()
    except RuntimeError:
        _unfinished.discard(call)
        raise
    limit_s = min(limit_s, _AFTER_A_HANG_S) if _hung else limit_s
    if not call.is_over.wait(limit_s):
        _hung.add(call)
        if call.is_over.is_set():  # at the last moment: it has looked whether it hangs
            _hung.discard(call)
        raise RayHangsError(what, limit_s)
    if call.error is not None:
        raise call.error
    return call.result


def is_hanging() -> bool:
    """Returns whether a call that had longer than its limit has not returned yet."""
    return bool(_hung)


def await_interrupted(limit_s: float) -> None:
    """Waits for calls that a signal's exception has left behind, before what they use is gone."""
    for call in _unfinished - _hung:
        call.is_over.wait(limit_s)


def leave(status: int) -> int:
    """Returns `status`, or ends the process with it at once where a call still hangs.

    An ordinary exit would wait for Ray, or crash in it. The Ray that this process has started ends
    with it: Linux ends its children, and those of a stopped raylet, which would stay, are ended
    here. (Not the raylet: Ray would end this process with a status of its own.)
    """
    if not is_hanging():
        return status
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    for child in _children(os.getpid()):
        for pid in _children(child):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    os._exit(status)


def _children(pid: int) -> list[int]:
    """Returns the numbers of the processes that a process has started and that are there."""
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found
