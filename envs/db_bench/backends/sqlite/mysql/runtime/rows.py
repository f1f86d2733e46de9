"""Values: what a strict MySQL column stores of them, and as what mysql-connector returns them."""

import math
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache
from typing import Any

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.dates import normalize
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    FLOATS,
    MAX_EXACT_DIGITS,
    TEMPORALS,
    Kind,
    Row,
    SQLiteValue,
    SqlType,
    Value,
)

_CONTEXT = Context(prec=400, rounding=ROUND_HALF_UP)
NUMBER = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*", re.ASCII)
"""A number in a text, which may go on after it; the group is without spaces."""
_MAX_FLOAT = 3.4028234663852886e38


@lru_cache(maxsize=64)
def decimal_unit(scale: int) -> Decimal:
    """Returns 10 to the power of -scale."""
    return Decimal((0, (1,), -scale))


def check_digits(value: float, scale: int) -> None:
    """Raises: MySQLError (1235) for a decimal of more digits than a double tells apart."""
    if isinstance(value, float) and not abs(value) < 10.0 ** (MAX_EXACT_DIGITS - scale):
        raise Mistake.NOT_SUPPORTED(f"decimals of more than {MAX_EXACT_DIGITS} digits")


def exact_decimal(value: int | float | str) -> Decimal:
    """Returns the decimal that a double stands for: the digits that it tells apart.

    >>> exact_decimal(0.35 / 10)
    Decimal('0.035')
    """
    return Decimal(f"{value:.{MAX_EXACT_DIGITS}g}" if isinstance(value, float) else value)


def to_decimal(value: int | float | str, scale: int) -> Decimal:
    """Returns the decimal nearest to a value, halves away from zero.

    >>> to_decimal(2.345, 2)
    Decimal('2.35')
    """
    result = exact_decimal(value).quantize(decimal_unit(scale), context=_CONTEXT)
    return result or abs(result)  # no negative zero


def _to_integer(value: SQLiteValue) -> Value:
    if isinstance(value, float) and not abs(value) < 1 << 63:  # nor NaN
        raise Mistake.NUMBER_RANGE("BIGINT", f"{value:.20g}")
    return round(value) if isinstance(value, float) else value


def _to_double(value: SQLiteValue) -> Value:
    if isinstance(value, float) and math.isinf(value):
        raise Mistake.NUMBER_RANGE("DOUBLE", "an expression")
    return value + 0.0 if isinstance(value, int | float) else value  # no negative zero


def _read_time(text: str) -> timedelta:
    hours, minutes, seconds = map(int, text.split(":"))
    return timedelta(hours=hours, minutes=minutes, seconds=seconds)


_CONVERTERS: dict[Kind, Callable[[Any], Value]] = {
    Kind.INTEGER: _to_integer,
    Kind.FLOAT: lambda value: float(f"{value:.6g}"),
    Kind.DOUBLE: _to_double,
    Kind.DATE: date.fromisoformat,
    Kind.DATETIME: datetime.fromisoformat,
    Kind.TIME: _read_time,
}
"""Of temporal kinds there is nothing but ISO's form: what columns hold, and `dates` returns."""


@lru_cache(maxsize=64)
def _decimal_converter(scale: int) -> Callable[[Any], Value]:
    def convert(value: SQLiteValue) -> Value:
        if not isinstance(value, int | float):
            return None
        check_digits(value, scale)
        return to_decimal(value, scale)

    return convert


def _converter(kind: SqlType) -> Callable[[Any], Value] | None:
    if kind.kind is Kind.DECIMAL:
        return _decimal_converter(kind.scale)
    return _CONVERTERS.get(kind.kind)


def to_mysql_rows(
    rows: Iterable[Sequence[SQLiteValue]], types: tuple[SqlType, ...]
) -> tuple[Row, ...]:
    """Returns SQLite's rows with values as mysql-connector gives them.

    `types` is empty for statements without a result. Raises: MySQLError (1235, 1690) for a value
    that its type cannot hold, and nothing else whatever is stored.
    """
    converters = [_converter(kind) for kind in types]
    return tuple(
        tuple(
            value if convert is None or value is None else convert(value)
            for convert, value in zip(converters, row, strict=True)
        )
        for row in rows
    )


