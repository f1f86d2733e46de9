"""SQLite's values as the Python values that mysql-connector returns."""

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    MAX_EXACT_DIGITS,
    UNFIXED,
    Kind,
    Row,
    SqlType,
    Value,
)

SQLiteValue = int | float | str | bytes | None
Function = Callable[..., SQLiteValue]
"""A function that SQLite calls."""
_CONTEXT = Context(prec=400, rounding=ROUND_HALF_UP)


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


def _to_single(value: SQLiteValue) -> Value:
    return float(f"{value:.6g}") if isinstance(value, int | float) else value


def _to_double(value: SQLiteValue) -> Value:
    if isinstance(value, float) and math.isinf(value):
        raise Mistake.NUMBER_RANGE("DOUBLE", "an expression")
    return value + 0.0 if isinstance(value, int | float) else value  # no negative zero


def _to_fixed_double(value: SQLiteValue, scale: int) -> Value:
    number = _to_double(value)
    return round(number, scale) + 0.0 if isinstance(number, float) else number


def _to_text(value: SQLiteValue) -> Value:
    return str(value) if isinstance(value, int | float) else value


def _temporal(name: str, read: Callable[[str], Value]) -> Callable[[SQLiteValue], Value]:
    def convert(value: SQLiteValue) -> Value:
        if not isinstance(value, str):
            return value
        try:
            return read(value)
        except (ValueError, OverflowError):
            raise Mistake.TRUNCATED_TEMPORAL(name, value) from None

    return convert


def _read_time(text: str) -> timedelta:
    sign = -1 if text.startswith("-") else 1
    hours, minutes, seconds = text.lstrip("-").split(":")
    return sign * timedelta(hours=int(hours), minutes=int(minutes), seconds=float(seconds))


_CONVERTERS: dict[Kind, Callable[[SQLiteValue], Value]] = {
    Kind.INTEGER: _to_integer,
    Kind.FLOAT: _to_single,
    Kind.DOUBLE: _to_double,
    Kind.TEXT: _to_text,
    Kind.DATE: _temporal("date", lambda text: date.fromisoformat(text[:10])),
    Kind.DATETIME: _temporal("datetime", datetime.fromisoformat),
    Kind.TIME: _temporal("time", _read_time),
}


@lru_cache(maxsize=256)
def _converter(kind: SqlType) -> Callable[[SQLiteValue], Value] | None:
    scale = kind.scale
    if kind.kind is Kind.DOUBLE and scale < UNFIXED:
        return lambda value: _to_fixed_double(value, scale)
    if kind.kind is not Kind.DECIMAL:
        return _CONVERTERS.get(kind.kind)

    def convert(value: SQLiteValue) -> Value:
        if not isinstance(value, int | float):
            return None
        check_digits(value, scale)
        return to_decimal(value, scale)

    return convert


def to_mysql_rows(
    rows: Iterable[Sequence[SQLiteValue]], types: tuple[SqlType, ...]
) -> tuple[Row, ...]:
    """Returns SQLite's rows with values as mysql-connector gives them.

    `types` is empty for statements without a result. Raises: MySQLError (1292, 1690) for a value
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
