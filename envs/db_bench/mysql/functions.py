"""MySQL's functions as Python functions of a SQLite connection: short, and bounded in output.

A statement's time limit cannot interrupt one of them; regular expressions, the only ones that can
run away, belong into a worker process (`Translation.needs_worker`).
"""

import random
import sqlite3
import time
from collections.abc import Callable
from functools import wraps

from agentpeft.envs.db_bench.mysql.aggregation import AGGREGATES
from agentpeft.envs.db_bench.mysql.collation import collation_key
from agentpeft.envs.db_bench.mysql.date_functions import DATE_FUNCTIONS
from agentpeft.envs.db_bench.mysql.errors import Mistake, MySQLError
from agentpeft.envs.db_bench.mysql.number_functions import NUMBER_FUNCTIONS
from agentpeft.envs.db_bench.mysql.rows import SQLiteValue
from agentpeft.envs.db_bench.mysql.storage import stored_value
from agentpeft.envs.db_bench.mysql.text_functions import NULLABLE_TEXT_FUNCTIONS, TEXT_FUNCTIONS
from agentpeft.envs.db_bench.mysql.types import parse_type

_RANDOM = random.Random()
"""RAND()'s own state: what an agent draws leaves its host's random numbers as they are."""
Function = Callable[..., SQLiteValue]


class FunctionErrors:
    """What the functions of one connection keep: the error behind SQLite's, and @variables."""

    def __init__(self) -> None:
        self.error: MySQLError | None = None
        self.variables: dict[str, SQLiteValue] = {}

    def set_variable(self, name: str, value: SQLiteValue) -> SQLiteValue:
        """Keeps an @variable and returns its value."""
        self.variables[name] = value
        return value

    def take(self) -> MySQLError | None:
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


def _sleep(seconds: float) -> int:
    if seconds > 0.05:
        raise Mistake.TIMEOUT()
    time.sleep(max(seconds, 0))
    return 0


_NULL_IS_NULL = {
    **TEXT_FUNCTIONS,
    **NUMBER_FUNCTIONS,
    **DATE_FUNCTIONS,
    "row_key": _row_key,
    "sleep": _sleep,
}
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

    @wraps(function)
    def call(*arguments: SQLiteValue) -> SQLiteValue:
        return None if None in arguments else function(*arguments)

    return call


_ALL = {**{name: _nullable(function) for name, function in _NULL_IS_NULL.items()}, **_FUNCTIONS}


def install_functions(connection: sqlite3.Connection) -> FunctionErrors:
    """Gives a connection MySQL's functions; the result holds the errors that they raise."""
    errors = FunctionErrors()

    def guarded(function: Function) -> Function:
        def call(*arguments: SQLiteValue) -> SQLiteValue:
            try:
                return function(*arguments)
            except MySQLError as error:
                errors.error = error
                raise

        return call

    for name, function in _ALL.items():
        connection.create_function(f"my_{name}", -1, guarded(function))
    for name, aggregate in AGGREGATES.items():
        connection.create_window_function(f"my_{name}", -1, aggregate)
    connection.create_function("my_get", 1, errors.variables.get)
    connection.create_function("my_set", 2, errors.set_variable)
    return errors
