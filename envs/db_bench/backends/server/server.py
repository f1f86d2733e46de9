"""A MySQL-protocol server as an administrator sees it: schemas, accounts, kills, leftovers.

Each backend has a random token, holds the server's lock of that name for as long as it lives, and
names its schemas after it, so any later backend can tell (and remove) what a crashed one left.
Agents' tables are read by an account of the backend's that may SELECT in its schemas, nothing else:
a virtual column's expression is the agent's code, and runs when it is read.
"""

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

from agentpeft.envs.core.errors import EnvFault, SettingsError
from agentpeft.envs.db_bench.backends.protocol import DatabaseLimits
from agentpeft.envs.db_bench.backends.server.client import (
    Address,
    ConnectionLostError,
    DeadlineError,
    MySQLClient,
    ServerError,
)

_LOGGER = logging.getLogger(__name__)
_SQL_MODE = (
    "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,"
    "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
)
_COLLATIONS = ("utf8mb4_0900_ai_ci", "utf8mb4_uca1400_nopad_ai_ci", "utf8mb4_unicode_520_nopad_ci")
_PRIVILEGES = "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, EXECUTE"
_NO_SILENT_CUT = "max_recursive_iterations = 4294967295, "
"""MariaDB ends a recursive query at 1,000 iterations without a word; better a timeout."""
_ADMIN_TIMEOUT_S = 30
_SILENCE_S = 10
"""How long a server that did not answer one of our statements is left alone."""
_LOCK_TIMEOUT = 1205


@dataclass(frozen=True)
class Slot:
    """One episode's schema and account (both called `name`), and the account's password."""

    name: str
    password: str = field(repr=False)


