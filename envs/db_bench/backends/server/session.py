"""One episode on a MySQL-protocol server."""

import re
import time
from collections.abc import Callable, Sequence

from agentpeft.envs.core.errors import DataError, EnvFault
from agentpeft.envs.db_bench.backends.protocol import (
    StatementResult,
    Table,
    TableContents,
    UnreadableTable,
    Value,
    quote_name,
)
from agentpeft.envs.db_bench.backends.server.client import (
    ConnectionLostError,
    DeadlineError,
    MySQLClient,
    ResultLimits,
    ServerError,
)
from agentpeft.envs.db_bench.backends.server.server import MySQLServer, Slot
from agentpeft.envs.db_bench.backends.server.statement_growth import StatementGuard
from agentpeft.envs.db_bench.backends.server.watchdog import FULL, TIMEOUT, Watchdog
from agentpeft.envs.db_bench.backends.server.wording import compute_error_text, hide_names_in_rows

_TOO_LONG = StatementResult(
    error="1153 (08S01): Got a packet bigger than 'max_allowed_packet' bytes"
)
_GONE_ERRNOS = (1049, 1103, 1146)
_TOO_MANY_CONNECTIONS = 1226
_NO_ROOM = re.compile(
    r"(?:1004|1021|1026|1030|1037|1038|1041|1114) |1005 .*errno: (?:12|24|28|122|135)\b"
)
"""Errors of a server that has no disk, memory or descriptors left for a table."""
_CLIENT_GRACE_S = 0.5
"""Time for the server to end an overdue statement, before the client hangs up."""
_MOST_ROWS = 2**63
_TEXT_PER_STORED = 4
"""How much longer than on the server's disk a table's text may be."""
_SIZE_CHECK_S = 0.004
_INSERT_CHARS = 500_000
_TRAILING_COMMENT = re.compile(r";\s*(?:--\s|#)[^\n;'\"`]*$")
"""To the server it is another statement, whose empty result would hide the previous one."""


