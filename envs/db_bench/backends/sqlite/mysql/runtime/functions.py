"""MySQL's functions as Python functions of a SQLite connection: short, and bounded in output.

Each looks at the statement's deadline as it begins. Nothing interrupts a call: it takes time linear
in its arguments, or tells the deadline how much it may take.
"""

import random
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake, MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.aggregation import AGGREGATES, Window
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.collation import collation_key
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.date_functions import DATE_FUNCTIONS
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.deadline import (
    Deadline,
    StatementInterrupted,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.number_functions import NUMBER_FUNCTIONS
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.regular_expressions import (
    REGEXP_FUNCTIONS,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.rows import Function, SQLiteValue
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.storage import stored_value
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.text_functions import (
    NULLABLE_TEXT_FUNCTIONS,
    TEXT_FUNCTIONS,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import parse_type

_RANDOM = random.Random()
"""RAND()'s own state: what an agent draws leaves its host's random numbers as they are."""


class FunctionState:
    """What the functions of one connection keep: the error behind SQLite's, and @variables."""

    def __init__(self) -> None:
        self.error: MySQLError | StatementInterrupted | None = None
        self.variables: dict[str, SQLiteValue] = {}

    def set_variable(self, name: str, value: SQLiteValue) -> SQLiteValue:
        """Keeps an @variable and returns its value."""
        self.variables[name] = value
        return value

    def take(self) -> MySQLError | StatementInterrupted | None:
        """Returns the last error and forgets it."""
        error, self.error = self.error, None
        return error


def _single_row(count: int, value: SQLiteValue) -> SQLiteValue:
    if count > 1:
        raise Mistake.SUBQUERY_ROWS()
    return value


def _row_key(*values: SQLiteValue) -> str:
    return repr([collation_key(value) if isinstance(value, str) else value for value in values])


def _bigint(value: SQLiteValue) -> SQLiteValue:
    """An integer that went over SQLite's range is a floating-point number by now."""
    if isinstance(value, float) and not abs(value) < 1 << 63:
        raise Mistake.NUMBER_RANGE("BIGINT", f"{value:.20g}")
    return value


def _store(
    value: SQLiteValue, declared: str, column: str, row: int, is_lenient: int
) -> SQLiteValue:
    return stored_value(value, parse_type(declared), column, row, is_lenient=bool(is_lenient))


def _sleep(deadline: Deadline, seconds: float) -> int:
    if seconds > 0.05:
        raise Mistake.TIMEOUT()
    if time.monotonic() + seconds > deadline.end_s:
        raise StatementInterrupted
    time.sleep(max(seconds, 0))
    return 0


_NULL_IS_NULL = {
    **TEXT_FUNCTIONS,
    **NUMBER_FUNCTIONS,
    **DATE_FUNCTIONS,
    "row_key": _row_key,
}
_TIMED: dict[str, Function] = {**REGEXP_FUNCTIONS, "sleep": _sleep}
"""They take the deadline first; each gives NULL where an argument is NULL."""
_FUNCTIONS: dict[str, Function] = {
    **NULLABLE_TEXT_FUNCTIONS,
    "rand": lambda *seed: (random.Random(*seed) if seed else _RANDOM).random(),
    "single_row": _single_row,
    "store": _store,
    "bigint": _bigint,
    "isnull": lambda value: int(value is None),
}


def _nullable(function: Function) -> Function:
    """Makes a function return NULL where an argument is NULL."""

    def call(*arguments: SQLiteValue) -> SQLiteValue:
        return None if None in arguments else function(*arguments)

    return call


_ALL = {**{name: _nullable(function) for name, function in _NULL_IS_NULL.items()}, **_FUNCTIONS}


def install_functions(
    connection: sqlite3.Connection, deadline: Deadline | None = None
) -> FunctionState:
    """Gives a connection MySQL's functions; the result holds the errors that they raise."""
    state = FunctionState()
    deadline = deadline or Deadline()

    def guarded(function: Function, window: Window | None = None) -> Function:
        """Looks at the deadline before each call, and keeps the error: SQLite hides it.

        The characters that a window holds count as work: computing its value reads them all.
        """

        def call(*arguments: SQLiteValue) -> SQLiteValue:
            try:
                deadline.check(window.num_chars if window else 0)
                return function(*arguments)
            except (MySQLError, StatementInterrupted) as error:
                state.error = error
                raise

        return call

    def make_window(aggregate: Callable[[], Window]) -> SimpleNamespace:
        window = aggregate()
        step, inverse = guarded(window.step, window), guarded(window.inverse, window)
        value = guarded(window.value, window)
        return SimpleNamespace(step=step, inverse=inverse, value=value, finalize=value)

    timed = {name: _nullable(partial(function, deadline)) for name, function in _TIMED.items()}
    for name, function in (_ALL | timed).items():
        connection.create_function(f"my_{name}", -1, guarded(function))
    for name, aggregate in AGGREGATES.items():
        connection.create_window_function(f"my_{name}", -1, partial(make_window, aggregate))
    connection.create_function("my_get", 1, state.variables.get)
    connection.create_function("my_set", 2, state.set_variable)
    return state
