"""Scalar functions: which SQLite function each becomes, and its result's type."""

import re
from collections.abc import Callable, Sequence

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.aggregates import (
    AGGREGATES,
    WINDOW_FUNCTIONS,
    compile_aggregate,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.coercion import (
    align,
    convert,
    to_number,
    to_text,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.expressions import (
    compile_expression,
    handles,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.operators import modulo, shifted_date
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import (
    NEW_ROW,
    Fragment,
    Scope,
    name_of,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.temporal import UNITS
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    DATE,
    DATETIME,
    DOUBLE,
    INTEGER,
    MAX_SCALE,
    TEXT,
    TIME,
    Kind,
    SqlType,
    merge_types,
    quote_text,
)

Builder = Callable[[list[Fragment], Scope], Fragment]
BUILDERS: dict[str, tuple[int, int, Builder]] = {}
"""By name: (least arguments, most arguments, function)."""


def _builds(name: str, least: int, most: int | None = None) -> Callable[[Builder], Builder]:
    def register(builder: Builder) -> Builder:
        BUILDERS[name] = (least, least if most is None else most, builder)
        return builder

    return register


@_builds("IFNULL", 1, 64)
def _coalesce(values: list[Fragment], scope: Scope) -> Fragment:
    kind = merge_types(value.type for value in values)
    converted = [convert(value, kind).sql for value in values]
    return Fragment(f"coalesce({', '.join([*converted, 'NULL'])})", kind)


@_builds("NULLIF", 2)
def _nullif(values: list[Fragment], scope: Scope) -> Fragment:
    test = " = ".join(align(values))
    return Fragment(f"(CASE WHEN {test} THEN NULL ELSE {values[0].sql} END)", values[0].type)


@_builds("ABS", 1)
def _abs(values: list[Fragment], scope: Scope) -> Fragment:
    value = to_number(values[0])
    kind = DOUBLE if value.type.kind is Kind.FLOAT else value.type
    return Fragment(f"abs({value.sql})", kind)


@_builds("FORMAT", 2)
def _format(values: list[Fragment], scope: Scope) -> Fragment:
    rounded = _rounded("my_round", values).sql
    return Fragment(f"my_format({rounded}, {to_number(values[1]).sql})", TEXT)


def _rounded(function: str, values: list[Fragment]) -> Fragment:
    value = to_number(values[0])
    places = to_number(values[1]) if len(values) > 1 else Fragment("0", INTEGER, literal="0")
    kind = DOUBLE if value.type.kind is Kind.FLOAT else value.type
    if kind.kind in (Kind.DECIMAL, Kind.DOUBLE):
        digits = kind.scale
        if places.literal is not None:
            digits = min(max(int(float(places.literal)), 0), MAX_SCALE)
        kind = SqlType(kind.kind, digits)
    is_decimal = int(kind.kind in (Kind.DECIMAL, Kind.INTEGER))
    return Fragment(f"{function}({value.sql}, {places.sql}, {is_decimal})", kind)


def _whole(function: str, values: list[Fragment]) -> Fragment:
    value = to_number(values[0])
    is_double = value.type.kind in (Kind.FLOAT, Kind.DOUBLE)
    return Fragment(f"{function}({value.sql})", DOUBLE if is_double else INTEGER)


@_builds("FIELD", 2, 64)
def _field(values: list[Fragment], scope: Scope) -> Fragment:
    tests = (" = ".join(align([values[0], other])) for other in values[1:])
    branches = " ".join(f"WHEN {test} THEN {n}" for n, test in enumerate(tests, start=1))
    return Fragment(f"(CASE {branches} ELSE 0 END)", INTEGER)


@_builds("INSTR", 2)
def _instr(values: list[Fragment], scope: Scope) -> Fragment:
    text, part = (to_text(value).sql for value in values)
    return Fragment(f"my_locate({part}, {text})", INTEGER)


@_builds("STR_TO_DATE", 2)
def _str_to_date(values: list[Fragment], scope: Scope) -> Fragment:
    kind = DATETIME
    if values[1].literal is not None:
        codes = set(re.findall(r"%(.)", values[1].literal))
        has_date, has_time = codes & set("YymMcdejDbaW"), codes & set("HhIiSsTrklpf")
        kind = (DATETIME if has_date else TIME) if has_time else DATE
    return Fragment(
        f"my_str_to_date({to_text(values[0]).sql}, {values[1].sql}, '{kind.kind}')", kind
    )


def _moment(value: Fragment, kind: SqlType) -> Fragment:
    return Fragment(f"my_temporal({value.sql}, '{kind.kind}')", kind)


def _extreme(function: str, values: list[Fragment]) -> Fragment:
    return Fragment(f"{function}({', '.join(align(values))})", merge_types(v.type for v in values))


BUILDERS |= {
    "GREATEST": (2, 64, lambda values, _: _extreme("max", values)),
    "LEAST": (2, 64, lambda values, _: _extreme("min", values)),
    "MOD": (2, 2, lambda values, _: modulo(to_number(values[0]), to_number(values[1]))),
    "ROUND": (1, 2, lambda values, _: _rounded("my_round", values)),
    "TRUNCATE": (2, 2, lambda values, _: _rounded("my_truncate", values)),
    "CEIL": (1, 1, lambda values, _: _whole("my_ceil", values)),
    "FLOOR": (1, 1, lambda values, _: _whole("my_floor", values)),
    "DATE": (1, 1, lambda values, _: _moment(values[0], DATE)),
    "TIMESTAMP": (1, 1, lambda values, _: _moment(values[0], DATETIME)),
    "TIME": (1, 1, lambda values, _: _moment(values[0], TIME)),
    "USER": (0, 0, lambda _values, _: Fragment("'agent@%'", TEXT)),
    "VERSION": (0, 0, lambda _values, _: Fragment("'8.0.36'", TEXT)),
    "DATABASE": (0, 0, lambda _, scope: Fragment(quote_text(scope.statement.schema.name), TEXT)),
}


# Arguments: t text, n number, a any; one before "?" may be missing, "*" may be missing or be many.
_PLAIN_TEXTS = {
    TEXT: """upper(t) lower(t) concat(tt*) concat_ws(ttt*) left(tn) right(tn) reverse(t) lpad(tnt)
        substring_index(ttn) rpad(tnt) ltrim(t) rtrim(t) replace(ttt) repeat(tn) insert(tnnt)
        hex(a) bin(n) oct(n) md5(t) sha1(t) sha2(tn) elt(ntt*) quote(t) dayname(a) monthname(a)
        date_format(at) regexp_replace(tttn?n?t?) regexp_substr(ttn?n?t?) substring(tnn?)
        space(n)""",
    INTEGER: """char_length(t) octet_length(t) locate(ttn?) ascii(t) crc32(t) find_in_set(tt)
        strcmp(tt) sign(n) datediff(aa) to_days(a) unix_timestamp(a?) time_to_sec(a) week(an?)
        yearweek(an?) regexp_like(ttt?) regexp_instr(ttn?n?n?t?) last_insert_id() row_count()
        sleep(n) isnull(a) year(a) month(a) day(a) dayofweek(a) dayofyear(a) weekday(a) hour(a)
        minute(a) second(a) microsecond(a) quarter(a) weekofyear(a) bit_count(n)""",
    DOUBLE: """sqrt(n) pow(nn) exp(n) log(nn?) log2(n) log10(n) pi() sin(n) cos(n) tan(n)
        asin(n) acos(n) atan(nn?) cot(n) radians(n) degrees(n) rand(n?)""",
    DATE: "curdate() last_day(a) makedate(nn) from_days(n)",
    DATETIME: "now(n?) from_unixtime(n)",
    TIME: "curtime(n?) sec_to_time(n) timediff(aa) maketime(nnn)",
}
_WITHOUT_MARKS = str.maketrans("", "", "?*")
_PLAIN = {
    match[1].upper(): (match[2], kind)
    for kind, text in _PLAIN_TEXTS.items()
    for match in re.finditer(r"(\w+)\(([^)]*)\)", text)
}
_SQLITE_NAMES = {
    "LTRIM": "ltrim",
    "RTRIM": "rtrim",
    "QUOTE": "quote",
    "CHAR_LENGTH": "length",
    "LAST_INSERT_ID": "last_insert_rowid",
    "ROW_COUNT": "changes",
}
_ALIASES = {
    "UCASE": "UPPER",
    "LCASE": "LOWER",
    "CHARACTER_LENGTH": "CHAR_LENGTH",
    "LENGTH": "OCTET_LENGTH",
    "ORD": "ASCII",
    "SHA": "SHA1",
    "POWER": "POW",
    "ATAN2": "ATAN",
    "LN": "LOG",
    "DAYOFMONTH": "DAY",
    "TIME_FORMAT": "DATE_FORMAT",
    **dict.fromkeys(("SUBSTR", "MID"), "SUBSTRING"),
    **dict.fromkeys(("CURRENT_DATE", "UTC_DATE"), "CURDATE"),
    **dict.fromkeys(("CURRENT_TIME", "UTC_TIME"), "CURTIME"),
    **dict.fromkeys(("LOCALTIME", "LOCALTIMESTAMP", "SYSDATE"), "NOW"),
    **dict.fromkeys(("CURRENT_TIMESTAMP", "UTC_TIMESTAMP"), "NOW"),
    **dict.fromkeys(("CURRENT_USER", "SESSION_USER", "SYSTEM_USER"), "USER"),
    "CEILING": "CEIL",
    "COALESCE": "IFNULL",
    "ADDDATE": "DATE_ADD",
    "SUBDATE": "DATE_SUB",
    "SCHEMA": "DATABASE",
}
_DENIED = frozenset({"GET_LOCK", "RELEASE_LOCK", "LOAD_FILE", "IS_FREE_LOCK"})
_CONVERSIONS: dict[str, Callable[[Fragment], Fragment]] = {
    "t": to_text,
    "n": to_number,
    "a": lambda value: value,
}


@handles(exp.Anonymous)
def _call(node: exp.Expr, scope: Scope) -> Fragment:
    name = name_of(node).upper()
    if name in AGGREGATES:
        return compile_aggregate(node, scope)
    arguments = node.expressions
    if name in ("DATE_ADD", "DATE_SUB", "ADDDATE", "SUBDATE") and len(arguments) == 2:
        return _shifted(arguments, -1 if "SUB" in name else 1, scope)
    if name in ("TIMESTAMPDIFF", "TIMESTAMPADD") and len(arguments) == 3:
        return _by_unit(name, arguments, scope)
    if name == "VALUES" and len(arguments) == 1:
        return scope.find_column(name_of(arguments[0]), NEW_ROW)
    if name in WINDOW_FUNCTIONS:
        raise Misplaced(")")
    if name in _DENIED:
        raise Mistake.PRIVILEGE("FILE" if name == "LOAD_FILE" else "SUPER")
    return _call_by_name(name_of(node), arguments, scope)


def _call_by_name(written: str, arguments: Sequence[exp.Expr], scope: Scope) -> Fragment:
    """Returns a function call. Raises: MySQLError (1305, 1582)."""
    name = written.upper()
    known = _ALIASES.get(name, name)
    if known in _PLAIN:
        return _plain_call(known, arguments, scope)
    if known not in BUILDERS:
        raise Mistake.NO_FUNCTION(scope.statement.schema.name, written)
    least, most, builder = BUILDERS[known]
    if not least <= len(arguments) <= most:
        raise Mistake.ARGUMENTS(name)
    return builder([compile_expression(argument, scope) for argument in arguments], scope)


def _plain_call(name: str, arguments: Sequence[exp.Expr], scope: Scope) -> Fragment:
    pattern, kind = _PLAIN[name]
    letters = pattern.translate(_WITHOUT_MARKS)
    least = 2 * len(letters) - len(pattern)
    most = 64 if pattern.endswith("*") else len(letters)
    if not least <= len(arguments) <= most:
        raise Mistake.ARGUMENTS(name)
    values = []
    for argument, letter in zip(arguments, letters.ljust(64, letters[-1:] or "a"), strict=False):
        values.append(_CONVERSIONS[letter](compile_expression(argument, scope)).sql)
    function = _SQLITE_NAMES.get(name, f"my_{name.lower()}")
    return Fragment(f"{function}({', '.join(values)})", kind)


def _shifted(arguments: Sequence[exp.Expr], sign: int, scope: Scope) -> Fragment:
    interval = arguments[1]
    if not isinstance(interval, exp.Interval):
        interval = exp.Interval(this=interval, unit=exp.Var(this="DAY"))
    return shifted_date(arguments[0], interval, sign, scope)


def _by_unit(name: str, arguments: Sequence[exp.Expr], scope: Scope) -> Fragment:
    unit = arguments[0].name.upper().removeprefix("SQL_TSI_")
    if unit not in UNITS:
        raise Misplaced(unit)
    if name == "TIMESTAMPADD":
        interval = exp.Interval(this=arguments[1], unit=exp.Var(this=unit))
        return shifted_date(arguments[2], interval, 1, scope)
    start, end = (compile_expression(argument, scope).sql for argument in arguments[1:])
    return Fragment(f"my_timestampdiff('{unit}', {start}, {end})", INTEGER)


@handles(exp.Ceil, exp.Floor, exp.Substring, exp.StrPosition)
def _special_syntax(node: exp.Expr, scope: Scope) -> Fragment:
    """Functions with a grammar of their own, such as SUBSTRING(a FROM 2)."""
    if isinstance(node, exp.StrPosition):
        return _call_by_name("LOCATE", [node.args["substr"], node.this], scope)
    parts = [node.this, node.args.get("start"), node.args.get("length")]
    name = type(node).__name__.upper()
    return _call_by_name(name, [part for part in parts if part is not None], scope)


_CURRENT: dict[type[exp.Expr], str] = {
    exp.CurrentDate: "CURDATE",
    exp.CurrentTime: "CURTIME",
    exp.CurrentTimestamp: "NOW",
    exp.Localtime: "NOW",
    exp.Localtimestamp: "NOW",
    exp.CurrentUser: "USER",
}


@handles(*_CURRENT)
def _current(node: exp.Expr, scope: Scope) -> Fragment:
    return _call_by_name(_CURRENT[type(node)], [], scope)


@handles(exp.Trim)
def _trim(node: exp.Expr, scope: Scope) -> Fragment:
    text = to_text(compile_expression(node.this, scope)).sql
    position = node.args.get("position") or "BOTH"
    characters = node.expression
    removed = to_text(compile_expression(characters, scope)).sql if characters else "' '"
    return Fragment(f"my_trim({text}, {removed}, {quote_text(position)})", TEXT)


@handles(exp.Chr)
def _char(node: exp.Expr, scope: Scope) -> Fragment:
    values = (to_number(compile_expression(part, scope)).sql for part in node.expressions)
    return Fragment(f"char({', '.join(values)})", TEXT)


@handles(exp.Extract)
def _extract(node: exp.Expr, scope: Scope) -> Fragment:
    unit = node.name.upper()
    value = compile_expression(node.expression, scope).sql
    if unit == "YEAR_MONTH":
        return Fragment(f"(my_year({value}) * 100 + my_month({value}))", INTEGER)
    if unit not in UNITS or unit not in _PLAIN:
        raise Misplaced(unit)
    return Fragment(f"my_{unit.lower()}({value})", INTEGER)