class MySQLSession:
    """A `DatabaseSession`: a schema, an account and the account's connection.

    `statement_timeout_s` bounds one call of `execute`, however many statements it runs.
    """

    def __init__(
        self,
        server: MySQLServer,
        watchdog: Watchdog,
        slot: Slot,
        client: MySQLClient,
        on_close: Callable[["MySQLSession"], None],
    ) -> None:
        """`on_close` gets the session when it is closed, once."""
        self.slot = slot
        self._server = server
        self._limits = server.limits
        self._watchdog = watchdog
        self._client: MySQLClient | None = client
        self._on_close: Callable[[MySQLSession], None] | None = on_close
        self._read_until_s: float | None = None
        self._guard = StatementGuard()

    def load(self, tables: Sequence[Table]) -> None:
        """Makes the tables. Raises: DataError, EnvFault (no room there), ConnectionLostError."""
        assert self._client is not None, "load() comes first"  # noqa: S101
        for table in tables:
            try:
                for statement in _load_statements(table):
                    self._client.query(statement)
            except ConnectionLostError:
                raise
            except ServerError as error:
                text = compute_error_text(error.text, "", self.slot.name)
                problem = f"table {table.name!r} cannot be made: {text}"
                if _NO_ROOM.match(error.text):
                    raise EnvFault(f"{problem} (server {self._server.address})") from None
                raise DataError(problem) from None

    def execute(self, sql: str) -> StatementResult:
        """Runs the agent's SQL; see `DatabaseSession.execute`.

        Running out of time or room is the agent's mistake only if the server works: on a full disk
        every write waits or fails. Raises: EnvFault where it does not.
        """
        result = self._execute(sql)
        if result.is_timeout or (result.error and _NO_ROOM.match(result.error)):
            self._server.check()
        return result

    def _execute(self, sql: str) -> StatementResult:
        if len(sql) > self._limits.max_statement_chars:
            return _TOO_LONG
        refusal = self._guard.find_refusal(sql)
        if refusal:
            return StatementResult(error=refusal)
        try:
            client = self._client or self._reconnect()
        except ServerError as error:  # the account's other connections still run what was killed
            return self._error(error, sql)
        sql = _TRAILING_COMMENT.sub("", sql)
        self._read_until_s = None
        started_s = time.monotonic()
        with self._watchdog.watch(client.connection_id, self.slot.name) as guard:
            result = self._run(client, sql)
        if result.is_cut or guard.result:  # a KILL was sent, and may not have arrived
            self._absorb_kill()
        if guard.result and not result.is_cut:
            return guard.result
        # A fast write cannot have written much, so only a slow one is worth asking for the size.
        is_slow_write = not result.rows and time.monotonic() - started_s > _SIZE_CHECK_S
        if is_slow_write and not result.is_timeout and self._is_over_size():
            return FULL
        return result

    def read_table(
        self, name: str, max_rows: int | None = None
    ) -> TableContents | UnreadableTable | None:
        """Returns a table as others see it: committed, and no temporary table.

        What the agent has not committed is rolled back first. Reading evaluates the agent's virtual
        columns, so it is done by the server's reader and within a statement's time, which all reads
        since the last `execute` share.
        """
        self._end_transaction()
        if self._read_until_s is None:
            self._read_until_s = time.monotonic() + self._limits.statement_timeout_s
        table = f"{quote_name(self.slot.name)}.{quote_name(name)}"
        statement = f"SELECT * FROM {table} LIMIT {_MOST_ROWS if max_rows is None else max_rows}"  # noqa: S608
        try:
            return self._read(statement, self._read_until_s)
        except DeadlineError:
            self._check_server()
            return UnreadableTable("it takes too long to read")
        except ConnectionLostError as error:
            raise EnvFault(f"lost the database at {self._server.address}: {error}") from None
        except ServerError as error:
            if error.errno in _GONE_ERRNOS:
                return None
            self._server.check()
            return UnreadableTable(compute_error_text(error.text, "", self.slot.name))

    def _read(self, statement: str, until_s: float) -> TableContents | UnreadableTable:
        limits = ResultLimits(
            max_bytes=_TEXT_PER_STORED * self._limits.max_database_mib * 2**20, deadline_s=until_s
        )
        with self._server.reader() as client:
            number = client.connection_id
            try:
                rows, is_cut = client.run(statement, limits, lambda: self._server.kill(number))
            except DeadlineError:
                self._server.kill(number, "CONNECTION")
                raise
            if client.is_closed:
                self._server.kill(number, "CONNECTION")
        if is_cut:
            return UnreadableTable("it is too large")
        return TableContents(client.columns, tuple(rows))

    def close(self) -> None:
        """Deletes the schema and the account; idempotent."""
        self._drop_client()
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close(self)

    def _run(self, client: MySQLClient, sql: str) -> StatementResult:
        number = client.connection_id
        until_s = time.monotonic() + self._limits.statement_timeout_s + _CLIENT_GRACE_S
        limits = ResultLimits(self._limits.max_rows, deadline_s=until_s)
        try:
            rows, is_cut = client.run(sql, limits, lambda: self._server.kill(number))
        except DeadlineError:
            self._hang_up(client)
            return TIMEOUT
        except ConnectionLostError as error:
            self._drop_client()
            self._check_server()
            return self._error(error, sql)
        except ServerError as error:
            return self._error(error, sql)
        if client.is_closed:
            self._hang_up(client)
        return StatementResult(hide_names_in_rows(rows, self.slot.name), is_cut=is_cut)

    def _hang_up(self, client: MySQLClient) -> None:
        """Closes a connection and kills it on the server, which may still be at work for it."""
        self._drop_client()
        self._server.kill(client.connection_id, "CONNECTION")

    def _error(self, error: ServerError, sql: str) -> StatementResult:
        return StatementResult(error=compute_error_text(error.text, sql, self.slot.name))

    def _reconnect(self) -> MySQLClient:
        """Connects again. Raises: EnvFault, ServerError where the account is at its limit."""
        try:
            self._server.reset_password(self.slot)
            self._client = self._server.connect_agent(self.slot)
        except ServerError as error:
            if error.errno == _TOO_MANY_CONNECTIONS:
                raise
            raise EnvFault(f"lost the database at {self._server.address}: {error}") from None
        return self._client

    def _check_server(self) -> None:
        """Raises: EnvFault if it was the server that went, and not only the connection."""
        with self._server.administrator() as administrator:
            administrator.query("DO 0")

    def _absorb_kill(self) -> None:
        """Runs an idle statement for a late KILL to hit, in place of the agent's next one."""
        try:
            if self._client is not None:
                self._client.query("DO 0", _CLIENT_GRACE_S)
        except ConnectionLostError:
            self._drop_client()
        except ServerError:
            pass

    def _end_transaction(self) -> None:
        client = self._client
        if client is None or not client.is_in_transaction:
            return
        try:
            client.query("ROLLBACK", _CLIENT_GRACE_S)
        except DeadlineError:
            self._hang_up(client)
        except ServerError:  # an XA transaction: it ends with its connection
            self._drop_client()

    def _is_over_size(self) -> bool:
        try:
            size_mib = self._server.compute_size_mib(self.slot.name)
        except ServerError:
            self._server.check()
            return True  # the agent has made it unmeasurable, so it counts as too large
        return size_mib > self._limits.max_database_mib

    def _drop_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _load_statements(table: Table) -> list[str]:
    """Returns the statements that make a table, of about half a million characters each.

    Values are texts: the server converts them.
    """
    name = quote_name(table.name)
    columns = ", ".join(f"{quote_name(column.name)} {column.type}" for column in table.columns)
    statements = [f"CREATE TABLE {name} ({columns})"]
    separator, num_chars = f"; INSERT INTO {name} VALUES ", 0  # noqa: S608
    for row in table.rows:
        text = f"({', '.join(map(_quote_value, row))})"
        if num_chars > _INSERT_CHARS:
            statements.append("")
            separator, num_chars = f"INSERT INTO {name} VALUES ", 0  # noqa: S608
        statements[-1] += separator + text
        separator = ", "
        num_chars += len(text)
    return statements


def _quote_value(value: Value) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    text = str(int(value) if isinstance(value, bool) else value)
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
