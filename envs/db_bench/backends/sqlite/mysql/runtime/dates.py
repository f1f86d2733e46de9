"""Dates and times as MySQL reads, adds and prints them; SQLite holds them as ISO text."""

import re
from calendar import monthrange
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Function, Kind, SQLiteValue

_PARTS = re.compile(
    r"\s*(\d{2,4})[^\d\s](\d{1,2})[^\d\s](\d{1,2})"
    r"(?:(?:T|\s+)(\d{1,2})(?:[^\d\s](\d{1,2})(?:[^\d\s](\d{1,2})(?:\.0*)?)?)?)?\s*",
    re.ASCII,
)
_TIME = re.compile(r"\s*(\d{1,2}):([0-5]?\d)(?::([0-5]?\d))?(?:\.0*)?\s*", re.ASCII)
_BEGINS_LIKE_A_DATE = re.compile(r"\s*[-+]?\d", re.ASCII)
_MAX_CHARS = 40
_UNITS = {
    "SECOND": timedelta(seconds=1),
    "MINUTE": timedelta(minutes=1),
    "HOUR": timedelta(hours=1),
    "DAY": timedelta(days=1),
    "WEEK": timedelta(weeks=1),
}
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
UNITS = frozenset({*_UNITS, *_MONTHS})
DATE_UNITS = frozenset({"DAY", "WEEK", *_MONTHS})


def normalize(value: SQLiteValue, kind: Kind) -> str | None:
    """Returns a text as the ISO text of a DATE, DATETIME or TIME, None where it is plainly none.

    Raises: MySQLError (1235) for what MySQL may read in another way, such as '2024-01' or 5, and
    for fractions of a second.
    """
    text = str(value)[: _MAX_CHARS + 1]
    if kind is Kind.TIME and (match := _TIME.fullmatch(text)):
        hours, minutes, seconds = match.groups(default="")
        return f"{hours:0>2}:{minutes:0>2}:{seconds:0>2}"
    is_read = kind is not Kind.TIME and len(text) <= _MAX_CHARS and _PARTS.fullmatch(text)
    if not is_read and _BEGINS_LIKE_A_DATE.match(text):
        raise Mistake.NOT_SUPPORTED(f"the date or time {text}")
    moment = parse_datetime(text) if is_read else None
    if moment is None:
        return None
    return moment.date().isoformat() if kind is Kind.DATE else moment.isoformat(" ")


@lru_cache(maxsize=4096)
def parse_datetime(text: str) -> datetime | None:
    """Returns a text as a date and time, None for one that is none."""
    match = _PARTS.fullmatch(text)
    if match is None:
        return None
    year, *others = (int(part or 0) for part in match.groups())
    if len(match[1]) == 2:
        year += 2000 if year < 70 else 1900
    try:
        return datetime(year, *others)  # type: ignore[arg-type]
    except ValueError:
        return None


def _add(text: str, count: int, unit: str, is_date: int) -> str:
    """Returns a date plus so many units of time. Raises: MySQLError (1235) for one beyond all."""
    moment = datetime.fromisoformat(text)
    try:
        if unit in _UNITS:
            moment += count * _UNITS[unit]
        else:
            months = moment.year * 12 + moment.month - 1 + int(count) * _MONTHS[unit]
            year, month = divmod(months, 12)
            day = min(moment.day, monthrange(year, month + 1)[1])
            moment = moment.replace(year=year, month=month + 1, day=day)
    except (OverflowError, ValueError):
        raise Mistake.NOT_SUPPORTED("a date before the year 1 or after 9999") from None
    return moment.date().isoformat() if is_date else moment.isoformat(" ")


_FORMATS = {
    "Y": "{0.year:04}",
    "y": "{0:%y}",
    "M": "{0:%B}",
    "b": "{0:%b}",
    "m": "{0:%m}",
    "c": "{0.month}",
    "d": "{0:%d}",
    "e": "{0.day}",
    "j": "{0:%j}",
    "W": "{0:%A}",
    "a": "{0:%a}",
    "H": "{0:%H}",
    "k": "{0.hour}",
    "h": "{0:%I}",
    "I": "{0:%I}",
    "i": "{0:%M}",
    "S": "{0:%S}",
    "s": "{0:%S}",
    "p": "{0:%p}",
    "r": "{0:%I:%M:%S %p}",
    "T": "{0:%H:%M:%S}",
    "%": "%",
}
"""MySQL's letters of formats that are done, as Python's formats."""


def _format(text: str, pattern: str) -> str | None:
    """Returns a date in one of MySQL's formats. Raises: MySQLError (1235)."""
    moment = datetime.fromisoformat(text)

    def write(match: re.Match[str]) -> str:
        if match[1] not in _FORMATS:
            raise Mistake.NOT_SUPPORTED(f"DATE_FORMAT with {match[0]}")
        return _FORMATS[match[1]].format(moment)

    return re.sub(r"%(.)", write, pattern, flags=re.DOTALL) or None


def _difference(unit: str, start: str, end: str) -> int:
    """Returns the whole units from `start` to `end` (TIMESTAMPDIFF)."""
    first, last = datetime.fromisoformat(start), datetime.fromisoformat(end)
    sign = 1 if last >= first else -1
    low, high = (first, last) if sign > 0 else (last, first)
    if unit in _UNITS:
        return sign * ((high - low) // _UNITS[unit])
    months = (high.year - low.year) * 12 + high.month - low.month
    months -= (high.day, high.time()) < (low.day, low.time())
    return sign * (months // _MONTHS[unit])


def _days_between(left: str, right: str) -> int:
    return (datetime.fromisoformat(left).date() - datetime.fromisoformat(right).date()).days


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0, tzinfo=None)


DATE_FUNCTIONS: dict[str, Function] = {
    "now": lambda: _now().isoformat(" "),
    "curdate": lambda: _now().date().isoformat(),
    "temporal": lambda value, kind: normalize(value, Kind(kind)),
    "date_add": _add,
    "date_format": _format,
    "datediff": _days_between,
    "timestampdiff": _difference,
}
"""Each gives NULL where an argument is NULL."""