class MySQLServer:
    """The administrator's side of a server; thread-safe."""

    def __init__(self, url: str, limits: DatabaseLimits) -> None:
        """Connects, checks the server, removes leftovers. Raises: EnvFault, SettingsError."""
        self.address = Address.parse(url)
        self.limits = limits
        self._clients: list[MySQLClient] = []
        self._readers: list[MySQLClient] = []
        self._prefix = f"agentpeft_{secrets.token_hex(4)}"
        self._reader = Slot(f"{self._prefix}_reader", secrets.token_urlsafe(12))
        self._lock = threading.Lock()
        self._owner: MySQLClient | None = None
        self._is_owner_lost = True
        self._is_closed = False
        self._silent_until_s = 0.0
        self._check_lock = threading.Lock()
        self._well_at_s = -math.inf
        self._to_kill: list[tuple[int, str]] = []
        with self.administrator() as client:
            self._is_mariadb = "MariaDB" in str(client.query("SELECT VERSION()")[0][0])
            self._collation = _find_collation(client)
            self._identified = _find_identification(client, self._is_mariadb)
            self._session_settings = (
                f"SET autocommit = 1, sql_mode = '{_SQL_MODE}', wait_timeout = 86400, "
                f"{_NO_SILENT_CUT if self._is_mariadb else ''}"
                f"NAMES utf8mb4 COLLATE {self._collation}"
            )
            _check_accounts(client, self.address)
            self._hold_lock()
            self._remove_leftovers(client)
            pattern = self._prefix.replace("_", r"\_") + r"\_%"
            client.query(
                f"CREATE USER {self._reader.name}@`%` {self._identified} "
                f"'{self._reader.password}'; GRANT SELECT ON `{pattern}`.* TO "
                f"{self._reader.name}@`%`"
            )

    @contextmanager
    def administrator(self) -> Iterator[MySQLClient]:
        """Lends a pooled administrator's connection. Raises: EnvFault where there is no server.

        The caller handles ServerError; a lost connection is not lent again. A server that did not
        answer (stopped, or waiting for room on a full disk, as MariaDB does) is left alone for a
        while: else each of many episodes and schemas would wait for it in turn.
        """
        if time.monotonic() < self._silent_until_s:
            raise self._silence()
        try:
            with self._lend(self._clients, self._connect_administrator) as client:
                self._send_kills(client)
                yield client
        except ConnectionLostError as error:
            self._is_owner_lost = True
            for pool in (self._clients, self._readers):
                while pool:
                    pool.pop().close()
            if isinstance(error, DeadlineError):
                raise self._leave_alone() from None
            raise EnvFault(f"lost the database server {self.address}: {error}") from None

    def reader(self) -> AbstractContextManager[MySQLClient]:
        """Lends a pooled connection that may read the schemas; a closed one is dropped.

        Raises: EnvFault where none can be made. The caller handles errors of its own queries.
        """
        return self._lend(self._readers, self._connect_reader)

    @contextmanager
    def _lend(
        self, pool: list[MySQLClient], connect: Callable[[], MySQLClient]
    ) -> Iterator[MySQLClient]:
        """Lends a connection of a pool, or a new one, and puts it back if it is still usable."""
        try:  # pop and append of a list are atomic, so the pool needs no lock
            client = pool.pop()
        except IndexError:
            client = connect()
        is_usable = False  # Ctrl-C may leave an answer unread
        try:
            yield client
            is_usable = True
        except ServerError as error:
            is_usable = not isinstance(error, ConnectionLostError)
            raise
        finally:
            if is_usable and not (self._is_closed or client.is_closed):
                pool.append(client)
            else:
                client.close()

    def check(self) -> None:
        """Proves that the server works, by new connections and a new schema.

        Raises: EnvFault.
        """
        asked_s = time.monotonic()
        with self._check_lock:  # many may ask at once; one check answers all who asked before it
            began_s = time.monotonic()
            if self._well_at_s < asked_s:
                self._check()
                self._well_at_s = began_s

    def _check(self) -> None:
        try:
            name = self.make_slot().name
            try:  # what an episode needs: a login, a write (is the disk full?) and a read
                self._connect_administrator().close()
                with self.administrator() as client:
                    client.query(f"CREATE TABLE {name}.t (a INT); INSERT {name}.t VALUES (1)")  # noqa: S608
                reader = self._connect_reader()
                reader.query(f"SELECT a FROM {name}.t")  # noqa: S608
                reader.close()
            finally:
                self.remove_slot(name)
        except (ServerError, SettingsError) as error:
            raise EnvFault(f"the database server {self.address} is out of order: {error}") from None

    def connect_agent(self, slot: Slot) -> MySQLClient:
        """Returns a connection of the slot's account, set up as MySQL 8's defaults are.

        Raises: ServerError, ConnectionLostError.
        """
        address = replace(self.address, user=slot.name, password=slot.password)
        timeout_s = round(self.limits.statement_timeout_s + 10)
        try:
            client = MySQLClient(address, timeout_s, slot.name)
        except ServerError as error:
            if error.errno not in (1044, 1049):
                raise
            client = MySQLClient(address, timeout_s)
        client.query(self._session_settings)
        return client

    def make_slot(self) -> Slot:
        """Makes a schema, and an account that may use it alone. Raises: EnvFault, ServerError."""
        name, password = f"{self._prefix}_{secrets.token_hex(6)}", secrets.token_urlsafe(12)
        with self.administrator() as client:
            self._hold_lock()
            client.query(
                f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE {self._collation};"
                f"CREATE USER {name}@`%` {self._identified} '{password}' "
                "WITH MAX_USER_CONNECTIONS 3;"
                f"GRANT {_PRIVILEGES} ON {name}.* TO {name}@`%`"
            )
        return Slot(name, password)

    def reset_password(self, slot: Slot) -> None:
        """Restores the account's password, which the agent may have changed."""
        with self.administrator() as client:
            client.query(f"ALTER USER `{slot.name}`@`%` {self._identified} '{slot.password}'")

    def remove_slot(self, name: str) -> None:
        """Drops a schema and its account with all connections. Raises: EnvFault, ServerError."""
        with self.administrator() as client:
            _remove(client, name)

    def kill(self, connection_id: int, what: str = "QUERY") -> None:
        """Stops a connection's statement, or with `what="CONNECTION"` the connection.

        A server that is left alone gets the KILL once it answers again. Raises: EnvFault.
        """
        self._to_kill.append((connection_id, what))  # whoever gets a connection next sends it
        if time.monotonic() >= self._silent_until_s:
            with self.administrator():
                pass

    def compute_size_mib(self, name: str) -> float:
        """Returns the size of a schema's tables in MiB: InnoDB's files as they are on disk."""
        prefix = "INNODB_SYS_TABLESPACES" if self._is_mariadb else "INNODB_TABLESPACES"
        with self.administrator() as client:
            sizes = client.query(
                f"SELECT SUM(FILE_SIZE) FROM information_schema.{prefix} "  # noqa: S608
                f"WHERE NAME LIKE '{name}/%' UNION ALL "
                "SELECT SUM(DATA_LENGTH + INDEX_LENGTH) FROM information_schema.TABLES "
                f"WHERE TABLE_SCHEMA = '{name}' AND ENGINE <> 'InnoDB'"
            )
        return sum(float(str(size)) for (size,) in sizes if size is not None) / 2**20

    def close(self) -> None:
        """Removes the reader and closes all connections; idempotent."""
        if not self._is_closed:
            try:
                self.remove_slot(self._reader.name)
            except (ServerError, EnvFault) as error:
                _LOGGER.warning("account %s stays behind: %s", self._reader.name, error)
        self._is_closed = True
        owner = [self._owner] if self._owner else []
        self._owner = None
        for client in [*self._clients, *self._readers, *owner]:
            client.close()
        self._clients.clear()
        self._readers.clear()

    def ask_again(self) -> None:
        """Lets a server that did not answer be asked again at once."""
        self._silent_until_s = 0.0

    def _send_kills(self, client: MySQLClient) -> None:
        while True:
            try:
                connection_id, what = self._to_kill.pop()
            except IndexError:  # none is left, or another thread has sent it
                return
            _kill(client, connection_id, what)

    def _leave_alone(self) -> EnvFault:
        """Leaves the server alone for a while; returns the fault to raise."""
        self._silent_until_s = time.monotonic() + _SILENCE_S
        return self._silence()

    def _silence(self) -> EnvFault:
        return EnvFault(
            f"the database server {self.address} accepts connections but does not answer: is its "
            "disk full, or was it stopped?"
        )

    def _connect_administrator(self) -> MySQLClient:
        if self._is_closed:
            raise EnvFault(f"the database {self.address} has been closed")
        try:
            client = MySQLClient(self.address, _ADMIN_TIMEOUT_S)
            client.query(
                "SET autocommit = 1, lock_wait_timeout = 1, innodb_lock_wait_timeout = 1, "
                "sql_mode = ''"
            )
        except DeadlineError:
            raise self._leave_alone() from None
        except ConnectionLostError as error:
            raise EnvFault(
                f"no MySQL server answers at {self.address} ({error}): start one (on Debian: "
                "apt-get install mariadb-server && service mariadb start), or correct the URL"
            ) from None
        except ServerError as error:
            raise SettingsError(f"cannot log in at {self.address}: {error}") from None
        return client

    def _connect_reader(self) -> MySQLClient:
        """Raises: EnvFault."""
        address = replace(self.address, user=self._reader.name, password=self._reader.password)
        try:
            client = MySQLClient(address, _ADMIN_TIMEOUT_S)
            client.query("SET autocommit = 1, wait_timeout = 86400, sql_mode = ''")
        except ServerError as error:
            raise EnvFault(f"cannot read at {self.address}: {error}") from None
        return client

    def _hold_lock(self) -> None:
        """Holds the lock that says "alive", also after the server was restarted."""
        with self._lock:
            if not self._is_owner_lost:
                return
            if self._owner is not None:
                self._owner.close()
            self._owner = owner = self._connect_administrator()
            owner.query(f"SET wait_timeout = 2147483; DO GET_LOCK('{self._prefix}', 10)")
            self._is_owner_lost = False

    def _remove_leftovers(self, client: MySQLClient) -> None:
        names = client.query(
            "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME LIKE "
            r"'agentpeft\_%' UNION SELECT User FROM mysql.user WHERE User LIKE 'agentpeft\_%'"
        )
        for (name,) in names:
            token = str(name).rpartition("_")[0]
            if client.query(f"SELECT IS_USED_LOCK('{token}')") == [(None,)]:
                try:
                    _remove(client, str(name))
                except ServerError as error:
                    _LOGGER.warning("%s: leftover %s stays: %s", self.address, name, error)


