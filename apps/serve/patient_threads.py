"""`PatientThreads`: the threads that carry out sessions' calls, so many at a time.

Python computes in one thread at a time, and a change of threads costs a good part of a short step.
So the calls of all sessions whose steps compute share one thread, which goes from one call to the
next, and the event loop rests meanwhile: awake, it would take Python's lock from that thread at
every query and every message (DB-bench, 64 sessions: 381 to 405 episodes a second, not 416 to 458).
A call that takes long is soon alone: the loop goes on beside it.

Steps that wait on other processes leave the lock to others. They have more threads, and a limit
too: without it those of OS-interaction were as many a second, but the slowest of a hundred took
540 to 650 ms in place of 410 to 420 (64 sessions).
"""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class _Call:
    """A function that is to be called, and who waits for its result."""

    function: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]" = field(init=False)
    begin_s: float = 0.0

    def __post_init__(self) -> None:
        self.future = self.loop.create_future()

    def carry_out(self) -> None:
        """Calls the function, unless nobody waits for it any more, and tells how it went."""
        if not self.future.cancelled():
            with self:
                self._tell_later(self.future.set_result, self.function())

    def __enter__(self) -> None:
        """Begins what may raise anything."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        """Tells of an error whoever waits for the result, who raises it; the thread goes on."""
        if isinstance(error, StopIteration):  # which no future takes
            error = RuntimeError(f"StopIteration: {error}")
        if error is not None:
            self._tell_later(self.future.set_exception, error)
        return True

    def _tell_later(self, tell: Callable[[Any], None], what: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self._tell, tell, what)

    def _tell(self, tell: Callable[[Any], None], what: Any) -> None:
        if not self.future.cancelled():
            tell(what)


class PatientThreads:
    """Carries out so many calls at a time; one that takes long goes on beside them.

    No thread ends before the process does, since what a call has started may end with its thread
    (`bwrap --die-with-parent`). There are as many as places, and one more for each call that was
    late at the same time as others.
    """

    def __init__(self, num_places: int, patience_s: float, rest_s: float) -> None:
        """`patience_s`: how long a call may keep others waiting, twice that at most.

        `rest_s`: how long the event loop rests at a time while there are calls to carry out; it
        does all that has come up between two rests.
        """
        self._num_places, self._patience_s, self._rest_s = num_places, patience_s, rest_s
        self._waiting: deque[_Call] = deque()
        self._in_place: set[_Call] = set()
        lock = threading.Lock()
        self._change, self._all_done = threading.Condition(lock), threading.Condition(lock)
        self._is_resting = False
        self._num_threads = self._num_idle = self._num_coming = 0
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def of_steps(cls, *, that_wait: bool) -> "PatientThreads":
        """Returns those of steps that wait on other processes, or else compute."""
        if that_wait:
            return cls(num_places=8 * (os.cpu_count() or 1), patience_s=1.0, rest_s=0.0)
        return cls(num_places=1, patience_s=0.1, rest_s=0.02)

    async def run(self, function: Callable[[], T]) -> T:
        """Returns `function()`, called in a thread.

        Raises: what it raises; RuntimeError where no thread can be started.

        If the wait is cancelled, a call that has begun goes on, and others are left out.
        """
        loop = asyncio.get_running_loop()
        call = _Call(function, loop)
        with self._change:
            self._waiting.append(call)
            self._use_places()
            if not self._num_threads:
                self._waiting.remove(call)
                raise RuntimeError("the server cannot start a thread: try again later")
        if self._rest_s and not self._is_resting:
            self._is_resting = True
            loop.call_soon(self._rest, loop)
        if self._timer is None:
            self._timer = loop.call_later(self._patience_s, self._relieve, loop)
        result: T = await call.future
        return result

    def _use_places(self) -> None:
        """Has threads look after calls that wait, where there are places; some may be coming."""
        num_free = self._num_places - len(self._in_place)
        for _ in range(min(num_free, len(self._waiting)) - self._num_coming):
            if self._num_idle:
                self._num_idle -= 1
                self._change.notify()
            else:
                try:
                    threading.Thread(target=self._work, daemon=True).start()
                except RuntimeError:  # there can be no more: those that are there go on
                    return
                self._num_threads += 1
            self._num_coming += 1

    def _relieve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Takes their places from calls that have had them for long."""
        latest_s = time.monotonic() - self._patience_s
        with self._change:
            self._in_place -= {call for call in self._in_place if call.begin_s <= latest_s}
            self._use_places()
            is_needed = bool(self._waiting or self._in_place)
        self._timer = loop.call_later(self._patience_s, self._relieve, loop) if is_needed else None

    def _rest(self, loop: asyncio.AbstractEventLoop) -> None:
        """Holds the event loop until no call waits or is in its place, for `rest_s` at most."""
        with self._change:
            self._is_resting = not self._all_done.wait_for(self._has_nothing_to_do, self._rest_s)
            if self._is_resting:
                loop.call_soon(self._rest, loop)

    def _has_nothing_to_do(self) -> bool:
        return not self._waiting and not self._in_place

    def _work(self) -> None:
        """Carries out one call after another."""
        call: _Call | None = None
        while True:
            with self._change:
                if call is None:
                    self._num_coming -= 1
                else:
                    self._in_place.discard(call)
                    call = None  # so that nothing of it is kept while the thread is idle
                    if self._has_nothing_to_do():
                        self._all_done.notify()
                while not self._waiting or len(self._in_place) >= self._num_places:
                    self._num_idle += 1
                    self._change.wait()
                    self._num_coming -= 1
                call = self._waiting.popleft()
                self._in_place.add(call)
                call.begin_s = time.monotonic()
            call.carry_out()
