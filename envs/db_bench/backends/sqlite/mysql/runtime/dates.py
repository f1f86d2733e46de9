"""Dates and times as MySQL reads, adds and prints them; SQLite holds them as ISO text."""

import re
from calendar import monthrange
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.rows import Function, SQLiteValue
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Kind

_PARTS = re.compile(
    r"\s*(\d{2,4})[^\d\s](\d{1,2})[^\d\s](\d{1,2})"
    r"(?:(?:T|\s+)(\d{1,2})(?:[^\d\s](\d{1,2})(?:[^\d\s](\d{1,2})(?:\.(\d*))?)?)?)?\s*$",
    re.ASCII,
)
_DIGITS = re.compile(
    r"\s*(\d{4}|\d{2})(\d\d)(\d\d)(?:(\d\d)(\d\d)(\d\d))?(?:\.(\d*))?\s*$", re.ASCII
)
_TIME = re.compile(r"\s*(-?)(\d{1,3}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?\s*$", re.ASCII)
_BEGINS_LIKE_A_DATE = re.compile(r"\s*[-+]?\d", re.ASCII)
_WHOLE_NUMBER = re.compile(r"\s*[-+]?\d+\s*$", re.ASCII)
_MAX_KEPT_CHARS = 40
_MAX_HOURS = 838
_MAX_SORTED_HOURS = 99
"""Times are texts, which are in order with two digits of hours."""
_UNITS = {
    "SECOND": timedelta(seconds=1),
    "MINUTE": timedelta(minutes=1),
    "HOUR": timedelta(hours=1),
    "DAY": timedelta(days=1),
    "WEEK": timedelta(weeks=1),
}
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
DATE_UNITS = frozenset({"DAY", "WEEK", *_MONTHS})
UNITS = frozenset({*_UNITS, *_MONTHS})


def parse_datetime(text: str) -> datetime | None:
    """Returns a date or a date and time in any of MySQL's spellings, None for others.

    Raises: MySQLError (1235) for fractions of a second.
    """
    return _kept_datetime(text) if len(text) <= _MAX_KEPT_CHARS else _parse_datetime(text)


