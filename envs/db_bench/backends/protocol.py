"""The protocol of DB-bench's database backends: one session per episode, MySQL on the outside."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple, Protocol, TypeAlias

from agentpeft.envs.core.errors import check_count, check_duration

Value: TypeAlias = int | float | str | bytes | Decimal | date | datetime | timedelta | None
Row: TypeAlias = tuple[Value, ...]


def quote_name(name: str) -> str:
    """Returns an identifier in MySQL's backticks."""
    return "`" + name.replace("`", "``") + "`"


class Column(NamedTuple):
    """A column: its name and its MySQL type as written, such as `VARCHAR(40)`."""

    name: str
    type: str


@dataclass(frozen=True)
class Table:
    """A table to begin an episode with."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class DatabaseLimits:
    """Limits of one episode.

    `max_rows`: rows of a result that are fetched. `max_database_mib`: size of all its tables.
    """

    statement_timeout_s: float = 5.0
    max_rows: int = 1000
    max_database_mib: int = 16
    max_statement_chars: int = 20_000

    def __post_init__(self) -> None:
        """Raises: SettingsError on a limit that is not above 0, or no integer but the time."""
        check_duration("statement_timeout_s", self.statement_timeout_s)
        for name in ("max_rows", "max_database_mib", "max_statement_chars"):
            check_count(name, getattr(self, name))


@dataclass(frozen=True)
class StatementResult:
    """The result of the agent's SQL: rows (none for a write) or MySQL's error text.

    `error` looks like `1146 (42S02): Table 'db.x' doesn't exist`. `is_timeout`: the statement was
    stopped at its time limit. `is_cut`: there were more than `max_rows` rows.
    """

    rows: tuple[Row, ...] = ()
    error: str | None = None
    is_timeout: bool = False
    is_cut: bool = False

    def to_text(self, max_chars: int) -> str:
        """Returns the result as LifelongAgentBench prints it: `[('a', 1)]`, or the error."""
        text = self.error if self.error is not None else str(list(self.rows))
        if len(text) > max_chars:
            return f"{text[:max_chars]}… [cut: {len(text)} characters in all]"
        if self.is_cut:
            return f"{text} [cut: only the first {len(self.rows)} rows]"
        return text


@dataclass(frozen=True)
class TableContents:
    """A table as the grader reads it: column names and all rows, in no particular order."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class UnreadableTable:
    """A table that the agent left unreadable within a statement's time."""

    reason: str


class DatabaseSession(Protocol):
    """One episode's database. Nothing done here is visible to any other session."""

    def execute(self, sql: str) -> StatementResult:
        """Runs the agent's SQL: one statement, or several in turn with the last one's result.

        Stops at the first error. The agent's mistakes and timeouts are results, not exceptions.
        Raises: EnvFault where the server is gone.
        """
        ...

    def read_table(
        self, name: str, max_rows: int | None = None
    ) -> TableContents | UnreadableTable | None:
        """Returns a table as the agent left it, None if it is gone.

        At most `max_rows` rows are read. What the agent made of the table is never a fault, nor is
        anything of it run with more rights or time than the agent's own. Raises: EnvFault where the
        server is gone.
        """
        ...

    def close(self) -> None:
        """Deletes the episode's database; idempotent."""
        ...


class Database(Protocol):
    """A backend that opens sessions; thread-safe."""

    def open(self, tables: Sequence[Table]) -> DatabaseSession:
        """Returns a new session that holds exactly `tables`.

        Raises: DataError for tables that no MySQL server could hold, EnvFault.
        """
        ...

    def close(self) -> None:
        """Releases servers and connections; idempotent."""
        ...
