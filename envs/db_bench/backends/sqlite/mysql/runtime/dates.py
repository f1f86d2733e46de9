"""Dates and times as MySQL reads and compares them; SQLite holds them as ISO text."""

import re
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
    "datediff": _days_between,
    "timestampdiff": _difference,
}
"""Each gives NULL where an argument is NULL."""
