"""Dates and times as MySQL reads, adds and prints them; SQLite holds them as ISO text."""

import re
from calendar import monthrange
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache

from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Kind

_PARTS = re.compile(
    r"\s*(\d{2,4})[^\d\s](\d{1,2})[^\d\s](\d{1,2})"
    r"(?:(?:T|\s+)(\d{1,2})(?:[^\d\s](\d{1,2})(?:[^\d\s](\d{1,2})(?:\.(\d*))?)?)?)?\s*$",
    re.ASCII,
)
_DIGITS = re.compile(
    r"\s*(\d{4}|\d{2})(\d\d)(\d\d)(?:(\d\d)(\d\d)(\d\d))?(?:\.(\d*))?\s*$", re.ASCII
)
_TIME = re.compile(
    r"\s*(-?)(?:(\d+) )?(\d{1,3}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?\s*$", re.ASCII
)
_MAX_KEPT_CHARS = 40
_MAX_FORMAT_CHARS = 200
_UNITS = {
    "MICROSECOND": timedelta(microseconds=1),
    "SECOND": timedelta(seconds=1),
    "MINUTE": timedelta(minutes=1),
    "HOUR": timedelta(hours=1),
    "DAY": timedelta(days=1),
    "WEEK": timedelta(weeks=1),
}
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_COMPOUND = {
    "MINUTE_SECOND": ("MINUTE", "SECOND"),
    "HOUR_MINUTE": ("HOUR", "MINUTE"),
    "HOUR_SECOND": ("HOUR", "MINUTE", "SECOND"),
    "DAY_HOUR": ("DAY", "HOUR"),
    "DAY_MINUTE": ("DAY", "HOUR", "MINUTE"),
    "DAY_SECOND": ("DAY", "HOUR", "MINUTE", "SECOND"),
    "YEAR_MONTH": ("YEAR", "MONTH"),
}
DATE_UNITS = frozenset({"DAY", "WEEK", "MONTH", "QUARTER", "YEAR", "YEAR_MONTH"})
UNITS = frozenset({*_UNITS, *_MONTHS, *_COMPOUND})


def parse_datetime(text: str) -> datetime | None:
    """Returns a date or a date and time in any of MySQL's spellings, None for others."""
    return _kept_datetime(text) if len(text) <= _MAX_KEPT_CHARS else _parse_datetime(text)


