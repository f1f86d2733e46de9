"""What a strict MySQL column stores: conversion and checks of values."""

import re
import struct
from decimal import ROUND_HALF_UP, Decimal

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.rows import (
    SQLiteValue,
    to_decimal,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.temporal import normalize
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import TEMPORALS, Kind, SqlType, Value

_NUMBER = re.compile(r"\s*[+-]?(\d+(?:\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?\s*$", re.ASCII)
_PREFIX = re.compile(r"\s*[+-]?(\d+(?:\.\d*)?|\.\d+)", re.ASCII)


def stored_value(
    value: Value, kind: SqlType, column: str, row: int = 1, *, is_lenient: bool = False
) -> SQLiteValue:
    """Returns what SQLite holds for a value in a column of this type.

    `row` is for the error; `is_lenient` (IGNORE) takes the nearest possible value instead.
    Raises: MySQLError (1264, 1265, 1292, 1366, 1406).
    """
    if value is None:
        return None
    if kind.kind is Kind.TEXT:
        return _stored_text(value, kind, column, row, is_lenient)
    if kind.kind is Kind.BLOB:
        return value if isinstance(value, bytes) else float_text(value).encode()
    if kind.kind in TEMPORALS:
        text = normalize(str(value), kind.kind)
        if text is None and not is_lenient:
            raise Mistake.BAD_TEMPORAL(kind.kind, value, column, row)
        return text
    number = _number(value, kind, column, row, is_lenient)
    if kind.kind in (Kind.INTEGER, Kind.DECIMAL):
        read = _stored_integer if kind.kind is Kind.INTEGER else _stored_decimal
        wanted, nearest = read(number, kind)
        if wanted != nearest and not is_lenient:
            raise Mistake.OUT_OF_RANGE(column, row)
        return nearest if isinstance(nearest, int) else float(nearest)
    if kind.kind is Kind.FLOAT:
        try:
            return float(struct.unpack("f", struct.pack("f", float(number)))[0])
        except OverflowError:
            raise Mistake.OUT_OF_RANGE(column, row) from None
    return float(number)


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


def _stored_text(value: Value, kind: SqlType, column: str, row: int, is_lenient: bool) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else float_text(value)
    if kind.is_padded:
        text = text.rstrip(" ")
    if kind.length is not None and len(text) > kind.length:
        if not is_lenient and text[kind.length :].strip(" "):
            raise Mistake.TOO_LONG(column, row)
        text = text[: kind.length]
    return text


def _number(
    value: Value, kind: SqlType, column: str, row: int, is_lenient: bool
) -> int | float | Decimal:
    if isinstance(value, int | float | Decimal):
        return value
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    if _NUMBER.match(text):
        return int(text) if text.strip().lstrip("+-").isdigit() else Decimal(text.strip())
    prefix = _PREFIX.match(text)
    if is_lenient:
        return Decimal(prefix[0].strip()) if prefix else 0
    if prefix or kind.kind in (Kind.FLOAT, Kind.DOUBLE):
        raise Mistake.TRUNCATED(column, row)
    raise Mistake.BAD_NUMBER(kind.kind, text, column, row)


def _stored_integer(number: int | float | Decimal, kind: SqlType) -> tuple[int, int]:
    """Returns (whole number, the nearest one that the column can hold)."""
    if not isinstance(number, int):
        number = int(Decimal(str(number)).to_integral_value(ROUND_HALF_UP))
    bits = kind.length or 64
    low, high = (0, 1 << bits) if kind.is_unsigned else (-(1 << (bits - 1)), 1 << (bits - 1))
    return number, min(max(number, low), high - 1, (1 << 63) - 1)  # the last is SQLite's limit


def _stored_decimal(number: int | float | Decimal, kind: SqlType) -> tuple[Decimal, Decimal]:
    """Returns (rounded decimal, the nearest one that the column can hold)."""
    value = to_decimal(str(number), kind.scale)
    high = Decimal((0, (9,) * (kind.length or 65), -kind.scale))
    return value, min(max(value, Decimal(0) if kind.is_unsigned else high.copy_negate()), high)
