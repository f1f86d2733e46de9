"""Dates and times as MySQL reads, adds and prints them; SQLite holds them as ISO text."""

import re
from calendar import monthrange
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
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


def temporal_number(value: str) -> int:
    """Returns a date or a time as the number of its digits, as MySQL calculates with it."""
    return int(re.sub(r"[^0-9]", "", value) or 0)


def add_interval(value: str, count: int, unit: str, is_date: int) -> str:
    """Returns a date plus so many units of time. Raises: MySQLError (1235) for one beyond all."""
    moment = datetime.fromisoformat(value)
    try:
        moment = _step(moment, count, unit)
    except (OverflowError, ValueError):
        raise Mistake.NOT_SUPPORTED("a date before the year 1 or after 9999") from None
    return moment.date().isoformat() if is_date else moment.isoformat(" ")


def _step(moment: datetime, count: int, unit: str) -> datetime:
    if unit in _UNITS:
        return moment + count * _UNITS[unit]
    year, month = divmod(moment.year * 12 + moment.month - 1 + count * _MONTHS[unit], 12)
    day = min(moment.day, monthrange(year, month + 1)[1])
    return moment.replace(year=year, month=month + 1, day=day)


_DIRECTIVES = {
    "Y": "%Y",
    "m": "%m",
    "d": "%d",
    "M": "%B",
    "b": "%b",
    "H": "%H",
    "i": "%M",
    **dict.fromkeys("sS", "%S"),
    "T": "%H:%M:%S",
    "y": "%y",
    "j": "%j",
    "W": "%A",
    "a": "%a",
    "w": "%w",
    **dict.fromkeys("hI", "%I"),
    "p": "%p",
    "r": "%I:%M:%S %p",
}
"""MySQL's letters of formats as Python's."""
_UNPADDED: dict[str, Callable[[datetime], str]] = {
    "c": lambda moment: str(moment.month),
    "e": lambda moment: str(moment.day),
    "D": lambda moment: f"{moment.day}{_suffix(moment.day)}",
    "k": lambda moment: str(moment.hour),
    "l": lambda moment: str((moment.hour + 11) % 12 + 1),
}
_REFUSED_FORMATS = frozenset("fUuVvXx")


def _suffix(day: int) -> str:
    return "th" if 11 <= day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")


def _date_format(value: SQLiteValue, pattern: str) -> str | None:
    """Returns a date in one of MySQL's formats. Raises: MySQLError (1235)."""
    moment = parse_datetime(value)
    if moment is None or not pattern:
        return None

    def write(match: re.Match[str]) -> str:
        letter = match[1]
        if letter in _REFUSED_FORMATS:
            raise Mistake.NOT_SUPPORTED(f"DATE_FORMAT with {match[0]}")
        if letter == "Y":  # Python's has no zeros before years below 1000
            return f"{moment.year:04}"
        if letter in _UNPADDED:
            return _UNPADDED[letter](moment)
        return moment.strftime(_DIRECTIVES[letter]) if letter in _DIRECTIVES else letter

    return re.sub(r"%(.)", write, pattern, flags=re.DOTALL)


def _days_between(left: SQLiteValue, right: SQLiteValue) -> int | None:
    first, second = parse_datetime(left), parse_datetime(right)
    return (first.date() - second.date()).days if first and second else None


def _difference(unit: str, start: SQLiteValue, end: SQLiteValue) -> int | None:
    """Returns the whole units from `start` to `end` (TIMESTAMPDIFF)."""
    first, last = parse_datetime(start), parse_datetime(end)
    if first is None or last is None:
        return None
    sign = 1 if last >= first else -1
    low, high = (first, last) if sign > 0 else (last, first)
    if unit in _UNITS:
        return sign * ((high - low) // _UNITS[unit])
    months = (high.year - low.year) * 12 + high.month - low.month
    if (high.day, high.time()) < (low.day, low.time()):
        months -= 1
    return sign * (months // _MONTHS[unit])


_DATE_PARTS: dict[str, Callable[[datetime], SQLiteValue]] = {
    "year": lambda moment: moment.year,
    "quarter": lambda moment: (moment.month + 2) // 3,
    "month": lambda moment: moment.month,
    "day": lambda moment: moment.day,
    "dayofweek": lambda moment: moment.isoweekday() % 7 + 1,
    "dayofyear": lambda moment: moment.timetuple().tm_yday,
    "weekday": lambda moment: moment.weekday(),
    "dayname": lambda moment: f"{moment:%A}",
    "monthname": lambda moment: f"{moment:%B}",
    "hour": lambda moment: moment.hour,
    "minute": lambda moment: moment.minute,
    "second": lambda moment: moment.second,
}


def _date_part(part: Callable[[datetime], SQLiteValue]) -> Function:
    def call(value: SQLiteValue) -> SQLiteValue:
        moment = parse_datetime(value)
        return part(moment) if moment else None

    return call


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0, tzinfo=None)


DATE_FUNCTIONS: dict[str, Function] = {
    **{name: _date_part(part) for name, part in _DATE_PARTS.items()},
    "date_add": add_interval,
    "date_format": _date_format,
    "now": lambda: _now().isoformat(" "),
    "curdate": lambda: _now().date().isoformat(),
    "temporal": lambda value, kind: normalize(value, Kind(kind)),
    "temporal_number": temporal_number,
    "datediff": _days_between,
    "timestampdiff": _difference,
}
"""Each gives NULL where an argument is NULL."""
