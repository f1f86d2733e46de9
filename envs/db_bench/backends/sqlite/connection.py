"""A SQLite connection that runs hostile SQL: authorizer, limits, deadline, bounded results.

Every function and comparison that Python does looks at the deadline; SQLite's own steps are
interrupted. One call in C is not: what may take long inside one (a statement whose common table
expressions multiply) is to run in a worker process. Nor is memory bounded here other than by time:
see `worker`. Ctrl-C is raised after the statement that it ends (`_hearing_ctrl_c`).
"""

import signal
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.collation import install_collation
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.deadline import (
    Deadline,
    StatementInterrupted,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.functions import RuntimeFunctions
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import SQLiteValue

SqliteRow = tuple[SQLiteValue, ...]

MAX_VALUE_BYTES = 256 * 1024
_MAX_RESULT_BYTES = 4 * 1024 * 1024
_PAGE_BYTES = 4096
_OPERATIONS_BETWEEN_CHECKS = 1000
_LIMITS = (
    (sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES),
    (sqlite3.SQLITE_LIMIT_SQL_LENGTH, MAX_VALUE_BYTES),
    (sqlite3.SQLITE_LIMIT_COLUMN, 500),
    (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 500),
    (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 100),
    (sqlite3.SQLITE_LIMIT_VDBE_OP, 500_000),
    (sqlite3.SQLITE_LIMIT_FUNCTION_ARG, 100),
    (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 200),
    (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
    (sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 10),
    (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
)
_ROW_ACTIONS = frozenset(
    (
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_INSERT,
        sqlite3.SQLITE_UPDATE,
        sqlite3.SQLITE_DELETE,
    )
)
_ANY_ACTIONS = frozenset((sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE))
_SCHEMA_ACTIONS = _ROW_ACTIONS | frozenset(
    (
        sqlite3.SQLITE_CREATE_TABLE,
        sqlite3.SQLITE_DROP_TABLE,
        sqlite3.SQLITE_ALTER_TABLE,
        sqlite3.SQLITE_CREATE_INDEX,
        sqlite3.SQLITE_DROP_INDEX,
        sqlite3.SQLITE_REINDEX,
        sqlite3.SQLITE_FUNCTION,
    )
)
_DENIED_FUNCTIONS = frozenset(
    ("load_extension", "zeroblob", "randomblob", "fts3_tokenizer", "sqlite_compileoption_get")
)


RUN_ERRORS = (
    sqlite3.Error,
    MySQLError,
    StatementInterrupted,
    UnicodeError,
    MemoryError,
)
"""What `GuardedConnection.run` raises."""


@dataclass(frozen=True)
class Transaction:
    """Statements for SQLite, all or none; the result is the last one's.

    `is_ddl`: they may change the schema. `timeout_s` is for all.
    `max_value_bytes` bounds each value, and so the time that one function call takes.
    """

    sql: tuple[str, ...]
    is_ddl: bool
    timeout_s: float
    max_rows: int
    max_value_bytes: int = MAX_VALUE_BYTES


@dataclass(frozen=True)
class TransactionResult:
    """A statement's rows; `is_cut`: there were more."""

    rows: list[SqliteRow]
    is_cut: bool


class GuardedConnection:
    """A database in memory."""

    def __init__(self, max_database_mib: int, image: bytes = b"") -> None:
        """`image`: what the database begins as."""
        self._deadline = Deadline()
        self._is_ddl = False
        self._is_trusted = True
        self._is_guarded = False
        self._max_value_bytes = MAX_VALUE_BYTES
        self._max_pages: int | None = max_database_mib * 1024**2 // _PAGE_BYTES
        self._connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False, cached_statements=0
        )
        connection = self._connection
        self._functions = RuntimeFunctions(connection, self._deadline)
        if image:
            connection.deserialize(image)
        connection.execute("PRAGMA temp_store = MEMORY")
        for category, limit in _LIMITS:
            connection.setlimit(category, limit)
        install_collation(connection, self._deadline)

    def fill(self, ddl: str, insert: str, rows: Sequence[SqliteRow]) -> None:
        """Creates a table and its rows. Raises: sqlite3.Error (the connection is lost then)."""
        self._connection.execute("BEGIN")
        self._connection.execute(ddl)
        self._connection.executemany(insert, rows)
        self._connection.execute("COMMIT")

    def run(self, transaction: Transaction) -> TransactionResult:
        """Runs a transaction; one that fails leaves nothing behind.

        Raises: StatementInterrupted, MySQLError (a function's), sqlite3.Error, UnicodeError,
        MemoryError.
        """
        is_query = len(transaction.sql) == 1 and transaction.sql[0].startswith("SELECT")
        if self._max_pages is not None and not is_query:
            self._connection.execute(f"PRAGMA max_page_count = {self._max_pages}")
            self._max_pages = None  # set once, and not for queries: that would cost them time
        for sql in transaction.sql:
            self._functions.install(sql)
        self._deadline.start(transaction.timeout_s, self._connection.interrupt)
        try:
            with _hearing_ctrl_c(self._deadline):
                return self._run_in_transaction(transaction, not is_query)
        finally:
            self._deadline.stop()

    def _run_in_transaction(
        self, transaction: Transaction, is_transaction: bool
    ) -> TransactionResult:
        """Runs it; a comparison that missed the deadline may have spoilt what it wrote."""
        connection = self._connection
        is_transaction = is_transaction and not connection.in_transaction
        if is_transaction:
            connection.execute("BEGIN")
        try:
            result = self._run_guarded(transaction)
            if is_transaction:
                connection.execute("COMMIT")
            return result
        finally:
            if is_transaction and connection.in_transaction:
                connection.execute("ROLLBACK")

    def _run_guarded(self, transaction: Transaction) -> TransactionResult:
        if not self._is_guarded:  # from here on; making the task's tables is quicker without
            self._connection.set_authorizer(self._authorize)
            self._connection.set_progress_handler(
                self._deadline.is_over, _OPERATIONS_BETWEEN_CHECKS
            )
            self._is_guarded = True
        cursor = self._connection.cursor()
        self._is_ddl = transaction.is_ddl
        self._is_trusted = False
        self._limit_values(transaction.max_value_bytes)
        try:
            for sql in transaction.sql:
                cursor.execute(sql)
            result = _fetch(cursor, transaction.max_rows)
            if self._deadline.is_missed:
                raise StatementInterrupted
            if self._deadline.refusal is not None:
                raise self._deadline.refusal
            return result
        except (sqlite3.OperationalError, sqlite3.IntegrityError) as error:
            cause = self._functions.take_error()
            if self._deadline.refusal is not None:
                raise self._deadline.refusal from None
            is_late = self._deadline.is_missed or isinstance(cause, StatementInterrupted)
            if is_late or vars(error).get("sqlite_errorcode") == sqlite3.SQLITE_INTERRUPT:
                raise StatementInterrupted from None
            raise cause or error from None
        finally:
            self._is_trusted = True
            cursor.close()

    def _limit_values(self, max_value_bytes: int) -> None:
        if max_value_bytes != self._max_value_bytes:
            self._max_value_bytes = max_value_bytes
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max_value_bytes)

    def read(self, sql: str) -> list[SqliteRow]:
        """Returns all rows of a query of the grader's, without a limit."""
        self._limit_values(MAX_VALUE_BYTES)
        return self._connection.execute(sql).fetchall()

    def image(self) -> bytes:
        """Returns the database as bytes, none for a database without tables."""
        if self.read("PRAGMA page_count") == [(0,)]:
            return b""  # SQLite cannot serialize it
        return self._connection.serialize()

    def restore(self, image: bytes) -> None:
        """Replaces the database; the limits stay."""
        source = sqlite3.connect(":memory:")
        if image:
            source.deserialize(image)
        source.backup(self._connection)
        source.close()

    def close(self) -> None:
        """Frees the database; idempotent."""
        self._connection.close()

    def _authorize(
        self,
        action: int,
        name: str | None,
        detail: str | None,
        _database: str | None,
        _by: str | None,
    ) -> int:
        if self._is_trusted or action in _ANY_ACTIONS:
            return sqlite3.SQLITE_OK
        if self._is_ddl:
            is_check = action == sqlite3.SQLITE_PRAGMA and name == "quick_check"
            is_allowed = is_check or action in _SCHEMA_ACTIONS
        elif action == sqlite3.SQLITE_FUNCTION:
            is_allowed = detail not in _DENIED_FUNCTIONS
        else:
            is_allowed = action in _ROW_ACTIONS and not (name or "").startswith("sqlite_")
        return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY


@contextmanager
def _hearing_ctrl_c(deadline: Deadline) -> Iterator[None]:
    """Within it Ctrl-C ends the statement, then raises KeyboardInterrupt.

    Python raises it in whatever bytecode comes next, mostly in a function that SQLite calls; and
    SQLite swallows what that raises. A handler of one's own, and other threads, are left alone.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: deadline.miss(is_cancelled=True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if deadline.is_cancelled:
            raise KeyboardInterrupt


def _fetch(cursor: sqlite3.Cursor, max_rows: int) -> TransactionResult:
    """Returns at most `max_rows` rows and `_MAX_RESULT_BYTES` bytes of text."""
    rows: list[SqliteRow] = []
    num_bytes = 0
    for row in cursor:
        if len(rows) == max_rows or num_bytes > _MAX_RESULT_BYTES:
            return TransactionResult(rows, is_cut=True)
        rows.append(row)
        for value in row:
            if isinstance(value, (str, bytes)):
                num_bytes += len(value)
    return TransactionResult(rows, is_cut=False)