def _remove(client: MySQLClient, name: str) -> None:
    drop = f"DROP USER IF EXISTS {name}@`%`; DROP DATABASE IF EXISTS {name}"
    try:
        client.query(drop)
    except ServerError as error:
        if error.errno != _LOCK_TIMEOUT:
            raise
        _end_other_holders(client, name)
        client.query(drop)


def _end_other_holders(client: MySQLClient, name: str) -> None:
    """Ends holders of a schema's locks: the account's connections, orphaned XA transactions."""
    held = client.query(f"SELECT ID FROM information_schema.PROCESSLIST WHERE USER = '{name}'")  # noqa: S608
    for (connection_id,) in held:
        _kill(client, int(str(connection_id)), "CONNECTION")
    for format_id, num_global, _, data in client.query("XA RECOVER"):
        number, length = int(str(format_id)), int(str(num_global))
        xid = data if isinstance(data, bytes) else str(data).encode()
        try:
            client.query(f"XA ROLLBACK X'{xid[:length].hex()}', X'{xid[length:].hex()}', {number}")
        except ServerError as error:  # another connection's, which is alive
            _LOGGER.debug("XA ROLLBACK: %s", error)


def _kill(client: MySQLClient, connection_id: int, what: str) -> None:
    try:
        client.query(f"KILL {what} {connection_id}")
    except ConnectionLostError:
        raise
    except ServerError as error:  # 1094: it has ended by itself
        _LOGGER.debug("KILL %s %s: %s", what, connection_id, error)