def _parse_datetime(text: str) -> datetime | None:
    match = _PARTS.match(text) or _DIGITS.match(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction = match.groups()
    number = int(year)
    if len(year) == 2:
        number += 2000 if number < 70 else 1900
    parts = (int(part or 0) for part in (month, day, hour, minute, second))
    try:
        moment = datetime(number, *parts)  # type: ignore[arg-type]
    except ValueError:
        return None
    return moment + timedelta(seconds=round(float(f"0.{fraction or 0}")))


_kept_datetime = lru_cache(maxsize=4096)(_parse_datetime)


def normalize(value: str | int | float, kind: Kind) -> str | None:
    """Returns a value as the ISO text of a DATE, DATETIME or TIME, None where it is not one."""
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
        moment = parse_datetime(text)
        return moment.time().isoformat() if moment else None
    sign, days, hours, minutes, seconds, _ = match.groups()
    if int(minutes) > 59 or int(seconds or 0) > 59:
        return None
    return f"{sign}{int(days or 0) * 24 + int(hours):02}:{minutes:0>2}:{seconds or '':0>2}"


def add_interval(value: str, amount: str | float, unit: str, sign: int) -> str | None:
    """Returns a date plus `sign` times an interval; None where that is no date."""
    moment = parse_datetime(value)
    if moment is None:
        return None
    if unit in _COMPOUND:
        numbers = [float(number) for number in re.findall(r"[0-9]+", str(amount))]
        units = _COMPOUND[unit][-len(numbers) :] if numbers else ()
        steps = list(zip(numbers[-len(units) :], units, strict=True)) if units else []
        sign = -sign if str(amount).lstrip().startswith("-") else sign
    else:
        number = _leading_number(amount)
        steps = [(number if unit == "SECOND" else float(round(number)), unit)]
    try:
        for count, step in steps:
            moment = _step(moment, sign * count, step)
    except (OverflowError, ValueError):
        return None
    is_date = len(value.strip()) <= 10 and unit in DATE_UNITS
    return moment.date().isoformat() if is_date else moment.isoformat(" ")


def _leading_number(amount: str | float) -> float:
    match = re.match(r"\s*-?[0-9]+(\.[0-9]+)?", str(amount))
    return float(match[0]) if match else 0


def _step(moment: datetime, count: float, unit: str) -> datetime:
    if unit in _UNITS:
        return moment + count * _UNITS[unit]
    months = moment.year * 12 + moment.month - 1 + int(count) * _MONTHS[unit]
    year, month = divmod(months, 12)
    if not 1 <= year <= 9999:
        raise ValueError(year)
    day = min(moment.day, monthrange(year, month + 1)[1])
    return moment.replace(year=year, month=month + 1, day=day)


def date_difference(left: str, right: str) -> int | None:
    """Returns the days between two dates, times ignored."""
    first, second = parse_datetime(left), parse_datetime(right)
    return (first.date() - second.date()).days if first and second else None


def difference(unit: str, start: str, end: str) -> int | None:
    """Returns the whole units from `start` to `end` (TIMESTAMPDIFF)."""
    first, last = parse_datetime(start), parse_datetime(end)
    if first is None or last is None:
        return None
    if unit in _UNITS:
        return int((last - first) / _UNITS[unit])
    sign = 1 if last >= first else -1
    low, high = (first, last) if sign > 0 else (last, first)
    months = (high.year - low.year) * 12 + high.month - low.month
    if (high.day, high.time()) < (low.day, low.time()):
        months -= 1
    return sign * (months // _MONTHS[unit])


def week(moment: date, mode: int) -> tuple[int, int]:
    """Returns (year, week) of a date in MySQL's week mode 0 to 7."""
    is_monday_first, is_year_range = bool(mode & 1), bool(mode & 2)
    is_first_weekday = bool(mode & 4) != is_monday_first  # the first week has the first weekday

    def first_day(year: int) -> date:
        january = date(year, 1, 1)
        offset = january.weekday() if is_monday_first else (january.weekday() + 1) % 7
        begins_before = offset == 0 if not is_first_weekday else offset <= 3
        return january + timedelta(days=-offset if begins_before else 7 - offset)

    year = moment.year
    if moment < first_day(year):
        if not is_year_range:
            return year, 0
        year -= 1
    elif is_year_range and year < 9999 and moment >= first_day(year + 1):
        year += 1
    return year, (moment - first_day(year)).days // 7 + 1


_PYTHON_FORMATS = {
    **{code: f"%{code}" for code in "YmdHjpyabfS"},
    "i": "%M",
    "s": "%S",
    "M": "%B",
    "W": "%A",
    "h": "%I",
    "I": "%I",
    "T": "%H:%M:%S",
    "r": "%I:%M:%S %p",
    "%": "%%",
}


def date_format(value: str, pattern: str) -> str | None:
    """Returns a date in one of MySQL's formats (DATE_FORMAT)."""
    moment = parse_datetime(value)
    if moment is None:
        return None
    return re.sub(r"%(.)", lambda match: _format_code(match[1], moment), pattern, flags=re.DOTALL)


def _format_code(code: str, moment: datetime) -> str:
    plain = {
        "c": moment.month,
        "e": moment.day,
        "k": moment.hour,
        "l": (moment.hour + 11) % 12 + 1,
        "w": (moment.weekday() + 1) % 7,
    }
    if code in plain:
        return str(plain[code])
    if code == "D":
        suffixes = {1: "st", 2: "nd", 3: "rd"}
        is_teen = 11 <= moment.day <= 13
        return f"{moment.day}{'th' if is_teen else suffixes.get(moment.day % 10, 'th')}"
    weeks = {"U": 0, "u": 1, "V": 2, "v": 3}
    if code in weeks:
        return f"{week(moment.date(), weeks[code])[1]:02}"
    if code in "Xx":
        return str(week(moment.date(), 2 if code == "X" else 3)[0])
    if code == "Y":
        return f"{moment.year:04}"
    if code == "f":
        return f"{moment.microsecond:06}"
    return moment.strftime(_PYTHON_FORMATS[code]) if code in _PYTHON_FORMATS else code


def parse_format(text: str, pattern: str) -> datetime | None:
    """Returns a text read in one of MySQL's formats (STR_TO_DATE), None where it does not fit.

    Python keeps hundreds of formats, for each is a regular expression: a long one fits nothing.
    """
    if len(pattern) > _MAX_FORMAT_CHARS:
        return None
    codes = {**_PYTHON_FORMATS, "c": "%m", "e": "%d", "k": "%H", "l": "%I"}
    python = re.sub(r"%(.)", lambda match: codes.get(match[1], match[1]), pattern)
    try:
        return datetime.strptime(text.strip(), python)
    except ValueError:
        return None


def last_day(moment: date) -> date:
    """Returns the last day of a month."""
    return date(moment.year, moment.month, monthrange(moment.year, moment.month)[1])


def now() -> datetime:
    """Returns the present moment in UTC, to the second."""
    return datetime.now(UTC).replace(microsecond=0, tzinfo=None)
