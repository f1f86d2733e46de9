"""MySQL's functions as Python functions of a SQLite connection: short, and bounded in output.

A statement's time limit cannot interrupt one of them; regular expressions, the only ones that can
run away, belong into a worker process (`Translation.needs_worker`).
"""

import hashlib
import math
import random
import re
import sqlite3
import time
import uuid
import zlib
from collections.abc import Callable
from decimal import ROUND_DOWN, Decimal
from functools import lru_cache, wraps

from agentpeft.envs.db_bench.mysql import temporal
from agentpeft.envs.db_bench.mysql.aggregation import AGGREGATE_CLASSES
from agentpeft.envs.db_bench.mysql.coercion import strict_number
from agentpeft.envs.db_bench.mysql.collation import collation_key, like
from agentpeft.envs.db_bench.mysql.errors import Mistake, MySQLError
from agentpeft.envs.db_bench.mysql.rows import SQLiteValue, decimal_unit, to_decimal
from agentpeft.envs.db_bench.mysql.storage import float_text, stored_value
from agentpeft.envs.db_bench.mysql.types import Kind, parse_type

MAX_TEXT_CHARS = 1 << 20
Function = Callable[..., SQLiteValue]


class FunctionErrors:
    """What the functions of one connection keep: the error behind SQLite's, and @variables."""

    def __init__(self) -> None:
        self.error: MySQLError | None = None
        self.variables: dict[str, SQLiteValue] = {}

    def take(self) -> MySQLError | None:
        """Returns the last error and forgets it."""
        error, self.error = self.error, None
        return error


def _nullable(function: Function) -> Function:
    """Makes a function return NULL where an argument is NULL."""

    @wraps(function)
    def call(*arguments: SQLiteValue) -> SQLiteValue:
        return None if None in arguments else function(*arguments)

    return call


def _bounded(text: str) -> str | None:
    return text if len(text) <= MAX_TEXT_CHARS else None


def _substr(text: str, start: float, length: float = MAX_TEXT_CHARS) -> str:
    first, count = round(start), round(length)
    if first == 0 or count <= 0 or abs(first) > len(text):
        return ""
    first = first - 1 if first > 0 else len(text) + first
    return text[first : first + count]


def _substring_index(text: str, delimiter: str, count: int) -> str:
    if not delimiter or not count:
        return ""
    parts = text.split(delimiter)
    return delimiter.join(parts[:count] if count > 0 else parts[count:])


