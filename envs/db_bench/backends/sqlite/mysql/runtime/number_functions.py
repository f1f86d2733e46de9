"""MySQL's functions of numbers in Python."""

import math
import re
from collections.abc import Callable
from decimal import ROUND_DOWN, Context, Decimal

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.rows import (
    Function,
    SQLiteValue,
    decimal_unit,
    to_decimal,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.storage import float_text

NUMBER = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*", re.ASCII)
"""A number in a text, which may go on after it; the group is without spaces."""
_NINE_DIGITS = decimal_unit(9)
_CONTEXT = Context(prec=400)


def _format(value: float, places: float) -> str:
    return f"{to_decimal(value, min(max(round(places), 0), 30)):,}"


def _round(value: float, places: float, is_decimal: int) -> float | int:
    scale = min(max(round(places), -30), 30)
    if isinstance(value, int) and scale >= 0:
        return value
    if is_decimal:
        result = to_decimal(value, scale)
        return int(result) if isinstance(value, int) else float(result)
    factor = 10.0 ** abs(scale)
    scaled = value * factor if scale >= 0 else value / factor
    if abs(scaled) > 1e15:
        return value
    whole = float(round(scaled))
    return whole / factor if scale >= 0 else whole * factor


def _truncate(value: float, places: float, _is_decimal: int) -> float | int:
    scale = min(max(round(places), -30), 30)
    if isinstance(value, int) and scale >= 0:
        return value
    result = Decimal(repr(value)).quantize(decimal_unit(scale), rounding=ROUND_DOWN)
    return int(result) if isinstance(value, int) else float(result)


def _bits(value: float) -> int:
    return round(value) & (1 << 64) - 1


def _whole(number: int) -> float | int:
    return number if abs(number) < 1 << 63 else float(number)


def _mod(left: float, right: float) -> float | None:
    return float(Decimal(repr(left)) % Decimal(repr(right))) if right else None


def _quotient(left: float, right: float) -> float | None:
    """Returns a quotient with nine decimals, the rest cut off, as MySQL calculates it."""
    if not right:
        return None
    quotient = Decimal(repr(left)) / Decimal(repr(right))
    return float(quotient.quantize(_NINE_DIGITS, rounding=ROUND_DOWN, context=_CONTEXT))


def _log(base: float, value: float | None = None) -> float:
    return math.log(base) if value is None else math.log(value) / math.log(base)


def _real(name: str, function: Callable[..., float]) -> Function:
    """Makes a function of real numbers return NULL outside its domain."""

    def call(*arguments: float) -> float | None:
        try:
            result = function(*arguments)
        except (ValueError, ZeroDivisionError):
            return None
        except OverflowError:
            raise Mistake.NUMBER_RANGE("DOUBLE", f"{name}{arguments}") from None
        return None if isinstance(result, complex) else float(result)

    return call


def _number(text: SQLiteValue) -> SQLiteValue:
    """Returns the number that a text is, where a statement changes tables."""
    if isinstance(text, str) and not NUMBER.fullmatch(text):
        raise Mistake.TRUNCATED_NUMBER(text)
    return text if text is None else float(text)


def _divisor(value: SQLiteValue) -> SQLiteValue:
    if value == 0:
        raise Mistake.DIVISION_BY_ZERO()
    return value


def _float_text(value: float, is_single: int) -> str:
    return float_text(float(f"{value:.6g}") if is_single else float(value))


def _cast_integer(value: float, is_decimal: int) -> int:
    number = int(to_decimal(value, 0)) if is_decimal else round(value)
    return min(max(number, -(1 << 63)), (1 << 63) - 1)


NUMBER_FUNCTIONS: dict[str, Function] = {
    "format": _format,
    "bin": lambda value: f"{_bits(value):b}",
    "oct": lambda value: f"{_bits(value):o}",
    "bit_count": lambda value: _bits(value).bit_count(),
    "round": _round,
    "truncate": _truncate,
    "ceil": lambda value: _whole(math.ceil(round(value, 12))),
    "floor": lambda value: _whole(math.floor(round(value, 12))),
    "mod": _mod,
    "fmod": _real("fmod", math.fmod),
    "quotient": _quotient,
    "sign": lambda value: (value > 0) - (value < 0),
    "pow": _real("pow", lambda base, power: float(base) ** power),
    "log": _real("log", _log),
    "atan": _real("atan", lambda y, x=1: math.atan2(y, x)),
    "cot": _real("cot", lambda angle: 1 / math.tan(angle)),
    **{
        name: _real(name, function)
        for name, function in vars(math).items()
        if re.fullmatch("sqrt|exp|log2|log10|a?sin|a?cos|tan|radians|degrees", name)
    },
    "pi": lambda: math.pi,
    "decimal_text": lambda value, scale: str(to_decimal(value, scale)),
    "float_text": _float_text,
    "cast_integer": _cast_integer,
    "number": _number,
    "divisor": _divisor,
}
"""Each gives NULL where an argument is NULL."""
