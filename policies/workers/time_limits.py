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
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

from agentpeft.policies.errors import RayHangsError

T = TypeVar("T")
RAY_START_S = 300.0
"""How long Ray may take to start, or to be joined."""
_AFTER_A_HANG_S = 5.0
"""What calls have once one has hung: it is most likely that they hang too."""
_unfinished: "set[Future[Any]]" = set()
_over_limit: "set[Future[Any]]" = set()


def within(limit_s: float, what: str, function: Callable[[], T], *, stays: bool = False) -> T:
    """Returns what `function()` does, and raises what it raises.

    `stays` keeps its thread for the rest of the process: Linux ends the processes that Ray starts
    when the thread that has started them ends. Raises: RayHangsError after `limit_s`.
    """
    limit_s = min(limit_s, _AFTER_A_HANG_S) if is_hanging() else limit_s
    call: Future[T] = Future()

    def keep_error(_kind: object, error: BaseException | None, _trace: object) -> bool:
        if error is not None:  # raised again by the thread that waits
            call.set_exception(error)
        return True

    def run() -> None:
        with ExitStack() as stack:
            stack.push(keep_error)
            call.set_result(function())
        if stays:
            threading.Event().wait()

    _unfinished.add(call)
    call.add_done_callback(_unfinished.discard)
    try:  # not `Thread.start`, which waits, without a limit, for a sign of life that never comes
        _thread.start_new_thread(run, ())  # where the thread finds no memory for its first step
    except RuntimeError as error:  # there can be no more threads
        call.set_exception(error)
    if not wait([call], limit_s).done:
        _over_limit.add(call)
        raise RayHangsError(what, limit_s)
    return call.result()


def is_hanging() -> bool:
    """Returns whether a call that had longer than its limit has not returned yet."""
    return not all(call.done() for call in _over_limit)


def await_interrupted(limit_s: float) -> None:
    """Waits for calls that a signal's exception has left behind, before what they use is gone."""
    wait(_unfinished - _over_limit, limit_s)


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