def _find_collation(client: MySQLClient) -> str:
    for collation in _COLLATIONS:
        try:
            client.query(f"SELECT _utf8mb4'a' COLLATE {collation}")
        except ServerError:
            continue
        return collation
    raise SettingsError(f"the server knows none of {', '.join(_COLLATIONS)}: is it MySQL >= 8?")


def _find_identification(client: MySQLClient, is_mariadb: bool) -> str:
    """Returns the clause for passwords: the native plugin if active, since it needs no TLS."""
    native = client.query(
        "SELECT 1 FROM information_schema.PLUGINS WHERE PLUGIN_NAME = 'mysql_native_password' "
        "AND PLUGIN_STATUS = 'ACTIVE'"
    )
    return (
        "IDENTIFIED WITH mysql_native_password BY" if native and not is_mariadb else "IDENTIFIED BY"
    )


def _check_accounts(client: MySQLClient, address: Address) -> None:
    """Raises: SettingsError where every account may use some schema, or we may not make any."""
    try:
        open_schemas = client.query("SELECT Db FROM mysql.db WHERE User IN ('', 'PUBLIC')")
    except ServerError as error:
        raise SettingsError(f"{address} is not an administrator's account: {error}") from None
    if open_schemas:
        raise SettingsError(
            f"{address}: every account may use schema {open_schemas[0][0]!r}; "
            "run mariadb-secure-installation (or mysql_secure_installation) on the server first"
        )