def stored_value(value: Value, kind: SqlType, column: str, row: int = 1) -> SQLiteValue:
    """Returns what SQLite holds for a value in a column of this type; `row` is for the error.

    Raises: MySQLError (1235, 1264, 1265, 1292, 1366, 1406).
    """
    if value is None:
        return None
    if kind.kind is Kind.TEXT:
        return _stored_text(value, kind, column, row)
    if kind.kind in TEMPORALS:
        text = normalize(str(value), kind.kind)
        if text is None:
            raise Mistake.BAD_TEMPORAL(kind.kind, value, column, row)
        if kind.length and not "1970-01-01 00:00:01" <= text <= "2038-01-19 03:14:07":
            raise Mistake.BAD_TEMPORAL(kind.kind, value, column, row)
        return text
    number = _number(value, kind, column, row)
    if kind.kind is Kind.INTEGER:
        return _stored_integer(number, kind, column, row)
    if kind.kind is Kind.DECIMAL:
        return _stored_decimal(number, kind, column, row)
    double = float(number)
    if kind.kind is Kind.FLOAT and abs(double) <= _MAX_FLOAT:
        return float(struct.unpack("f", struct.pack("f", double))[0])
    if kind.kind is Kind.FLOAT or math.isinf(double):
        raise Mistake.OUT_OF_RANGE(column, row)
    return double


def float_text(value: Value) -> str:
    """Returns a value as MySQL writes it in a text column.

    >>> float_text(5.0), float_text(1e20)
    ('5', '1e20')
    """
    if not isinstance(value, float):
        return str(value)
    is_long = value and not 1e-15 <= abs(value) < 1e15
    text = f"{Decimal(repr(value)).normalize():{'e' if is_long else 'f'}}"
    return text.replace("e+", "e") if value else "0"


def _stored_text(value: Value, kind: SqlType, column: str, row: int) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else float_text(value)
    if kind.is_padded:
        text = text.rstrip(" ")
    if kind.length is not None and len(text) > kind.length:
        if text[kind.length :].strip(" "):
            raise Mistake.TOO_LONG(column, row)
        text = text[: kind.length]
    return text


def _number(value: Value, kind: SqlType, column: str, row: int) -> int | float | Decimal:
    if isinstance(value, int | float | Decimal):
        return value
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    if NUMBER.fullmatch(text):
        return Decimal(text.strip())
    if NUMBER.match(text) or kind.kind in FLOATS:
        raise Mistake.TRUNCATED(column, row)
    raise Mistake.BAD_NUMBER(kind.kind, text, column, row)


def _stored_integer(number: int | float | Decimal, kind: SqlType, column: str, row: int) -> int:
    if not isinstance(number, int):
        number = int(Decimal(str(number)).to_integral_value(ROUND_HALF_UP))
    bits = kind.length or 64
    low, high = (0, 1 << bits) if kind.is_unsigned else (-(1 << (bits - 1)), 1 << (bits - 1))
    if not low <= number < high:
        raise Mistake.OUT_OF_RANGE(column, row)
    if kind.is_partial and number and not 1901 <= number <= 2155:
        raise Mistake.NOT_SUPPORTED(f"the year {number}")
    if number >= 1 << 63:
        raise Mistake.NOT_SUPPORTED("integers beyond 64 bits with a sign")
    return number


def _stored_decimal(number: int | float | Decimal, kind: SqlType, column: str, row: int) -> float:
    value = to_decimal(str(number), kind.scale)
    high = Decimal((0, (9,) * (kind.length or 65), -kind.scale))
    if not (0 if kind.is_unsigned else -high) <= value <= high:
        raise Mistake.OUT_OF_RANGE(column, row)
    check_digits(float(value), kind.scale)
    return float(value)