def _pad(text: str, length: int, filling: str, is_left: bool) -> str | None:
    if length < 0 or length > MAX_TEXT_CHARS:
        return None
    missing = length - len(text)
    if missing <= 0:
        return text[:length]
    if not filling:
        return ""
    added = (filling * (missing // len(filling) + 1))[:missing]
    return added + text if is_left else text + added


def _insert(text: str, start: int, length: int, new: str) -> str | None:
    if not 1 <= start <= len(text):
        return text
    end = start - 1 + length if length >= 0 else len(text)
    return _bounded(text[: start - 1] + new + text[end:])


def _locate(part: str, text: str, start: int = 1) -> int:
    if start < 1:
        return 0
    return text.casefold().find(part.casefold(), start - 1) + 1


def _trim(text: str, removed: str, position: str) -> str:
    if not removed:
        return text
    if position != "TRAILING":
        while text.startswith(removed):
            text = text[len(removed) :]
    if position != "LEADING":
        while text.endswith(removed):
            text = text[: -len(removed)]
    return text


def _concat_ws(separator: str | None, *parts: str | None) -> str | None:
    if separator is None:
        return None
    return _bounded(separator.join(part for part in parts if part is not None))


def _find_in_set(text: str, members: str) -> int:
    keys = [collation_key(member) for member in members.split(",")] if members else []
    key = collation_key(text)
    return keys.index(key) + 1 if key in keys else 0


def _elt(index: int | None, *texts: str) -> str | None:
    return texts[int(index) - 1] if index and 1 <= index <= len(texts) else None


def _hex(value: SQLiteValue) -> str:
    if isinstance(value, int | float):
        return f"{round(value) & (1 << 64) - 1:X}"
    return (value.encode() if isinstance(value, str) else value or b"").hex().upper()


def _unhex(text: str) -> bytes | None:
    try:
        return bytes.fromhex(text.zfill(len(text) + len(text) % 2))
    except ValueError:
        return None


def _conv(text: str | int, source: int, target: int) -> str | None:
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    if not (2 <= source <= 36 and 2 <= target <= 36):
        return None
    number = 0
    for digit in str(text).strip().upper():
        if digit not in digits[:source]:
            break
        number = min(number * source + digits.index(digit), (1 << 64) - 1)
    result = ""
    while number:
        number, rest = divmod(number, target)
        result = digits[rest] + result
    return result or "0"


def _soundex(text: str) -> str:
    codes = str.maketrans("BFPVCGJKQSXZDTLMNR", "111122222222334556")
    letters = [letter for letter in text.upper() if letter.isalpha()]
    if not letters:
        return ""
    result, last = letters[0], letters[0].translate(codes)
    for letter in letters[1:]:
        code = letter.translate(codes)
        if code.isdigit() and code != last:
            result += code
        if letter not in "HW":
            last = code
    return result.ljust(4, "0")


def _strcmp(left: str, right: str) -> int:
    first, second = collation_key(left), collation_key(right)
    return (first > second) - (first < second)


def _sha2(text: str, bits: int) -> str | None:
    names = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}
    return hashlib.new(names[bits], text.encode()).hexdigest() if bits in names else None


def _format(value: float, places: float) -> str:
    scale = min(max(round(places), 0), 30)
    return f"{to_decimal(value, scale):,}"


def _round(value: float, places: float, is_decimal: int) -> float | int:
    scale = min(max(round(places), -30), 30)
    if isinstance(value, int) and scale >= 0:
        return value
    if not is_decimal:
        factor = 10.0 ** abs(scale)
        scaled = value * factor if scale >= 0 else value / factor
        if not math.isfinite(scaled) or abs(scaled) > 1e15:
            return value
        whole = float(round(scaled))
        return whole / factor if scale >= 0 else whole * factor
    result = to_decimal(value, scale)
    return int(result) if isinstance(value, int) else float(result)


def _truncate(value: float, places: float, is_decimal: int) -> float | int:
    scale = min(max(round(places), -30), 30)
    if isinstance(value, int) and scale >= 0:
        return value
    result = Decimal(repr(value)).quantize(decimal_unit(scale), rounding=ROUND_DOWN)
    return int(result) if isinstance(value, int) else float(result)


def _whole(function: Callable[[float], int], value: float) -> float | int:
    return function(round(value, 12)) if math.isfinite(value) else value


def _mod(left: float, right: float) -> float | None:
    if not right:
        return None
    if isinstance(left, int) and isinstance(right, int):
        return math.fmod(left, right)
    result = Decimal(repr(left)) % Decimal(repr(right))
    return float(result)


def _real(function: Callable[..., float]) -> Function:
    """Makes a function of real numbers return NULL outside its domain."""

    def call(*arguments: float) -> float | None:
        try:
            result = function(*arguments)
        except (ValueError, ZeroDivisionError):
            return None
        except OverflowError:
            raise Mistake.NUMBER_RANGE("DOUBLE", function.__name__) from None
        return None if isinstance(result, complex) else float(result)

    return _nullable(call)


def _log(base: float, value: float | None = None) -> float:
    return math.log(base) if value is None else math.log(value) / math.log(base)


def _temporal(value: SQLiteValue, kind: str) -> SQLiteValue:
    return temporal.normalize(value, Kind(kind)) if isinstance(value, str | int | float) else None


def _part(name: str) -> Function:
    parts: dict[str, Callable[[temporal.datetime], int]] = {
        "dayofmonth": lambda moment: moment.day,
        "dayofweek": lambda moment: moment.isoweekday() % 7 + 1,
        "dayofyear": lambda moment: moment.timetuple().tm_yday,
        "weekday": lambda moment: moment.weekday(),
        "quarter": lambda moment: (moment.month + 2) // 3,
        "weekofyear": lambda moment: moment.isocalendar().week,
        "year": lambda moment: moment.year,
        "month": lambda moment: moment.month,
        "day": lambda moment: moment.day,
        "hour": lambda moment: moment.hour,
        "minute": lambda moment: moment.minute,
        "second": lambda moment: moment.second,
        "microsecond": lambda moment: moment.microsecond,
    }
    part = parts[name]
    index = ("hour", "minute", "second").index(name) if name in ("hour", "minute", "second") else -1

    def call(value: str) -> int | None:
        text = str(value)
        if index >= 0 and ":" in text[:4]:
            return int(text.lstrip("-").split(":")[index])
        moment = temporal.parse_datetime(text)
        return part(moment) if moment else None

    return _nullable(call)


def _of_date(function: Callable[[temporal.datetime], SQLiteValue]) -> Function:
    def call(value: str) -> SQLiteValue:
        moment = temporal.parse_datetime(str(value))
        return function(moment) if moment else None

    return _nullable(call)


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
    if moment is None:
        return None
    return temporal.normalize(moment.isoformat(" "), Kind(kind))


_EPOCH = temporal.datetime(1970, 1, 1)


def _unix_timestamp(value: str | None = "") -> int | None:
    moment = temporal.now() if value == "" else temporal.parse_datetime(str(value))
    return int((moment - _EPOCH).total_seconds()) if moment else None


def _from_unixtime(seconds: float) -> str:
    return (_EPOCH + temporal.timedelta(seconds=round(seconds))).isoformat(" ")


def _seconds(value: str) -> int | None:
    text = temporal.normalize(value, Kind.TIME)
    if text is None:
        return None
    hours, minutes, seconds = (int(part) for part in text.lstrip("-").split(":"))
    return (-1 if text.startswith("-") else 1) * (hours * 3600 + minutes * 60 + seconds)


def _sec_to_time(seconds: float) -> str:
    total = min(abs(int(seconds)), 838 * 3600 + 3599)
    sign = "-" if seconds < 0 else ""
    return f"{sign}{total // 3600:02}:{total // 60 % 60:02}:{total % 60:02}"


def _timediff(left: str, right: str) -> str | None:
    first, second = temporal.parse_datetime(left), temporal.parse_datetime(right)
    if first and second:
        return _sec_to_time((first - second).total_seconds())
    times = _seconds(left), _seconds(right)
    return None if None in times else _sec_to_time(times[0] - times[1])  # type: ignore[operator]


def _temporal_number(value: str) -> int:
    return int(re.sub(r"[^0-9]", "", value) or 0)


@lru_cache(maxsize=256)
def _pattern(text: str) -> re.Pattern[str]:
    if len(text) > 500:
        raise Mistake.BAD_REGEXP(text[:80])
    classes = {"alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "space": r"\s"}
    python = re.sub(r"\[:(\w+):\]", lambda match: classes.get(match[1], ""), text)
    try:
        return re.compile(python, re.IGNORECASE)
    except (re.error, RecursionError):
        raise Mistake.BAD_REGEXP(text) from None


def _regexp(text: str, pattern: str, _mode: str = "") -> int:
    return int(_pattern(pattern).search(text[:MAX_TEXT_CHARS]) is not None)


def _regexp_replace(text: str, pattern: str, new: str) -> str | None:
    template = re.sub(r"\$(\d)", r"\\\1", new)
    return _bounded(_pattern(pattern).sub(template, text))


def _regexp_substr(text: str, pattern: str) -> str | None:
    match = _pattern(pattern).search(text)
    return match[0] if match else None


def _regexp_instr(text: str, pattern: str) -> int:
    match = _pattern(pattern).search(text)
    return match.start() + 1 if match else 0


def _single_row(count: int, value: SQLiteValue) -> SQLiteValue:
    if count > 1:
        raise Mistake.SUBQUERY_ROWS()
    return value


def _row_key(*values: SQLiteValue) -> str | None:
    if None in values:
        return None
    return repr([collation_key(value) if isinstance(value, str) else value for value in values])


def _stored(
    value: SQLiteValue, declared: str, column: str, row: int, is_lenient: int
) -> SQLiteValue:
    return stored_value(value, parse_type(declared), column, row, is_lenient=bool(is_lenient))


def _divisor(value: SQLiteValue) -> SQLiteValue:
    if value == 0:
        raise Mistake.DIVISION_BY_ZERO()
    return value


def _decimal_text(value: float, scale: int) -> str:
    return str(to_decimal(value, scale))


def _float_text(value: float, is_single: int) -> str:
    return float_text(float(f"{value:.6g}") if is_single else float(value))


def _cast_integer(value: float) -> int:
    number = value if isinstance(value, int) else int(to_decimal(value, 0))
    return min(max(number, -(1 << 63)), (1 << 63) - 1)


def _sleep(seconds: float) -> int:
    if seconds > 0.05:
        raise Mistake.TIMEOUT()
    time.sleep(max(seconds, 0))
    return 0


_FUNCTIONS: dict[str, tuple[int, Function]] = {
    "upper": (1, _nullable(str.upper)),
    "lower": (1, _nullable(str.lower)),
    "concat": (-1, _nullable(lambda *parts: _bounded("".join(parts)))),
    "concat_ws": (-1, _concat_ws),
    "octet_length": (1, _nullable(lambda text: len(text.encode()))),
    "left": (2, _nullable(lambda text, count: text[: max(round(count), 0)])),
    "right": (2, _nullable(lambda text, count: text[-round(count) :] if count >= 1 else "")),
    "substr": (-1, _nullable(_substr)),
    "substring_index": (3, _nullable(_substring_index)),
    "lpad": (3, _nullable(lambda text, count, filling: _pad(text, round(count), filling, True))),
    "rpad": (3, _nullable(lambda text, count, filling: _pad(text, round(count), filling, False))),
    "reverse": (1, _nullable(lambda text: text[::-1])),
    "repeat": (
        2,
        _nullable(
            lambda text, count: (
                text * max(round(count), 0) if len(text) * count <= MAX_TEXT_CHARS else None
            )
        ),
    ),
    "locate": (-1, _nullable(_locate)),
    "insert": (4, _nullable(_insert)),
    "trim": (3, _nullable(_trim)),
    "ascii": (1, _nullable(lambda text: text.encode()[0] if text else 0)),
    "hex": (1, _nullable(_hex)),
    "unhex": (1, _nullable(_unhex)),
    "bin": (1, _nullable(lambda value: f"{round(value) & (1 << 64) - 1:b}")),
    "oct": (1, _nullable(lambda value: f"{round(value) & (1 << 64) - 1:o}")),
    "bit_count": (1, _nullable(lambda value: (round(value) & (1 << 64) - 1).bit_count())),
    "conv": (3, _nullable(_conv)),
    "md5": (1, _nullable(lambda text: hashlib.md5(text.encode()).hexdigest())),
    "sha1": (1, _nullable(lambda text: hashlib.sha1(text.encode()).hexdigest())),
    "sha2": (2, _nullable(_sha2)),
    "crc32": (1, _nullable(lambda text: zlib.crc32(text.encode()))),
    "find_in_set": (2, _nullable(_find_in_set)),
    "elt": (-1, _elt),
    "strcmp": (2, _nullable(_strcmp)),
    "soundex": (1, _nullable(_soundex)),
    "format": (2, _nullable(_format)),
    "round": (3, _nullable(_round)),
    "truncate": (3, _nullable(_truncate)),
    "ceil": (1, _nullable(lambda value: _whole(math.ceil, value))),
    "floor": (1, _nullable(lambda value: _whole(math.floor, value))),
    "mod": (2, _nullable(_mod)),
    "sqrt": (1, _real(math.sqrt)),
    "pow": (2, _real(lambda base, power: float(base) ** power)),
    "exp": (1, _real(math.exp)),
    "ln": (-1, _real(_log)),
    "log2": (1, _real(math.log2)),
    "log10": (1, _real(math.log10)),
    "pi": (0, lambda: 3.141593),
    "sin": (1, _real(math.sin)),
    "cos": (1, _real(math.cos)),
    "tan": (1, _real(math.tan)),
    "atan": (1, _real(math.atan)),
    "atan2": (2, _real(math.atan2)),
    "asin": (1, _real(math.asin)),
    "acos": (1, _real(math.acos)),
    "radians": (1, _real(math.radians)),
    "degrees": (1, _real(math.degrees)),
    "rand": (-1, lambda *seed: (random.Random(*seed) if seed else random).random()),
    "now": (-1, lambda *_: temporal.now().isoformat(" ")),
    "today": (0, lambda: temporal.now().date().isoformat()),
    "time_now": (-1, lambda *_: temporal.now().time().isoformat()),
    "temporal": (2, _nullable(_temporal)),
    "temporal_number": (1, _nullable(_temporal_number)),
    "date_add": (4, _nullable(lambda *values: temporal.add_interval(str(values[0]), *values[1:]))),
    "date_format": (2, _nullable(lambda value, form: temporal.date_format(str(value), form))),
    "datediff": (2, _nullable(lambda a, b: temporal.date_difference(str(a), str(b)))),
    "timestampdiff": (3, _nullable(lambda unit, a, b: temporal.difference(unit, str(a), str(b)))),
    "dayname": (1, _of_date(lambda moment: f"{moment:%A}")),
    "monthname": (1, _of_date(lambda moment: f"{moment:%B}")),
    "last_day": (
        1,
        _of_date(
            lambda moment: moment.replace(
                day=temporal.monthrange(moment.year, moment.month)[1]
            ).strftime("%Y-%m-%d")
        ),
    ),
    "makedate": (
        2,
        _nullable(
            lambda year, day: (
                temporal.add_interval(f"{year:04}-01-01", day - 1, "DAY", 1) if day > 0 else None
            )
        ),
    ),
    "to_days": (1, _of_date(lambda moment: moment.toordinal() + 365)),
    "from_days": (1, _nullable(lambda n: temporal.date.fromordinal(n - 365).isoformat())),
    "unix_timestamp": (-1, _nullable(_unix_timestamp)),
    "from_unixtime": (1, _nullable(_from_unixtime)),
    "time_to_sec": (1, _nullable(_seconds)),
    "sec_to_time": (1, _nullable(_sec_to_time)),
    "timediff": (2, _nullable(_timediff)),
    "week": (-1, _nullable(_week)),
    "yearweek": (-1, _nullable(_yearweek)),
    "str_to_date": (3, _nullable(_str_to_date)),
    **{
        f"part_{name}": (1, _part(name))
        for name in (
            *("year", "month", "day", "dayofmonth", "dayofweek", "dayofyear", "weekday"),
            *("hour", "minute", "second", "microsecond", "quarter", "weekofyear"),
        )
    },
    "regexp": (-1, _nullable(_regexp)),
    "regexp_replace": (3, _nullable(_regexp_replace)),
    "regexp_substr": (2, _nullable(_regexp_substr)),
    "regexp_instr": (2, _nullable(_regexp_instr)),
    "like": (3, _nullable(like)),
    "single_row": (2, _single_row),
    "row_key": (-1, _row_key),
    "store": (5, _stored),
    "decimal_text": (2, _nullable(_decimal_text)),
    "float_text": (2, _nullable(_float_text)),
    "number": (1, strict_number),
    "divisor": (1, _divisor),
    "cast_integer": (1, _nullable(_cast_integer)),
    "isnull": (1, lambda value: int(value is None)),
    "sleep": (1, _nullable(_sleep)),
    "benchmark": (2, lambda *_: 0),
    "uuid": (0, lambda: str(uuid.uuid4())),
    "connection_id": (0, lambda: 1),
}


def install_functions(connection: sqlite3.Connection) -> FunctionErrors:
    """Gives a connection MySQL's functions; the result holds the errors that they raise."""
    errors = FunctionErrors()

    def guarded(function: Function) -> Function:
        def call(*arguments: SQLiteValue) -> SQLiteValue:
            try:
                return function(*arguments)
            except MySQLError as error:
                errors.error = error
                raise

        return call

    for name, (num_arguments, function) in _FUNCTIONS.items():
        connection.create_function(f"my_{name}", num_arguments, guarded(function))
    for name, kind in AGGREGATE_CLASSES.items():
        connection.create_window_function(f"my_{name}", -1, kind)
    connection.create_function("my_get", 1, errors.variables.get)
    connection.create_function("my_set", 2, lambda n, v: errors.variables.__setitem__(n, v) or v)
    return errors
