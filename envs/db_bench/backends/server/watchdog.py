"""The watchdog that ends statements from an administrator's connection.

An agent can lift any limit of its own connection (`SET max_statement_time = 0`), so none of these
is relied upon.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from agentpeft.envs.core.errors import EnvFault
from agentpeft.envs.db_bench.backends.protocol import StatementResult
from agentpeft.envs.db_bench.backends.server.client import ServerError
from agentpeft.envs.db_bench.backends.server.server import MySQLServer

_LOGGER = logging.getLogger(__name__)
_TICK_S = 0.05
_SIZE_POLL_S = 0.2
_GRACE_S = 0.25


TIMEOUT = StatementResult(
    error="3024 (HY000): Query execution was interrupted, "
    "maximum statement execution time exceeded",
    is_timeout=True,
)
FULL = StatementResult(error="1114 (HY000): The table is full")


@dataclass(eq=False)
class Guard:
    """A statement under watch. `result` is None unless the watchdog ended it."""

    connection_id: int
    schema: str
    kill_at_s: float
    poll_at_s: float
    result: StatementResult | None = None
    is_active: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock)


class Watchdog:
    """One thread that checks all running statements of a backend, 20 times a second."""

    def __init__(self, server: MySQLServer) -> None:
        self._server = server
        self._guards: dict[int, Guard] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="mysql-watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def watch(self, connection_id: int, schema: str) -> Iterator[Guard]:
        """Watches the statement in the block; the connection is not touched after it."""
        now = time.monotonic()
        timeout_s = self._server.limits.statement_timeout_s
        guard = Guard(connection_id, schema, now + timeout_s, now + _SIZE_POLL_S)
        self._guards[id(guard)] = guard
        try:
            yield guard
        finally:
            with guard.lock:
                guard.is_active = False
            del self._guards[id(guard)]

    def close(self) -> None:
        """Ends the thread; idempotent."""
        self._stopped.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._stopped.wait(_TICK_S):
            for guard in list(self._guards.values()):
                try:
                    self._look_at(guard)
                except (ServerError, EnvFault) as error:
                    _LOGGER.warning("watchdog: %s", error)

    def _look_at(self, guard: Guard) -> None:
        now = time.monotonic()
        if now >= guard.kill_at_s:
            self._kill(guard, TIMEOUT)
        elif now >= guard.poll_at_s:
            guard.poll_at_s = now + _SIZE_POLL_S
            size_mib = self._server.compute_size_mib(guard.schema)
            if size_mib > self._server.limits.max_database_mib:
                self._kill(guard, FULL)

    def _kill(self, guard: Guard, result: StatementResult) -> None:
        """Kills the statement, or the connection if the statement survived a first KILL."""
        with guard.lock:  # else a KILL could hit the connection's next statement
            if guard.is_active:
                self._server.kill(guard.connection_id, "CONNECTION" if guard.result else "QUERY")
                guard.result = guard.result or result
                guard.kill_at_s = time.monotonic() + _GRACE_S
