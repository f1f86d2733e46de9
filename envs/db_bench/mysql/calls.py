"""MySQL's scalar functions: which SQLite function each becomes, and its result's type."""

from collections.abc import Callable, Sequence

from sqlglot import exp

from agentpeft.envs.db_bench.mysql.aggregates import AGGREGATES, WINDOW_FUNCTIONS, compile_aggregate
from agentpeft.envs.db_bench.mysql.arithmetic import modulo, shifted_date
from agentpeft.envs.db_bench.mysql.coercion import align, choose, convert, to_number, to_text
from agentpeft.envs.db_bench.mysql.compiler import compile_condition, compile_expression, handles
from agentpeft.envs.db_bench.mysql.errors import Mistake
from agentpeft.envs.db_bench.mysql.scopes import Fragment, Scope, name_of
from agentpeft.envs.db_bench.mysql.temporal import UNITS
from agentpeft.envs.db_bench.mysql.types import (
    BLOB,
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

_D, _N = DOUBLE, INTEGER
_PLAIN: dict[str, tuple[str, str, SqlType]] = {
    # name: (SQLite function, arguments, result); t text, n number, a as it is; after "|" optional,
    # "*" repeats the argument before it
    "UPPER": ("my_upper", "t", TEXT),
    "UCASE": ("my_upper", "t", TEXT),
    "LOWER": ("my_lower", "t", TEXT),
    "LCASE": ("my_lower", "t", TEXT),
    "CONCAT": ("my_concat", "tt*", TEXT),
    "CONCAT_WS": ("my_concat_ws", "ttt*", TEXT),
    "CHAR_LENGTH": ("length", "t", _N),
    "CHARACTER_LENGTH": ("length", "t", _N),
    "LENGTH": ("my_octet_length", "t", _N),
    "OCTET_LENGTH": ("my_octet_length", "t", _N),
    "BIT_LENGTH": ("8*my_octet_length", "t", _N),
    "LEFT": ("my_left", "tn", TEXT),
    "RIGHT": ("my_right", "tn", TEXT),
    "SUBSTRING_INDEX": ("my_substring_index", "ttn", TEXT),
    "LPAD": ("my_lpad", "tnt", TEXT),
    "RPAD": ("my_rpad", "tnt", TEXT),
    "LTRIM": ("ltrim", "t", TEXT),
    "RTRIM": ("rtrim", "t", TEXT),
    "REPLACE": ("replace", "ttt", TEXT),
    "REVERSE": ("my_reverse", "t", TEXT),
    "REPEAT": ("my_repeat", "tn", TEXT),
    "SPACE": ("my_repeat", "Sn", TEXT),
    "LOCATE": ("my_locate", "tt|n", _N),
    "INSERT": ("my_insert", "tnnt", TEXT),
    "ASCII": ("my_ascii", "t", _N),
    "ORD": ("my_ascii", "t", _N),
    "HEX": ("my_hex", "a", TEXT),
    "BIN": ("my_bin", "n", TEXT),
    "OCT": ("my_oct", "n", TEXT),
    "CONV": ("my_conv", "ann", TEXT),
    "MD5": ("my_md5", "t", TEXT),
    "SHA": ("my_sha1", "t", TEXT),
    "SHA1": ("my_sha1", "t", TEXT),
    "SHA2": ("my_sha2", "tn", TEXT),
    "CRC32": ("my_crc32", "t", _N),
    "FIND_IN_SET": ("my_find_in_set", "tt", _N),
    "ELT": ("my_elt", "ntt*", TEXT),
    "STRCMP": ("my_strcmp", "tt", _N),
    "QUOTE": ("quote", "t", TEXT),
    "SOUNDEX": ("my_soundex", "t", TEXT),
    "SIGN": ("sign", "n", _N),
    "SQRT": ("my_sqrt", "n", _D),
    "POW": ("my_pow", "nn", _D),
    "POWER": ("my_pow", "nn", _D),
    "EXP": ("my_exp", "n", _D),
    "LN": ("my_ln", "n", _D),
    "LOG": ("my_ln", "n|n", _D),
    "LOG2": ("my_log2", "n", _D),
    "LOG10": ("my_log10", "n", _D),
    "PI": ("my_pi", "", SqlType(Kind.DOUBLE)),
    "SIN": ("my_sin", "n", _D),
    "COS": ("my_cos", "n", _D),
    "TAN": ("my_tan", "n", _D),
    "ATAN": ("my_atan", "n", _D),
    "ATAN2": ("my_atan2", "nn", _D),
    "ASIN": ("my_asin", "n", _D),
    "ACOS": ("my_acos", "n", _D),
    "RADIANS": ("my_radians", "n", _D),
    "DEGREES": ("my_degrees", "n", _D),
    "RAND": ("my_rand", "|n", _D),
    "BIT_COUNT": ("my_bit_count", "n", _N),
    "NOW": ("my_now", "|n", DATETIME),
    "SYSDATE": ("my_now", "|n", DATETIME),
    "CURRENT_TIMESTAMP": ("my_now", "|n", DATETIME),
    "LOCALTIME": ("my_now", "|n", DATETIME),
    "LOCALTIMESTAMP": ("my_now", "|n", DATETIME),
    "UTC_TIMESTAMP": ("my_now", "|n", DATETIME),
    "CURDATE": ("my_today", "", DATE),
    "CURRENT_DATE": ("my_today", "", DATE),
    "UTC_DATE": ("my_today", "", DATE),
    "CURTIME": ("my_time_now", "|n", TIME),
    "CURRENT_TIME": ("my_time_now", "|n", TIME),
    "UTC_TIME": ("my_time_now", "|n", TIME),
    "DATE_FORMAT": ("my_date_format", "at", TEXT),
    "TIME_FORMAT": ("my_date_format", "at", TEXT),
    "DATEDIFF": ("my_datediff", "aa", _N),
    "DAYNAME": ("my_dayname", "a", TEXT),
    "MONTHNAME": ("my_monthname", "a", TEXT),
    "LAST_DAY": ("my_last_day", "a", DATE),
    "MAKEDATE": ("my_makedate", "nn", DATE),
    "TO_DAYS": ("my_to_days", "a", _N),
    "FROM_DAYS": ("my_from_days", "n", DATE),
    "UNIX_TIMESTAMP": ("my_unix_timestamp", "|a", _N),
    "TIME_TO_SEC": ("my_time_to_sec", "a", _N),
    "SEC_TO_TIME": ("my_sec_to_time", "n", TIME),
    "TIMEDIFF": ("my_timediff", "aa", TIME),
    "WEEK": ("my_week", "a|n", _N),
    "YEARWEEK": ("my_yearweek", "a|n", _N),
    "REGEXP_LIKE": ("my_regexp", "tt|t", _N),
    "REGEXP_REPLACE": ("my_regexp_replace", "ttt", TEXT),
    "REGEXP_SUBSTR": ("my_regexp_substr", "tt", TEXT),
    "REGEXP_INSTR": ("my_regexp_instr", "tt", _N),
    "LAST_INSERT_ID": ("last_insert_rowid", "", _N),
    "ROW_COUNT": ("changes", "", _N),
    "SLEEP": ("my_sleep", "n", _N),
    "BENCHMARK": ("my_benchmark", "na", _N),
    "UUID": ("my_uuid", "", TEXT),
    "ISNULL": ("my_isnull", "a", _N),
    "CONNECTION_ID": ("my_connection_id", "", _N),
    "UNHEX": ("my_unhex", "t", BLOB),
    **{
        name: (f"my_part_{name.lower()}", "a", _N)
        for name in (
            *("YEAR", "MONTH", "DAY", "DAYOFMONTH", "DAYOFWEEK", "DAYOFYEAR", "WEEKDAY"),
            *("HOUR", "MINUTE", "SECOND", "MICROSECOND", "QUARTER", "WEEKOFYEAR"),
        )
    },
}
Builder = Callable[[Sequence[exp.Expression], Scope], Fragment]
_BUILDERS: dict[str, Builder] = {}


def _builds(*names: str) -> Callable[[Builder], Builder]:
    def register(builder: Builder) -> Builder:
        _BUILDERS.update(dict.fromkeys(names, builder))
        return builder

    return register


@handles(exp.Anonymous)
def compile_call(node: exp.Expression, scope: Scope) -> Fragment:
    """Returns a function call. Raises: MySQLError (1305, 1582)."""
    name = name_of(node).upper()
    if name in AGGREGATES:
        return compile_aggregate(node, scope)
    if name in _PLAIN:
        return _plain_call(name, node.expressions, scope)
    if name in _BUILDERS:
        return _BUILDERS[name](node.expressions, scope)
    if name in WINDOW_FUNCTIONS:
        raise Mistake.SYNTAX(")", 1)
    if name in ("GET_LOCK", "RELEASE_LOCK", "LOAD_FILE", "MASTER_POS_WAIT"):
        raise Mistake.PRIVILEGE("FILE" if name == "LOAD_FILE" else "SUPER")
    raise Mistake.NO_FUNCTION(scope.statement.schema.name, name_of(node))


def _plain_call(name: str, arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    function, letters, kind = _PLAIN[name]
    if name.startswith("REGEXP"):
        scope.statement.needs_worker = True
    constant = letters.startswith("S")
    required, _, optional = letters.removeprefix("S").partition("|")
    is_open = required.endswith("*")
    required = required.rstrip("*")
    most = 64 if is_open else len(required) + len(optional)
    least = len(required) - is_open
    if not least <= len(arguments) <= most:
        raise Mistake.ARGUMENTS(name)
    letters = required + optional
    values = ["' '"] if constant else []
    for index, argument in enumerate(arguments):
        letter = letters[min(index, len(letters) - 1)]
        value = compile_expression(argument, scope)
        values.append(_CONVERSIONS[letter](value).sql)
    return Fragment(f"{function}({', '.join(values)})", kind)


_CONVERSIONS: dict[str, Callable[[Fragment], Fragment]] = {
    "t": to_text,
    "n": to_number,
    "a": lambda value: value,
}


def _values(
    name: str, arguments: Sequence[exp.Expression], scope: Scope, least: int, most: int = 64
) -> list[Fragment]:
    if not least <= len(arguments) <= most:
        raise Mistake.ARGUMENTS(name)
    return [compile_expression(argument, scope) for argument in arguments]


@_builds("IFNULL", "COALESCE")
def _coalesce(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    values = _values("IFNULL", arguments, scope, 1)
    kind = merge_types(value.type for value in values)
    converted = [convert(value, kind).sql for value in values]
    if len(converted) == 1:
        return Fragment(converted[0], kind)
    return Fragment(f"coalesce({', '.join(converted)})", kind)


@_builds("NULLIF")
def _nullif(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    left, right = _values("NULLIF", arguments, scope, 2, 2)
    first, second = align([left, right])
    return Fragment(f"(CASE WHEN {first} = {second} THEN NULL ELSE {left.sql} END)", left.type)


@_builds("GREATEST")
def _greatest(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    return _extreme("max", arguments, scope)


@_builds("LEAST")
def _least(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    return _extreme("min", arguments, scope)


def _extreme(function: str, arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    values = _values("GREATEST" if function == "max" else "LEAST", arguments, scope, 2)
    kind = merge_types(value.type for value in values)
    return Fragment(f"{function}({', '.join(align(values))})", kind)


@_builds("ABS")
def _abs(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    value = to_number(_values("ABS", arguments, scope, 1, 1)[0])
    return Fragment(f"abs({value.sql})", value.type)


@_builds("MOD")
def _mod(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    left, right = _values("MOD", arguments, scope, 2, 2)
    return modulo(to_number(left), to_number(right))


@_builds("ROUND")
def _round(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    return _rounding("my_round", "ROUND", arguments, scope)


@_builds("TRUNCATE")
def _truncate(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    return _rounding("my_truncate", "TRUNCATE", arguments, scope)


def _rounding(
    function: str, name: str, arguments: Sequence[exp.Expression], scope: Scope
) -> Fragment:
    values = [to_number(value) for value in _values(name, arguments, scope, 1, 2)]
    value = values[0]
    places = values[1] if len(values) > 1 else Fragment("0", INTEGER, literal="0")
    kind = value.type
    if kind.kind is Kind.FLOAT:
        kind = DOUBLE
    if kind.kind is Kind.DECIMAL:
        digits = kind.scale
        if places.literal is not None:
            digits = min(max(int(float(places.literal)), 0), MAX_SCALE)
        kind = SqlType(Kind.DECIMAL, digits)
    is_decimal = int(value.type.kind in (Kind.DECIMAL, Kind.INTEGER))
    return Fragment(f"{function}({value.sql}, {places.sql}, {is_decimal})", kind)


@handles(exp.Ceil)
def _ceil_node(node: exp.Expression, scope: Scope) -> Fragment:
    return _whole("my_ceil", [node.this], scope)


@handles(exp.Floor)
def _floor_node(node: exp.Expression, scope: Scope) -> Fragment:
    return _whole("my_floor", [node.this], scope)


@_builds("CEIL", "CEILING")
def _ceil(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    return _whole("my_ceil", arguments, scope)


@_builds("FLOOR")
def _floor(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    return _whole("my_floor", arguments, scope)


def _whole(function: str, arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    value = to_number(_values(function[3:].upper(), arguments, scope, 1, 1)[0])
    is_double = value.type.kind in (Kind.FLOAT, Kind.DOUBLE)
    return Fragment(f"{function}({value.sql})", DOUBLE if is_double else INTEGER)


@_builds("FORMAT")
def _format(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    value, places = _values("FORMAT", arguments, scope, 2, 2)
    return Fragment(f"my_format({to_number(value).sql}, {to_number(places).sql})", TEXT)


@_builds("FIELD")
def _field(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    value, *others = _values("FIELD", arguments, scope, 2)
    tests = [" = ".join(align([value, other])) for other in others]
    branches = " ".join(f"WHEN {test} THEN {n}" for n, test in enumerate(tests, start=1))
    return Fragment(f"(CASE {branches} ELSE 0 END)", INTEGER)


@_builds("SUBSTRING", "SUBSTR", "MID")
def _substring(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    text, *rest = _values("SUBSTRING", arguments, scope, 2, 3)
    numbers = ", ".join(to_number(value).sql for value in rest)
    return Fragment(f"my_substr({to_text(text).sql}, {numbers})", TEXT)


@handles(exp.Substring)
def _substring_node(node: exp.Expression, scope: Scope) -> Fragment:
    parts = [node.this, node.args.get("start"), node.args.get("length")]
    return _substring([part for part in parts if part is not None], scope)


@handles(exp.Trim)
def _trim(node: exp.Expression, scope: Scope) -> Fragment:
    text = to_text(compile_expression(node.this, scope)).sql
    characters = node.expression
    position = node.args.get("position") or "BOTH"
    if characters is None and position == "BOTH":
        return Fragment(f"trim({text})", TEXT)
    removed = to_text(compile_expression(characters, scope)).sql if characters else "' '"
    return Fragment(f"my_trim({text}, {removed}, {quote_text(position)})", TEXT)


@handles(exp.StrPosition)
def _position(node: exp.Expression, scope: Scope) -> Fragment:
    return _plain_call("LOCATE", [node.args["substr"], node.this], scope)


@_builds("INSTR")
def _instr(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    if len(arguments) != 2:
        raise Mistake.ARGUMENTS("INSTR")
    return _plain_call("LOCATE", [arguments[1], arguments[0]], scope)


@handles(exp.Chr)
def _char(node: exp.Expression, scope: Scope) -> Fragment:
    values = (to_number(compile_expression(part, scope)).sql for part in node.expressions)
    return Fragment(f"char({', '.join(values)})", TEXT)


@handles(exp.CurrentDate, exp.CurrentTimestamp, exp.CurrentTime, exp.Localtime, exp.Localtimestamp)
def _current(node: exp.Expression, scope: Scope) -> Fragment:
    names = {exp.CurrentDate: "CURDATE", exp.CurrentTime: "CURTIME"}
    return _plain_call(names.get(type(node), "NOW"), [], scope)


@handles(exp.CurrentUser)
def _current_user(node: exp.Expression, scope: Scope) -> Fragment:
    return Fragment("'agent@%'", TEXT)


@_builds("USER", "CURRENT_USER", "SESSION_USER", "SYSTEM_USER")
def _user(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    return Fragment("'agent@%'", TEXT)


@_builds("DATABASE", "SCHEMA")
def _database(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    return Fragment(quote_text(scope.statement.schema.name), TEXT)


@_builds("VERSION")
def _version(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    return Fragment("'8.0.36'", TEXT)


@handles(exp.Extract)
def _extract(node: exp.Expression, scope: Scope) -> Fragment:
    unit = node.name.upper()
    value = compile_expression(node.expression, scope)
    if unit == "WEEK":
        return Fragment(f"my_week({value.sql})", INTEGER)
    if unit == "YEAR_MONTH":
        return Fragment(f"(my_part_year({value.sql}) * 100 + my_part_month({value.sql}))", INTEGER)
    if f"my_part_{unit.lower()}" not in {function for function, _, _ in _PLAIN.values()}:
        raise Mistake.SYNTAX(unit, 1)
    return Fragment(f"my_part_{unit.lower()}({value.sql})", INTEGER)


@_builds("DATE")
def _date(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    value = _values("DATE", arguments, scope, 1, 1)[0]
    return Fragment(f"my_temporal({value.sql}, 'date')", DATE)


@_builds("TIMESTAMP")
def _timestamp(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    value = _values("TIMESTAMP", arguments, scope, 1, 1)[0]
    return Fragment(f"my_temporal({value.sql}, 'datetime')", DATETIME)


@_builds("TIME")
def _time(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    value = _values("TIME", arguments, scope, 1, 1)[0]
    return Fragment(f"my_temporal({value.sql}, 'time')", TIME)


@_builds("STR_TO_DATE")
def _str_to_date(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    text, pattern = _values("STR_TO_DATE", arguments, scope, 2, 2)
    kind = DATETIME
    if pattern.literal is not None:
        codes = set(pattern.literal[1:]) & set("HhIiSsTrkl")
        dates = set(pattern.literal) & set("YymMcdejDb")
        kind = (DATETIME if dates else TIME) if codes & set("HhIisSTrkl") else DATE
    return Fragment(f"my_str_to_date({to_text(text).sql}, {pattern.sql}, '{kind.kind}')", kind)


@_builds("DATE_ADD", "ADDDATE")
def _date_add(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    return _shift("DATE_ADD", arguments, 1, scope)


@_builds("DATE_SUB", "SUBDATE")
def _date_sub(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    return _shift("DATE_SUB", arguments, -1, scope)


def _shift(name: str, arguments: Sequence[exp.Expression], sign: int, scope: Scope) -> Fragment:
    if len(arguments) != 2:
        raise Mistake.ARGUMENTS(name)
    interval = arguments[1]
    if not isinstance(interval, exp.Interval):
        interval = exp.Interval(this=interval, unit=exp.Var(this="DAY"))
    return shifted_date(arguments[0], interval, sign, scope)


@_builds("TIMESTAMPDIFF", "TIMESTAMPADD")
def _timestampdiff(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    if len(arguments) != 3:
        raise Mistake.ARGUMENTS("TIMESTAMPDIFF")
    unit = arguments[0].name.upper().removeprefix("SQL_TSI_")
    if unit not in UNITS:
        raise Mistake.SYNTAX(unit, 1)
    start, end = (compile_expression(argument, scope).sql for argument in arguments[1:])
    return Fragment(f"my_timestampdiff('{unit}', {start}, {end})", INTEGER)


@_builds("FROM_UNIXTIME")
def _from_unixtime(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    value, *pattern = _values("FROM_UNIXTIME", arguments, scope, 1, 2)
    moment = f"my_from_unixtime({to_number(value).sql})"
    if pattern:
        return Fragment(f"my_date_format({moment}, {pattern[0].sql})", TEXT)
    return Fragment(moment, DATETIME)


@_builds("IF")
def _if(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    if len(arguments) != 3:
        raise Mistake.ARGUMENTS("IF")
    values = [compile_expression(argument, scope) for argument in arguments[1:]]
    return choose([compile_condition(arguments[0], scope)], values)


@_builds("VALUES")
def _inserted(arguments: Sequence[exp.Expression], scope: Scope) -> Fragment:
    return scope.find_column(name_of(arguments[0]), "new row")
