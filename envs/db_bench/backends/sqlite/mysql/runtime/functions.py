"""MySQL's functions as Python functions of a SQLite connection: short, and bounded in output.

Each looks at the statement's deadline as it begins. Nothing interrupts a call: it takes time linear
in its arguments.
"""

import math
import re
import sqlite3
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake, MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime import collation, rows
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.dates import DATE_FUNCTIONS
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.deadline import (
    Deadline,
    StatementInterrupted,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Function, SQLiteValue, parse_type

MAX_TEXT_CHARS = 1 << 20
_NAMED = re.compile(r"\bmy_(\w+)\(", re.ASCII)
_WHOLE = re.compile(r"\s*[+-]?\d+", re.ASCII)
_MAX_WHOLE_CHARS = 18
_NINE_DIGITS = rows.decimal_unit(9)
_CONTEXT = Context(prec=400)


def _upper(text: str) -> str:
    """Returns a text in capitals: MySQL changes no character into two ('ß' stays)."""
    if text.isascii():
        return text.upper()
    return "".join(c.upper() if len(c.upper()) == 1 else c for c in text)


def _substring(text: str, start: int, length: int = MAX_TEXT_CHARS) -> str:
    if start == 0 or length <= 0 or abs(start) > len(text):
        return ""
    first = start - 1 if start > 0 else len(text) + start
    return text[first : first + length]


def _repeat(text: str, count: int) -> str:
    if len(text) * count > MAX_TEXT_CHARS:
        raise Mistake.NOT_SUPPORTED("REPEAT to a text so long")
    return text * count


def _instr(text: str, part: str) -> int:
    if not (part.isascii() and text.isascii()):
        raise Mistake.NOT_SUPPORTED("INSTR of characters beyond ASCII")
    return text.lower().find(part.lower()) + 1


def _quotient(left: float, right: float) -> float | None:
    """Returns a quotient with nine decimals, the rest cut off, as MySQL calculates it."""
    if not right:
        return None
    quotient = Decimal(repr(left)) / Decimal(repr(right))
    return float(quotient.quantize(_NINE_DIGITS, rounding=ROUND_DOWN, context=_CONTEXT))


def _in_64_bits(number: int) -> int:
    if not -(1 << 63) <= number < 1 << 63:
        raise Mistake.NOT_SUPPORTED("integers beyond 64 bits with a sign")
    return number


def _double(number: int) -> float:
    if abs(number) > 1 << 53:
        raise Mistake.NOT_SUPPORTED("an integer of over 53 bits beside a floating-point number")
    return float(number)


def _round(value: float, places: int, is_decimal: int) -> float | int:
    if isinstance(value, int) and places >= 0:
        return value
    if is_decimal:
        unit = rows.decimal_unit(places)
        result = rows.exact_decimal(value).quantize(unit, rounding=ROUND_HALF_UP, context=_CONTEXT)
        return _in_64_bits(int(result)) if isinstance(value, int) else float(result)
    factor = 10.0 ** abs(places)
    scaled = value * factor if places >= 0 else value / factor
    if abs(scaled) > 1e15:
        return value
    return round(scaled) / factor if places >= 0 else round(scaled) * factor


def _whole(number: int) -> float | int:
    return number if abs(number) < 1 << 63 else float(number)


def _number(text: str) -> float:
    """Returns the number that a text is, where a statement changes tables."""
    if not rows.NUMBER.fullmatch(text):
        raise Mistake.TRUNCATED_NUMBER(text)
    return float(text)


def _divisor(value: SQLiteValue) -> SQLiteValue:
    if value == 0:
        raise Mistake.DIVISION_BY_ZERO()
    return value


def _cast_integer(value: float, is_decimal: int) -> int:
    number = int(rows.to_decimal(value, 0)) if is_decimal else round(value)
    return min(max(number, -(1 << 63)), (1 << 63) - 1)


def _bigint(value: SQLiteValue) -> SQLiteValue:
    """An integer that went over SQLite's range is a floating-point number by now."""
    if isinstance(value, float):
        raise Mistake.NUMBER_RANGE("BIGINT", f"{value:.20g}")
    return value


def _text_integer(text: str) -> int:
    """Returns the whole number that a text begins with."""
    match = _WHOLE.match(text)
    if match and len(match[0]) > _MAX_WHOLE_CHARS:
        raise Mistake.NOT_SUPPORTED("CAST of a text of so many digits AS SIGNED")
    return int(match[0]) if match else 0


def _unsigned(value: int) -> int:
    if value < 0:
        raise Mistake.NOT_SUPPORTED("CAST of a number below zero AS UNSIGNED")
    return value


def _too_many_rows() -> SQLiteValue:
    raise Mistake.SUBQUERY_ROWS()


_FUNCTIONS: dict[str, Function] = {
    **DATE_FUNCTIONS,
    "upper": _upper,
    "lower": lambda text: (  # 'İ' is one character
        text.lower() if text.isascii() else "".join(c.lower()[0] for c in text)
    ),
    "fold_text": collation.fold_text,
    "fold_pattern": collation.fold_pattern,
    "right": lambda text, count: text[-count:] if count > 0 else "",
    "substring": _substring,
    "left": lambda text, count: text[: max(count, 0)],
    "char_length": len,
    "repeat": _repeat,
    "instr": _instr,
    "quotient": _quotient,
    "mean": _quotient,
    "double": _double,
    "round": _round,
    "ceil": lambda value: _whole(math.ceil(value)),
    "floor": lambda value: _whole(math.floor(value)),
    "decimal_text": lambda value, scale: f"{rows.to_decimal(value, scale):f}",
    "float_text": lambda value, digits: rows.float_text(float(f"{value:.{digits}g}")),
    "cast_integer": _cast_integer,
    "text_integer": _text_integer,
    "unsigned": _unsigned,
    "number": _number,
    "divisor": _divisor,
    "too_many_rows": _too_many_rows,
    "bigint": _bigint,
    "store": lambda value, declared, column, row: rows.stored_value(
        value, parse_type(declared, is_task=True), column, row
    ),
}
"""Each gives NULL where an argument is NULL."""


class RuntimeFunctions:
    """MySQL's functions of a connection, which gets each when a statement first names it.

    Most sessions need two or three: to give it all of them takes longer than a statement.
    """

    def __init__(self, connection: sqlite3.Connection, deadline: Deadline | None = None) -> None:
        """The functions look at `deadline`; None is none."""
        self._connection = connection
        self._deadline = deadline or Deadline()
        self._missing = set(_FUNCTIONS)
        self._error: MySQLError | StatementInterrupted | None = None

    def install(self, sql: str) -> None:
        """Gives the connection the functions that a statement names."""
        for name in self._missing.intersection(_NAMED.findall(sql)):
            self._connection.create_function(f"my_{name}", -1, self._guarded(_FUNCTIONS[name]))
            self._missing.discard(name)

    def take_error(self) -> MySQLError | StatementInterrupted | None:
        """Returns the last error that a function raised, and forgets it: SQLite hides it."""
        error, self._error = self._error, None
        return error

    def _guarded(self, function: Function) -> Function:
        """Looks at the deadline before each call, and keeps the error."""

        def call(*arguments: SQLiteValue) -> SQLiteValue:
            try:
                self._deadline.check()
                return None if None in arguments else function(*arguments)
            except (MySQLError, StatementInterrupted) as error:
                self._error = error
                raise

        return call
