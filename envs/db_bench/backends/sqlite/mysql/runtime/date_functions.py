"""MySQL's date functions, to be called from SQLite; dates are ISO text."""

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta

from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime import temporal
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.rows import Function, SQLiteValue
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Kind

_EPOCH = datetime(1970, 1, 1)
_PARTS: dict[str, Callable[[datetime], SQLiteValue]] = {
    "year": lambda moment: moment.year,
    "quarter": lambda moment: (moment.month + 2) // 3,
    "month": lambda moment: moment.month,
    "day": lambda moment: moment.day,
    "dayofweek": lambda moment: moment.isoweekday() % 7 + 1,
    "dayofyear": lambda moment: moment.timetuple().tm_yday,
    "weekday": lambda moment: moment.weekday(),
    "weekofyear": lambda moment: moment.isocalendar().week,
    "hour": lambda moment: moment.hour,
    "minute": lambda moment: moment.minute,
    "second": lambda moment: moment.second,
    "microsecond": lambda moment: moment.microsecond,
    "dayname": lambda moment: f"{moment:%A}",
    "monthname": lambda moment: f"{moment:%B}",
    "to_days": lambda moment: moment.toordinal() + 365,
    "last_day": lambda moment: temporal.last_day(moment).isoformat(),
}
_CLOCK = ("hour", "minute", "second")


def _part(name: str) -> Callable[[SQLiteValue], SQLiteValue]:
    part = _PARTS[name]

    def call(value: SQLiteValue) -> SQLiteValue:
        text = str(value)
        if name in _CLOCK and ":" in text[:4]:
            return int(text.lstrip("-").split(":")[_CLOCK.index(name)])
        moment = temporal.parse_datetime(text)
        return part(moment) if moment else None

    return call


def _temporal(value: str | float, kind: str) -> SQLiteValue:
    return temporal.normalize(value, Kind(kind))


def _week(value: str, mode: int = 0) -> int | None:
    moment = temporal.parse_datetime(value)
    return temporal.week(moment.date(), int(mode))[1] if moment else None


def _yearweek(value: str, mode: int = 0) -> int | None:
    moment = temporal.parse_datetime(value)
    if moment is None:
        return None
    year, week = temporal.week(moment.date(), int(mode) | 2)
    return year * 100 + week


def _str_to_date(text: str, pattern: str, kind: str) -> str | None:
    moment = temporal.parse_format(text, pattern)
    return temporal.normalize(moment.isoformat(" "), Kind(kind)) if moment else None


def _unix_timestamp(value: str = "") -> int | None:
    moment = temporal.parse_datetime(value) if value else temporal.now()
    return int((moment - _EPOCH).total_seconds()) if moment else None


def _from_unixtime(seconds: float) -> str | None:
    is_possible = 0 <= seconds < 1 << 35
    return (_EPOCH + timedelta(seconds=round(seconds))).isoformat(" ") if is_possible else None


def _from_days(days: float) -> str | None:
    is_possible = 366 <= days <= date.max.toordinal() + 365
    return date.fromordinal(round(days) - 365).isoformat() if is_possible else None


def _makedate(year: int, day: int) -> str | None:
    is_possible = 1 <= year <= 9999 and day > 0
    return temporal.add_interval(f"{year:04}-01-01", day - 1, "DAY", 1) if is_possible else None


def _time_to_sec(value: str) -> int | None:
    text = temporal.normalize(value, Kind.TIME)
    if text is None:
        return None
    hours, minutes, seconds = (int(part) for part in text.lstrip("-").split(":"))
    return (-1 if text.startswith("-") else 1) * (hours * 3600 + minutes * 60 + seconds)


def _sec_to_time(seconds: float) -> str:
    total = round(min(abs(seconds), 838 * 3600 + 3599))
    return f"{'-' * (seconds < 0)}{total // 3600:02}:{total // 60 % 60:02}:{total % 60:02}"


def _timediff(left: str, right: str) -> str | None:
    moments = temporal.parse_datetime(left), temporal.parse_datetime(right)
    if moments[0] and moments[1]:
        return _sec_to_time((moments[0] - moments[1]).total_seconds())
    first, second = _time_to_sec(left), _time_to_sec(right)
    return None if first is None or second is None else _sec_to_time(first - second)


DATE_FUNCTIONS: dict[str, Function] = {
    **{name: _part(name) for name in _PARTS},
    "now": lambda *_: temporal.now().isoformat(" "),
    "curdate": lambda: temporal.now().date().isoformat(),
    "curtime": lambda *_: temporal.now().time().isoformat(),
    "temporal": _temporal,
    "temporal_number": lambda value: int(re.sub(r"[^0-9]", "", str(value)) or 0),
    "date_add": lambda value, *rest: temporal.add_interval(str(value), *rest),
    "date_format": lambda value, pattern: temporal.date_format(str(value), str(pattern)),
    "datediff": lambda left, right: temporal.date_difference(str(left), str(right)),
    "timestampdiff": lambda unit, a, b: temporal.difference(unit, str(a), str(b)),
    "makedate": _makedate,
    "from_days": _from_days,
    "unix_timestamp": lambda *value: _unix_timestamp(*map(str, value)),
    "from_unixtime": _from_unixtime,
    "time_to_sec": lambda value: _time_to_sec(str(value)),
    "sec_to_time": _sec_to_time,
    "maketime": lambda hour, minute, second: _sec_to_time(hour * 3600 + minute * 60 + second),
    "timediff": lambda left, right: _timediff(str(left), str(right)),
    "week": _week,
    "yearweek": _yearweek,
    "str_to_date": _str_to_date,
}
