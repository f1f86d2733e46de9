"""`EnvThreads`: environment calls in worker threads, with a time limit and few wake-ups.

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
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from agentpeft.envs import EnvFault
from agentpeft.policies.rollout.environments import ENVIRONMENT_ERRORS, call_environment

T = TypeVar("T")


class EnvHangError(EnvFault):
    """An environment's call took too long; its environment must not be touched again."""


@dataclass(eq=False, slots=True)
class _Call:
    function: Callable[[], Any]
    future: asyncio.Future[Any]
    is_settled: bool = False
    start_s: float = 0.0


class EnvThreads:
    """Up to `max_threads` threads that take calls from one queue.

    Results come back to the event loop together: the loop is woken once for all that have come
    since it last looked. Calls of one environment may come from different threads.
    """

    def __init__(self, max_threads: int, timeout_s: float) -> None:
        """`timeout_s`: how long a call may run, from when a thread begins it."""
        self.num_under_way, self._busy_s, self._start_s = 0, 0.0, 0.0
        self._max_threads, self._timeout_s, self._num_threads = max_threads, timeout_s, 0
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._running: set[_Call] = set()
        self._done: deque[tuple[_Call, Callable[[], None]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_waking = self._is_watching = False

    @property
    def busy_s(self) -> float:
        """The seconds so far in which at least one call was under way."""
        return self._busy_s + (time.perf_counter() - self._start_s if self.num_under_way else 0.0)

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Returns the future of `function()`. It raises EnvHangError, or as `call_environment`."""
        self._loop = asyncio.get_running_loop()
        call = _Call(function, self._loop.create_future())
        if self.num_under_way == 0:
            self._start_s = time.perf_counter()
        self.num_under_way += 1
        if self._num_threads < min(self.num_under_way, self._max_threads):
            self._num_threads += 1
            self._start_thread()
        if not self._is_watching:
            self._watch()
        self._calls.put(call)
        return cast(asyncio.Future[T], call.future)

    def close(self) -> None:
        """Lets the threads end after their present calls."""
        for _ in range(self._num_threads):
            self._calls.put(None)
        self._num_threads = 0

    def _start_thread(self) -> None:
        threading.Thread(target=self._work, name="environment", daemon=True).start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.start_s = time.monotonic()
            self._running.add(call)
            try:
                settle = partial(call.future.set_result, call_environment(call.function))
            except ENVIRONMENT_ERRORS as error:
                settle = partial(call.future.set_exception, error)
            self._running.discard(call)
            if call.is_settled:  # left behind meanwhile, and replaced
                return
            self._done.append((call, settle))
            if not self._is_waking and self._loop is not None and not self._loop.is_closed():
                self._is_waking = True
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_waking = False  # before the queue is emptied: what comes later wakes again
        while self._done:
            self._settle(*self._done.popleft())

    def _settle(self, call: _Call, settle: Callable[[], None]) -> None:
        if call.is_settled:
            return
        call.is_settled = True
        self.num_under_way -= 1
        if self.num_under_way == 0:
            self._busy_s += time.perf_counter() - self._start_s
        if not call.future.cancelled():
            settle()

    def _watch(self) -> None:
        """Looks for calls over their time, repeatedly while any is under way."""
        now_s = time.monotonic()
        for call in self._running.copy():  # threads change it
            if now_s - call.start_s > self._timeout_s:
                self._running.discard(call)
                self._start_thread()
                hang = f"a call of the environment took more than {self._timeout_s:g} s"
                error = EnvHangError(f"{hang}; its thread is left behind")
                self._settle(call, partial(call.future.set_exception, error))
        self._is_watching = self.num_under_way > 0
        if self._is_watching and self._loop is not None:
            self._loop.call_later(min(self._timeout_s / 4, 1.0), self._watch)
