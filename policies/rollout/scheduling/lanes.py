"""`Lanes`: environment calls in worker threads, with a time limit and few wake-ups.

A thread cannot be ended from outside: one that hangs is left behind as a daemon, and its
environment with it.

A `ThreadPoolExecutor` would wake the event loop for every call, and waits for a thread that hangs
when the process ends. With 256 calls at once it carries out 0.4 times as many calls a second
(`benchmarks/alternatives.py threads`).
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from agentpeft.envs import EnvFault
from agentpeft.policies.rollout.environments.environment_calls import (
    ENVIRONMENT_ERRORS,
    call_environment,
)

T = TypeVar("T")


class LaneHang(EnvFault):
    """An environment's call took too long; its environment must not be touched again."""


class BusyClock:
    """Seconds in which at least one thing was under way."""

    def __init__(self) -> None:
        self._busy_s = 0.0
        self.num_under_way = 0
        self._start_s = 0.0

    def begin(self) -> None:
        """One more is under way."""
        if self.num_under_way == 0:
            self._start_s = time.perf_counter()
        self.num_under_way += 1

    def end(self) -> None:
        """One less is under way."""
        self.num_under_way -= 1
        if self.num_under_way == 0:
            self._busy_s += time.perf_counter() - self._start_s

    @property
    def busy_s(self) -> float:
        """The seconds so far."""
        open_s = time.perf_counter() - self._start_s if self.num_under_way else 0.0
        return self._busy_s + open_s


class _Call:
    __slots__ = ("error", "function", "future", "is_settled", "result")

    def __init__(self, function: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self.function, self.future = function, future
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_settled = False


class _Lane:
    """A thread's present call and when it began; None while it waits."""

    def __init__(self) -> None:
        self.call: _Call | None = None
        self.start_s = 0.0


class Lanes:
    """Up to `max_lanes` threads that take calls from one queue.

    Results come back to the event loop together: the loop is woken once for all that have come
    since it last looked. Calls of one environment may come from different threads. All belongs to
    one event loop.
    """

    def __init__(self, max_lanes: int, timeout_s: float) -> None:
        """`timeout_s`: how long a call may run, from when a thread begins it."""
        self.clock = BusyClock()
        self._max_lanes, self._timeout_s = max_lanes, timeout_s
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._done: deque[_Call] = deque()
        self._lanes: set[_Lane] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_waking = self._is_watching = False

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Returns the future of `function()`. It raises LaneHang, or as `call_environment`."""
        self._loop = asyncio.get_running_loop()
        call = _Call(function, self._loop.create_future())
        self.clock.begin()
        if len(self._lanes) < min(self.clock.num_under_way, self._max_lanes):
            self._start_lane()
        if not self._is_watching:
            self._watch()
        self._calls.put(call)
        return cast(asyncio.Future[T], call.future)

    def close(self) -> None:
        """Lets the threads end after their present calls."""
        for _ in self._lanes:
            self._calls.put(None)
        self._lanes = set()

    def _start_lane(self) -> None:
        lane = _Lane()
        self._lanes.add(lane)
        threading.Thread(target=self._work, args=(lane,), name="lane", daemon=True).start()

    def _work(self, lane: _Lane) -> None:
        while (call := self._calls.get()) is not None:
            lane.start_s = time.monotonic()
            lane.call = call
            try:
                call.result = call_environment(call.function)
            except ENVIRONMENT_ERRORS as error:
                call.error = error
            lane.call = None
            if call.is_settled:  # left behind meanwhile
                return
            self._finish(call)

    def _finish(self, call: _Call) -> None:
        """Hands a call to the event loop."""
        self._done.append(call)
        if not self._is_waking and self._loop is not None and not self._loop.is_closed():
            self._is_waking = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_waking = False  # before the queue is emptied: what comes later wakes again
        while self._done:
            self._settle(self._done.popleft())

    def _settle(self, call: _Call) -> None:
        if call.is_settled:
            return
        call.is_settled = True
        self.clock.end()
        if call.future.done():  # cancelled
            return
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.result)

    def _watch(self) -> None:
        """Looks for calls over their time, again and again while any is under way."""
        now_s = time.monotonic()
        for lane in tuple(self._lanes):
            call = lane.call
            if call is not None and now_s - lane.start_s > self._timeout_s:
                self._abandon(lane, call)
        self._is_watching = self.clock.num_under_way > 0
        if self._is_watching and self._loop is not None:
            self._loop.call_later(min(self._timeout_s / 4, 1.0), self._watch)

    def _abandon(self, lane: _Lane, call: _Call) -> None:
        self._lanes.discard(lane)
        self._start_lane()
        hang = f"a call of the environment took more than {self._timeout_s:g} s"
        call.error = LaneHang(f"{hang}; its thread is left behind")
        self._settle(call)
