"""The embedded backend: SQLite in memory that takes MySQL's statements and gives MySQL's answers.

A statement first runs in this process, for a moment (`_FAST_LANE_S`). What does not end by then, or
cannot be interrupted, starts again in a worker process under the full limits.
"""

import contextlib
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import replace

from agentpeft.envs.core.closing import Closable, gated
from agentpeft.envs.core.spaces import to_utf8
from agentpeft.envs.db_bench.backends.protocol import (
    DatabaseLimits,
    StatementResult,
    Table,
    TableContents,
    UnreadableTable,
)
from agentpeft.envs.db_bench.backends.sqlite.connection import (
    MAX_VALUE_BYTES,
    RUN_ERRORS,
    GuardedConnection,
    Transaction,
    TransactionResult,
)
from agentpeft.envs.db_bench.backends.sqlite.errors import PACKET_TOO_BIG, to_mysql_error, unhandled
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake, MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.statements import (
    Statement,
    parse_statements,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.deadline import StatementInterrupted
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.rows import to_mysql_rows
from agentpeft.envs.db_bench.backends.sqlite.mysql.translate import (
    StatementKind,
    Translation,
    translate,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Schema, quote_name
from agentpeft.envs.db_bench.backends.sqlite.tables import TableImages, check_schema, fill
from agentpeft.envs.db_bench.backends.sqlite.worker import Request, WorkerPool

_DATABASE_NAME = "db"
_COMMITTING = (
    StatementKind.BEGIN,
    StatementKind.COMMIT,
    StatementKind.DEFINITION,
)
_INTERNAL_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    sqlite3.Error,
)
"""What a statement that the dialect did not foresee may raise (not a fault of a worker process)."""
_FAST_LANE_S = 0.05
_FAST_LANE_VALUE_BYTES = 16 * 1024


class SqliteDatabase:
    """A `Database` in this process; sessions share its worker processes."""

    def __init__(self, limits: DatabaseLimits) -> None:
        """Starts nothing: workers start when a statement needs one."""
        self.limits = limits
        self.workers = WorkerPool()
        self.images = TableImages()

    def open(self, tables: Sequence[Table]) -> "SqliteSession":
        """Returns a session that holds `tables`. Raises: DataError."""
        return SqliteSession(self, tables)

    def close(self) -> None:
        """Ends the workers; idempotent."""
        self.workers.close()


class SqliteSession(Closable):
    """A `DatabaseSession`: one database in memory.

    `statement_timeout_s` bounds one call of `execute`, however many statements it runs. A
    transaction that the agent left open is rolled back by `read_table`, as if it had hung up.
    """

    def __init__(self, database: SqliteDatabase, tables: Sequence[Table]) -> None:
        super().__init__()
        self._limits = database.limits
        self._workers = database.workers
        schemas = tuple(check_schema(table.name, table.columns) for table in tables)
        self._schema = Schema(_DATABASE_NAME, schemas)
        self._before_transaction: tuple[bytes, Schema] | None = None
        self._autocommits = True
        image = database.images.find(tables)
        self._connection = GuardedConnection(self._limits.max_database_mib, image)
        if not image:
            fill(self._connection, tables)
            database.images.keep(tables, self._connection)

    @gated
    def execute(self, sql: str) -> StatementResult:
        """Runs the agent's SQL; see `DatabaseSession.execute`."""
        deadline_s = time.monotonic() + self._limits.statement_timeout_s
        result = StatementResult()
        try:
            if len(sql) > self._limits.max_statement_chars:
                raise PACKET_TOO_BIG
            text = to_utf8(sql)
            for statement in parse_statements(text):
                if time.monotonic() > deadline_s:
                    raise Mistake.TIMEOUT()
                result = self._run(statement, deadline_s)
        except MySQLError as error:
            is_timeout = error.number == Mistake.TIMEOUT().number
            return StatementResult(error=str(error), is_timeout=is_timeout)
        except RecursionError:
            return StatementResult(error=str(Mistake.STACK()))
        except _INTERNAL_ERRORS as error:
            return StatementResult(error=str(unhandled(error)))
        return result

    @gated
    def read_table(
        self, name: str, max_rows: int | None = None
    ) -> TableContents | UnreadableTable | None:
        """Returns a table as committed; see `DatabaseSession.read_table`."""
        self._roll_back()
        table = self._schema.by_name.get(name)
        if table is None:
            return None
        names = tuple(column.name for column in table.columns)
        columns = ", ".join(map(quote_name, names))
        limit = "" if max_rows is None else f" LIMIT {max_rows}"
        query = f"SELECT {columns} FROM {quote_name(name)}{limit}"  # noqa: S608
        types = tuple(column.type for column in table.columns)
        try:
            return TableContents(names, to_mysql_rows(self._connection.read(query), types))
        except RUN_ERRORS as error:
            return UnreadableTable(str(to_mysql_error(error, query)))

    def _release(self) -> None:
        self._connection.close()  # under a query it would end the process

    def _run(self, statement: Statement, deadline_s: float) -> StatementResult:
        translation = translate(statement, self._schema)
        kind = translation.kind
        if kind is StatementKind.ROLLBACK:
            self._roll_back()
        elif kind in _COMMITTING or (kind is StatementKind.AUTOCOMMIT_ON and not self._autocommits):
            self._before_transaction = None
        if kind in (StatementKind.AUTOCOMMIT_ON, StatementKind.AUTOCOMMIT_OFF):
            self._autocommits = kind is StatementKind.AUTOCOMMIT_ON
        begins = kind is StatementKind.WRITE and not self._autocommits
        if (begins or kind is StatementKind.BEGIN) and self._before_transaction is None:
            self._before_transaction = (self._connection.image(), self._schema)
        if not translation.sql:
            return StatementResult()
        result = self._run_translation(translation, deadline_s)
        self._schema = translation.schema or self._schema
        if kind is not StatementKind.READ:
            return StatementResult()
        rows = to_mysql_rows(result.rows, translation.types)
        return StatementResult(rows, is_cut=result.is_cut)

    def _roll_back(self) -> None:
        if self._before_transaction is not None:
            image, self._schema = self._before_transaction
            self._connection.restore(image)
            self._before_transaction = None

    def _run_translation(self, translation: Translation, deadline_s: float) -> TransactionResult:
        """Runs a statement in the lane that it needs. Raises: MySQLError, EnvFault."""
        is_ddl = translation.kind is StatementKind.DEFINITION
        transaction = Transaction(
            translation.sql,
            is_ddl,
            min(_FAST_LANE_S, deadline_s - time.monotonic()),
            self._limits.max_rows,
            _FAST_LANE_VALUE_BYTES,
        )
        try:
            with contextlib.suppress(StatementInterrupted, sqlite3.DataError):
                return self._connection.run(transaction)
            return self._run_in_worker(transaction, deadline_s)
        except RUN_ERRORS as error:
            raise to_mysql_error(error, transaction.sql[0]) from None

    def _run_in_worker(self, transaction: Transaction, deadline_s: float) -> TransactionResult:
        transaction = replace(
            transaction,
            timeout_s=max(deadline_s - time.monotonic(), 0.001),
            max_value_bytes=MAX_VALUE_BYTES,
        )
        connection = self._connection
        image = connection.image()
        reply = self._workers.run(Request(transaction, image, self._limits.max_database_mib))
        if reply.image != image:
            connection.restore(reply.image)
        return reply.result
