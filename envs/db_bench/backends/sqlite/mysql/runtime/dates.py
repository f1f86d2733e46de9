"""Dates and times as MySQL reads them; SQLite holds them as ISO text."""

import re
from datetime import datetime
from functools import lru_cache

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Function, Kind, SQLiteValue

_PARTS = re.compile(
    r"\s*(\d{2,4})[^\d\s](\d{1,2})[^\d\s](\d{1,2})"
    r"(?:(?:T|\s+)(\d{1,2})(?:[^\d\s](\d{1,2})(?:[^\d\s](\d{1,2})(?:\.(\d*))?)?)?)?\s*",
    re.ASCII,
)
_TIME = re.compile(r"\s*(\d{1,2}):(\d{1,2})(?::(\d{1,2}))?(?:\.0*)?\s*", re.ASCII)
_BEGINS_LIKE_A_DATE = re.compile(r"\s*[-+]?\d", re.ASCII)
_MAX_CHARS = 40


def parse_datetime(value: SQLiteValue) -> datetime | None:
    """Returns a text as a date and time, None for one that is plainly none.

    Raises: MySQLError (1235) for what MySQL may read in another way, such as '2024-01' or 5, and
    for fractions of a second.
    """
    if isinstance(value, str) and len(value) <= _MAX_CHARS:
        return _parse_datetime(value)
    return _parse_datetime(str(value)[:_MAX_CHARS] + "…")


@lru_cache(maxsize=4096)
def _parse_datetime(text: str) -> datetime | None:
    match = _PARTS.fullmatch(text)
    if match is None:
        _refuse_unclear(text)
        return None
    year, month, day, hour, minute, second, fraction = match.groups()
    if fraction and fraction.strip("0"):
        raise Mistake.NOT_SUPPORTED("fractions of seconds")
    number = int(year)
    if len(year) == 2:
        number += 2000 if number < 70 else 1900
    parts = (int(part or 0) for part in (month, day, hour, minute, second))
    try:
        return datetime(number, *parts)  # type: ignore[arg-type]
    except ValueError:
        return None


def _refuse_unclear(text: str) -> None:
    if _BEGINS_LIKE_A_DATE.match(text):
        raise Mistake.NOT_SUPPORTED(f"the date or time {text}")


def normalize(value: SQLiteValue, kind: Kind) -> str | None:
    """Returns a text as the ISO text of a DATE, DATETIME or TIME, None where it is not one.

    Raises: MySQLError (1235) for a spelling that is not read here.
    """
    if kind is Kind.TIME:
        return _normalize_time(str(value)[:_MAX_CHARS])
    moment = parse_datetime(value)
    if moment is None:
        return None
    return moment.date().isoformat() if kind is Kind.DATE else moment.isoformat(" ")


def _normalize_time(text: str) -> str | None:
    """Times are compared as texts, and so have two digits of hours, and no sign."""
    match = _TIME.fullmatch(text)
    if match is None:
        _refuse_unclear(text)
        return None
    hours, minutes, seconds = match.groups()
    if int(minutes) > 59 or int(seconds or 0) > 59:
        return None
    return f"{int(hours):02}:{minutes:0>2}:{seconds or '':0>2}"


def _date_part(name: str) -> Function:
    """YEAR, MONTH or DAY of a date."""

    def call(value: SQLiteValue) -> SQLiteValue:
        moment = parse_datetime(value)
        parts = moment and {"year": moment.year, "month": moment.month, "day": moment.day}
        return parts[name] if parts else None

    return call


def temporal_number(value: str) -> int:
    """Returns a date or a time as the number of its digits, as MySQL calculates with it."""
    return int(re.sub(r"[^0-9]", "", value) or 0)


def _strict_date(value: SQLiteValue) -> SQLiteValue:
    """Returns a text that is a date, as one must be in a change. Raises: MySQLError (1292)."""
    if parse_datetime(value) is None:
        raise Mistake.TRUNCATED_TEMPORAL("datetime", value)
    return value


DATE_FUNCTIONS: dict[str, Function] = {
    **{name: _date_part(name) for name in ("year", "month", "day")},
    "temporal": lambda value, kind: normalize(value, Kind(kind)),
    "temporal_number": temporal_number,
    "strict_date": _strict_date,
}
"""Each gives NULL where an argument is NULL."""