def _parse_datetime(text: str) -> datetime | None:
    match = _PARTS.match(text) or _DIGITS.match(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction = match.groups()
    _check_fraction(fraction)
    number = int(year)
    if len(year) == 2:
        number += 2000 if number < 70 else 1900
    parts = (int(part or 0) for part in (month, day, hour, minute, second))
    try:
        return datetime(number, *parts)  # type: ignore[arg-type]
    except ValueError:
        return None


_kept_datetime = lru_cache(maxsize=4096)(_parse_datetime)


def _check_fraction(digits: str | None) -> None:
    if digits and digits.strip("0"):
        raise Mistake.NOT_SUPPORTED("fractions of seconds")


def normalize(value: str | int | float, kind: Kind) -> str | None:
    """Returns a value as the ISO text of a DATE, DATETIME or TIME, None where it is not one.

    Raises: MySQLError (1235) for a spelling of a time that is not read here.
    """
    text = str(value)
    if kind is Kind.TIME:
        return _normalize_time(text)
    moment = parse_datetime(text)
    if moment is None:
        return None
    return moment.date().isoformat() if kind is Kind.DATE else moment.isoformat(" ")


def _normalize_time(text: str) -> str | None:
    match = _TIME.match(text)
    if match is None:
        if _BEGINS_LIKE_A_DATE.match(text):
            raise Mistake.NOT_SUPPORTED(f"the time {text}")
        return None
    sign, hours, minutes, seconds, fraction = match.groups()
    _check_fraction(fraction)
    if int(minutes) > 59 or int(seconds or 0) > 59 or int(hours) > _MAX_HOURS:
        return None
    if sign or int(hours) > _MAX_SORTED_HOURS:
        raise Mistake.NOT_SUPPORTED("times below zero or over 99 hours")
    return f"{int(hours):02}:{minutes:0>2}:{seconds or '':0>2}"


def _moment(value: SQLiteValue) -> datetime | None:
    """Returns the date that a function is given, None for a text that is plainly none.

    Raises: MySQLError (1235) for what MySQL may read in another way, such as '2024-01' or 5.
    """
    text = str(value)
    moment = parse_datetime(text) if isinstance(value, str) else None
    is_unclear = _BEGINS_LIKE_A_DATE.match(text) and not _PARTS.match(text)
    if moment is None and is_unclear:
        raise Mistake.NOT_SUPPORTED(f"the date {text:.40}")
    return moment


def _strict_date(value: SQLiteValue) -> SQLiteValue:
    """Returns a text that is a date, as one must be in a change. Raises: MySQLError (1292)."""
    text = str(value)
    if _moment(value) is None and not _TIME.match(text):
        raise Mistake.TRUNCATED_TEMPORAL("datetime", text)
    return value


def temporal_number(value: str) -> int:
    """Returns a date or a time as the number of its digits, as MySQL calculates with it."""
    digits = int(re.sub(r"[^0-9]", "", value) or 0)
    return -digits if value.startswith("-") else digits


def add_interval(value: str, amount: SQLiteValue, unit: str, sign: int) -> str | None:
    """Returns a date plus `sign` times an interval; None where that is no date."""
    moment = _moment(value)
    if moment is None:
        return None
    number = str(amount)
    if not _WHOLE_NUMBER.match(number):
        raise Mistake.NOT_SUPPORTED(f"INTERVAL '{number}'")
    try:
        moment = _step(moment, sign * int(number), unit)
    except (OverflowError, ValueError):
        return None
    is_date = len(value.strip()) <= 10 and unit in DATE_UNITS
    return moment.date().isoformat() if is_date else moment.isoformat(" ")


def _step(moment: datetime, count: int, unit: str) -> datetime:
    if unit in _UNITS:
        return moment + count * _UNITS[unit]
    year, month = divmod(moment.year * 12 + moment.month - 1 + count * _MONTHS[unit], 12)
    if not 1 <= year <= 9999:
        raise ValueError(year)
    day = min(moment.day, monthrange(year, month + 1)[1])
    return moment.replace(year=year, month=month + 1, day=day)


def _days_between(left: SQLiteValue, right: SQLiteValue) -> int | None:
    first, second = _moment(left), _moment(right)
    return (first.date() - second.date()).days if first and second else None


def _difference(unit: str, start: SQLiteValue, end: SQLiteValue) -> int | None:
    """Returns the whole units from `start` to `end` (TIMESTAMPDIFF)."""
    first, last = _moment(start), _moment(end)
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


def _suffix(day: int) -> str:
    return "th" if 11 <= day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")


_FORMATS: dict[str, Callable[[datetime], str]] = {
    "Y": lambda m: f"{m.year:04}",
    "y": lambda m: f"{m.year % 100:02}",
    "m": lambda m: f"{m.month:02}",
    "c": lambda m: str(m.month),
    "M": lambda m: f"{m:%B}",
    "b": lambda m: f"{m:%b}",
    "d": lambda m: f"{m.day:02}",
    "e": lambda m: str(m.day),
    "D": lambda m: f"{m.day}{_suffix(m.day)}",
    "j": lambda m: f"{m:%j}",
    "W": lambda m: f"{m:%A}",
    "a": lambda m: f"{m:%a}",
    "w": lambda m: str(m.isoweekday() % 7),
    "H": lambda m: f"{m.hour:02}",
    "k": lambda m: str(m.hour),
    **dict.fromkeys("hI", lambda m: f"{m:%I}"),
    "l": lambda m: str((m.hour + 11) % 12 + 1),
    "i": lambda m: f"{m.minute:02}",
    **dict.fromkeys("sS", lambda m: f"{m.second:02}"),
    "p": lambda m: f"{m:%p}",
    "T": lambda m: f"{m:%H:%M:%S}",
    "r": lambda m: f"{m:%I:%M:%S %p}",
    "%": lambda _: "%",
}
_REFUSED_FORMATS = frozenset("fUuVvXx")


def date_format(value: SQLiteValue, pattern: str) -> str | None:
    """Returns a date in one of MySQL's formats (DATE_FORMAT). Raises: MySQLError (1235)."""
    moment = _moment(value)
    if moment is None or not pattern:
        return None

    def write(match: re.Match[str]) -> str:
        if match[1] in _REFUSED_FORMATS:
            raise Mistake.NOT_SUPPORTED(f"DATE_FORMAT with {match[0]}")
        return _FORMATS[match[1]](moment) if match[1] in _FORMATS else match[1]

    return re.sub(r"%(.)", write, pattern, flags=re.DOTALL)


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
    "date": lambda moment: moment.date().isoformat(),
    "last_day": lambda moment: date(
        moment.year, moment.month, monthrange(moment.year, moment.month)[1]
    ).isoformat(),
}
_CLOCK = ("hour", "minute", "second")


def _date_part(part: Callable[[datetime], SQLiteValue]) -> Function:
    def call(value: SQLiteValue) -> SQLiteValue:
        moment = _moment(value)
        return part(moment) if moment else None

    return call


def _clock_part(name: str) -> Function:
    """HOUR, MINUTE or SECOND of a time, or of a date with a time."""
    place = _CLOCK.index(name)

    def call(value: SQLiteValue) -> SQLiteValue:
        text = str(value)
        if _TIME.match(text):
            time = _normalize_time(text)
            return int(time.lstrip("-").split(":")[place]) if time else None
        moment = _moment(value)
        return (moment.hour, moment.minute, moment.second)[place] if moment else None

    return call


def now() -> datetime:
    """Returns the present moment in UTC, to the second."""
    return datetime.now(UTC).replace(microsecond=0, tzinfo=None)


DATE_FUNCTIONS: dict[str, Function] = {
    **{name: _date_part(part) for name, part in _DATE_PARTS.items()},
    **{name: _clock_part(name) for name in _CLOCK},
    "now": lambda: now().isoformat(" "),
    "curdate": lambda: now().date().isoformat(),
    "temporal": lambda value, kind: normalize(value, Kind(kind)),
    "temporal_number": temporal_number,
    "strict_date": _strict_date,
    "date_add": add_interval,
    "date_format": date_format,
    "datediff": _days_between,
    "timestampdiff": _difference,
}
"""Each gives NULL where an argument is NULL."""
