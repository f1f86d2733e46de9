"""What a strict MySQL column stores: conversion and checks of values."""

import math
import re
import struct
from decimal import ROUND_HALF_UP, Decimal

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.dates import normalize
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.rows import (
    SQLiteValue,
    check_digits,
    to_decimal,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    FLOATS,
    TEMPORALS,
    Kind,
    SqlType,
    Value,
)

_NUMBER = re.compile(r"\s*[+-]?(\d+(?:\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?\s*$", re.ASCII)
_MAX_FLOAT = 3.4028234663852886e38
_PREFIX = re.compile(r"\s*[+-]?(\d+(?:\.\d*)?|\.\d+)", re.ASCII)


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
    if _NUMBER.match(text):
        return int(text) if text.strip().lstrip("+-").isdigit() else Decimal(text.strip())
    if _PREFIX.match(text) or kind.kind in FLOATS:
        raise Mistake.TRUNCATED(column, row)
    raise Mistake.BAD_NUMBER(kind.kind, text, column, row)


def _stored_integer(number: int | float | Decimal, kind: SqlType, column: str, row: int) -> int:
    if not isinstance(number, int):
        number = int(Decimal(str(number)).to_integral_value(ROUND_HALF_UP))
    bits = kind.length or 64
    low, high = (0, 1 << bits) if kind.is_unsigned else (-(1 << (bits - 1)), 1 << (bits - 1))
    if not low <= number < high:
        raise Mistake.OUT_OF_RANGE(column, row)
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
