"""DB-bench on any MySQL-protocol server (MySQL 8, MariaDB 10.11): `MySQLDatabase`.

Each episode has its own schema and account, which are never used again. The account may
SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER and INDEX in its schema and nothing else: no
views, triggers, routines, events, temporary tables, locks, files, settings, other schemas (EXECUTE
only makes a wrong function's error MySQL's usual one). A watchdog ends its statements from an
administrator's connection, and where that does not help, the client hangs up. The grader reads its
tables from an account that may SELECT in the backend's schemas and nothing else, and in a
statement's time, since to read a virtual column is to run the agent's code.

Schema, account and connection (1.3 ms on tmpfs, up to 4 ms on a disk) are made ahead by two
background threads, which also drop what is done with; `open` itself only makes the tables.

What it does not protect against: names of `GET_LOCK` and `XA`, and server-wide counters, are
shared by episodes that run at the same time. A server looks at a kill only between steps: what
multiplies its work by nesting is refused before it is sent (`statement_growth.py`), but functions
of large texts (`LOCATE` of 100 kB in 200 kB, row by row) may keep a MariaDB thread busy after the
agent has its timeout, and its schema until a later start removes it. Nothing limits the memory
that a session takes within its statement time; MyISAM tables can be measured only after a
statement; and MariaDB lets any account choose a table's folder. So run the server with a memory
limit and MariaDB with `--enforce-storage-engine=InnoDB --skip-symbolic-links`, as `DockerDatabase`
does. An XA transaction that is prepared, abandoned and in the way of dropping a schema is rolled
back, even if another account prepared it.
"""

import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from agentpeft.envs.core.errors import DataError, EnvFault, SettingsError
from agentpeft.envs.db_bench.backends.protocol import DatabaseLimits, Table
from agentpeft.envs.db_bench.backends.server.client import (
    ConnectionLostError,
    MySQLClient,
    ServerError,
)
from agentpeft.envs.db_bench.backends.server.server import MySQLServer, Slot
from agentpeft.envs.db_bench.backends.server.session import MySQLSession
from agentpeft.envs.db_bench.backends.server.watchdog import Watchdog

_LOGGER = logging.getLogger(__name__)
_NUM_SPARE = 8
_MAX_BACKLOG = 16
_NUM_THREADS = 2
_OPEN_ATTEMPTS = 2


class MySQLDatabase:
    """A `Database` on the server at `url`, `mysql://user:password@host:port`.

    The user is an administrator. Over a socket: `mysql://user:password@localhost?unix_socket=path`.
    """

    def __init__(self, url: str, limits: DatabaseLimits | None = None) -> None:
        """Connects and makes a first schema. Raises: SettingsError, EnvFault (no server there)."""
        self._server = MySQLServer(url, limits or DatabaseLimits())
        self._ready: deque[tuple[Slot, MySQLClient]] = deque()
        self._names: set[str] = set()  # needs no lock: adding and discarding are atomic
        self._backlog = threading.Semaphore(_MAX_BACKLOG)
        self._is_closed = False
        self._owner_pid = os.getpid()
        try:
            self._ready.append(self._make())
        except EnvFault as error:
            self._server.close()
            raise SettingsError(str(error)) from None
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="mysql-slots")
        self._watchdog = Watchdog(self._server)
        atexit.register(self.close)
        for _ in range(_NUM_SPARE - 1):
            self._threads.submit(self._make_ahead)

    def open(self, tables: Sequence[Table]) -> MySQLSession:
        """Returns a session with `tables`; reconnects to a server that was restarted.

        Raises: DataError, EnvFault.
        """
        for _ in range(_OPEN_ATTEMPTS):
            slot, client = self._take()
            session = MySQLSession(self._server, self._watchdog, slot, client, self._recycle)
            try:
                session.load(tables)
            except ConnectionLostError:
                self._forget_ready()
                session.close()
            except (DataError, EnvFault):
                session.close()
                raise
            else:
                return session
        raise EnvFault(f"lost the database server {self._server.address} while making tables")

    def close(self) -> None:
        """Removes every schema and account of this backend; idempotent.

        In a forked child it does nothing: they are the parent's.
        """
        if self._is_closed or os.getpid() != self._owner_pid:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        self._threads.shutdown(wait=True)
        self._watchdog.close()
        while self._ready:
            self._ready.popleft()[1].close()
        self._server.ask_again()  # it may be well by now, and nobody removes them later
        for name in list(self._names):
            self._remove(name)
        self._server.close()

    def _take(self) -> tuple[Slot, MySQLClient]:
        if self._is_closed:
            raise EnvFault(f"the database {self._server.address} has been closed")
        try:
            return self._ready.popleft()
        except IndexError:
            return self._make()

    def _make(self) -> tuple[Slot, MySQLClient]:
        """Raises: EnvFault."""
        try:
            slot = self._server.make_slot()
            self._names.add(slot.name)
            return slot, self._server.connect_agent(slot)
        except ServerError as error:
            message = f"cannot make a schema at {self._server.address}: {error}"
            raise EnvFault(message) from None

    def _make_ahead(self) -> None:
        try:
            self._ready.append(self._make())
        except EnvFault as error:
            _LOGGER.warning("%s", error)

    def _recycle(self, session: MySQLSession) -> None:
        """Replaces a session's schema by a new one, in the background unless that lags behind."""
        if self._is_closed:
            return
        if self._backlog.acquire(blocking=False):
            self._threads.submit(self._replace, session.slot.name)
        else:
            self._remove(session.slot.name)

    def _replace(self, name: str) -> None:
        try:
            if len(self._ready) < _NUM_SPARE:
                self._make_ahead()
            self._remove(name)
        finally:
            self._backlog.release()

    def _remove(self, name: str) -> None:
        try:
            self._server.remove_slot(name)
        except (ServerError, EnvFault) as error:
            _LOGGER.warning("schema %s stays behind: %s", name, error)
            return
        self._names.discard(name)

    def _forget_ready(self) -> None:
        """Drops the connections that were made before the server went away."""
        while self._ready:
            slot, client = self._ready.popleft()
            client.close()
            self._threads.submit(self._remove, slot.name)
