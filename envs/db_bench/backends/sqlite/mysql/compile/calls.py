"""Functions, aggregates and windows: which SQLite function each becomes, and its result's type."""

import re
from collections.abc import Callable, Sequence

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql import types
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.expressions import (
    modulo,
    shift_date,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import Fragment, Scope, name_of
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.values import (
    STRICT,
    align,
    collated,
    compile_expression,
    convert,
    handles,
    rounded,
    to_number,
    to_temporal,
    to_text,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.words import FUNCTIONS, RESERVED_WORDS
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.dates import UNITS
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Kind, SqlType

Builder = Callable[[list[Fragment]], Fragment]
_MOST = 64


def _coalesce(values: list[Fragment]) -> Fragment:
    kind = types.merge_types(value.type for value in values)
    converted = [convert(value, kind).sql for value in values]
    return Fragment(f"coalesce({', '.join([*converted, 'NULL'])})", kind)


def _nullif(values: list[Fragment]) -> Fragment:
    test = " = ".join(align([rounded(value) for value in values]))
    return Fragment(f"(CASE WHEN {test} THEN NULL ELSE {values[0].sql} END)", values[0].type)


def _abs(values: list[Fragment]) -> Fragment:
    value = to_number(values[0])
    kind = types.DOUBLE if value.type.kind is Kind.FLOAT else value.type
    return Fragment(f"abs({value.sql})", kind)


def _rounded(function: str, values: list[Fragment]) -> Fragment:
    """ROUND and TRUNCATE: the places are known, for they are the type's decimals."""
    value = to_number(values[0])
    places = _whole_number(values[1]) if len(values) > 1 else 0
    kind = types.DOUBLE if value.type.kind is Kind.FLOAT else value.type
    if kind.kind in (Kind.DECIMAL, Kind.DOUBLE):
        kind = SqlType(kind.kind, min(max(places, 0), types.MAX_SCALE))
    if function == "my_truncate":
        return Fragment(f"my_truncate({value.sql}, {places})", kind)
    is_decimal = int(kind.kind in (Kind.DECIMAL, Kind.INTEGER))
    return Fragment(f"my_round({value.sql}, {places}, {is_decimal})", kind)


def _whole_number(value: Fragment) -> int:
    if value.literal is None or value.type.kind is not Kind.INTEGER:
        raise Mistake.NOT_SUPPORTED("a number of decimals that is no literal")
    return min(max(int(value.literal), -types.MAX_SCALE), types.MAX_SCALE)


def _format(values: list[Fragment]) -> Fragment:
    places = max(_whole_number(values[1]), 0)
    return Fragment(f"my_format({_rounded('my_round', values).sql}, {places})", types.TEXT)


def _whole(function: str, values: list[Fragment]) -> Fragment:
    value = to_number(values[0])
    is_double = value.type.kind in types.FLOATS
    return Fragment(f"{function}({value.sql})", types.DOUBLE if is_double else types.INTEGER)


def _field(values: list[Fragment]) -> Fragment:
    if len({value.type.kind in types.NUMBERS for value in values}) > 1:
        raise Mistake.NOT_SUPPORTED("FIELD of several types")
    tests = (" = ".join(align([values[0], other])) for other in values[1:])
    branches = " ".join(f"WHEN {test} THEN {n}" for n, test in enumerate(tests, start=1))
    return Fragment(f"(CASE {branches} ELSE 0 END)", types.INTEGER)


def _extreme(function: str, values: list[Fragment]) -> Fragment:
    kinds = {value.type.kind for value in values} - {Kind.NULL}
    if not kinds <= types.NUMBERS and len(kinds) > 1:
        raise Mistake.NOT_SUPPORTED("GREATEST and LEAST of several types")
    kind = types.merge_types(value.type for value in values)
    return Fragment(f"{function}({', '.join(align(values))})", kind)


def _date(values: list[Fragment]) -> Fragment:
    if values[0].type.kind in types.NUMBERS | {Kind.TIME}:
        raise Mistake.NOT_SUPPORTED(f"DATE of {values[0].type.kind}")
    return Fragment(to_temporal(values[0]._replace(literal=None), Kind.DATE).sql, types.DATE)


_BUILDERS: dict[str, tuple[int, int, Builder]] = {
    "IFNULL": (2, 2, _coalesce),
    "COALESCE": (1, _MOST, _coalesce),
    "NULLIF": (2, 2, _nullif),
    "ISNULL": (1, 1, lambda v: Fragment(f"({v[0].sql} IS NULL)", types.INTEGER)),
    "FIELD": (2, _MOST, _field),
    "ABS": (1, 1, _abs),
    "FORMAT": (2, 2, _format),
    "GREATEST": (2, _MOST, lambda values: _extreme("max", values)),
    "LEAST": (2, _MOST, lambda values: _extreme("min", values)),
    "MOD": (2, 2, lambda values: modulo(to_number(values[0]), to_number(values[1]))),
    "ROUND": (1, 2, lambda values: _rounded("my_round", values)),
    "TRUNCATE": (2, 2, lambda values: _rounded("my_truncate", values)),
    **dict.fromkeys(("CEIL", "CEILING"), (1, 1, lambda values: _whole("my_ceil", values))),
    "FLOOR": (1, 1, lambda values: _whole("my_floor", values)),
    "DATE": (1, 1, _date),
    "INSTR": (2, 2, lambda v: Fragment(
        f"my_locate({to_text(v[1]).sql}, {to_text(v[0]).sql})", types.INTEGER)),
    "VERSION": (0, 0, lambda _: Fragment("'8.0.36'", types.TEXT)),
}  # fmt: skip

# Arguments: t text, i whole number, n number, d date, c time or date; one before "?" may be
# missing, "*" may be missing or be many.
_PLAIN_TEXTS = {
    types.TEXT: """upper(t) lower(t) concat(tt*) concat_ws(ttt*) left(ti) right(ti) reverse(t)
        lpad(tit) rpad(tit) ltrim(t) rtrim(t) replace(ttt) repeat(ti) substring(tii?)
        substring_index(tti) dayname(d) monthname(d) date_format(dt)""",
    types.INTEGER: """char_length(t) octet_length(t) locate(tti?) ascii(t) sign(n) datediff(dd)
        year(d) quarter(d) month(d) day(d) dayofweek(d) dayofyear(d) weekday(d) hour(c) minute(c)
        second(c) sleep(n)""",
    types.DOUBLE: "sqrt(n) pow(nn) rand()",
    types.DATE: "curdate() last_day(d)",
    types.DATETIME: "now()",
}
_WITHOUT_MARKS = str.maketrans("", "", "?*")
_PLAIN = {
    match[1].upper(): (match[2], kind)
    for kind, text in _PLAIN_TEXTS.items()
    for match in re.finditer(r"(\w+)\(([^)]*)\)", text)
}
_SQLITE_NAMES = {"LTRIM": "ltrim", "RTRIM": "rtrim", "CHAR_LENGTH": "length"}
_ALIASES = {
    "UCASE": "UPPER",
    "LCASE": "LOWER",
    "CHARACTER_LENGTH": "CHAR_LENGTH",
    "LENGTH": "OCTET_LENGTH",
    "POWER": "POW",
    "DAYOFMONTH": "DAY",
    **dict.fromkeys(("SUBSTR", "MID"), "SUBSTRING"),
    "CURRENT_DATE": "CURDATE",
    "CURRENT_TIMESTAMP": "NOW",
}


def _convert_argument(letter: str, value: Fragment, name: str) -> str:
    """Returns an argument of a function as its kind asks. Raises: MySQLError (1235)."""
    if letter == "t":
        return to_text(value).sql
    if letter == "n":
        return to_number(value).sql
    kind = value.type.kind
    allowed = {Kind.INTEGER} if letter == "i" else {Kind.DATE, Kind.DATETIME, Kind.TEXT}
    if kind not in allowed | {Kind.NULL} and not (letter == "c" and kind is Kind.TIME):
        raise Mistake.NOT_SUPPORTED(f"{name} of {kind}")
    is_date = letter in "dc" and kind is Kind.TEXT and STRICT.get()
    return f"my_strict_date({value.sql})" if is_date else value.sql


@handles(exp.Anonymous)
def _call(node: exp.Expr, scope: Scope) -> Fragment:
    name = name_of(node).upper()
    arguments = node.expressions
    if name in AGGREGATES:
        return _aggregate(node, scope)
    if name in _DATE_SHIFTS and len(arguments) == 2:
        interval = arguments[1]
        if not isinstance(interval, exp.Interval):
            raise Mistake.NOT_SUPPORTED(f"{name} without INTERVAL")
        return shift_date(arguments[0], interval, _DATE_SHIFTS[name], scope)
    if name == "TIMESTAMPDIFF" and len(arguments) == 3:
        return _difference(arguments, scope)
    if name in _RANKS or name in _SHIFTS:
        raise Misplaced(")")
    return _call_by_name(name_of(node), arguments, scope)


_DATE_SHIFTS = {"DATE_ADD": 1, "ADDDATE": 1, "DATE_SUB": -1, "SUBDATE": -1}


def _difference(arguments: Sequence[exp.Expr], scope: Scope) -> Fragment:
    unit = arguments[0].name.upper().removeprefix("SQL_TSI_")
    if unit not in UNITS:
        raise Mistake.NOT_SUPPORTED(unit) if unit == "MICROSECOND" else Misplaced(unit)
    start, end = (
        _convert_argument("d", compile_expression(argument, scope), "TIMESTAMPDIFF")
        for argument in arguments[1:]
    )
    return Fragment(f"my_timestampdiff('{unit}', {start}, {end})", types.INTEGER)


def _call_by_name(written: str, arguments: Sequence[exp.Expr], scope: Scope) -> Fragment:
    """Returns a function call. Raises: MySQLError (1235, 1305, 1582)."""
    name = written.upper()
    known = _ALIASES.get(name, name)
    if known == "DATABASE" and not arguments:
        return Fragment(types.quote_text(scope.schema.name), types.TEXT)
    if known in _PLAIN:
        return _plain_call(known, name, arguments, scope)
    if known not in _BUILDERS:
        is_known = name in FUNCTIONS or name in _DATE_SHIFTS or name == "TIMESTAMPDIFF"
        if is_known:
            raise Mistake.NOT_SUPPORTED(written)
        if name in RESERVED_WORDS:
            raise Misplaced(written)
        raise Mistake.NO_FUNCTION(scope.schema.name, written)
    least, most, builder = _BUILDERS[known]
    if not least <= len(arguments) <= most:
        raise Mistake.ARGUMENTS(name)
    return builder([compile_expression(argument, scope) for argument in arguments])


def _plain_call(name: str, written: str, arguments: Sequence[exp.Expr], scope: Scope) -> Fragment:
    pattern, kind = _PLAIN[name]
    letters = pattern.translate(_WITHOUT_MARKS)
    least = 2 * len(letters) - len(pattern)
    most = _MOST if pattern.endswith("*") else len(letters)
    if not least <= len(arguments) <= most:
        if name in ("NOW", "RAND"):
            raise Mistake.NOT_SUPPORTED(f"{written} with an argument")
        raise Mistake.ARGUMENTS(written)
    letters = letters.ljust(_MOST, letters[-1:] or "t")
    values = [
        _convert_argument(letter, compile_expression(argument, scope), written)
        for argument, letter in zip(arguments, letters, strict=False)
    ]
    function = _SQLITE_NAMES.get(name, f"my_{name.lower()}")
    return Fragment(f"{function}({', '.join(values)})", kind)


@handles(exp.Ceil, exp.Floor, exp.Substring, exp.StrPosition, exp.CurrentDate, exp.CurrentTimestamp)
def _special_syntax(node: exp.Expr, scope: Scope) -> Fragment:
    """Functions with a grammar of their own, such as SUBSTRING(a FROM 2)."""
    if isinstance(node, exp.StrPosition):
        return _call_by_name("LOCATE", [node.args["substr"], node.this], scope)
    if isinstance(node, exp.CurrentDate | exp.CurrentTimestamp):
        name = "CURDATE" if isinstance(node, exp.CurrentDate) else "NOW"
        return _call_by_name(name, [node.this] if node.this else [], scope)
    parts = [node.this, node.args.get("start"), node.args.get("length")]
    name = type(node).__name__.upper()
    return _call_by_name(name, [part for part in parts if part is not None], scope)


@handles(exp.Trim)
def _trim(node: exp.Expr, scope: Scope) -> Fragment:
    text = to_text(compile_expression(node.this, scope)).sql
    position = node.args.get("position") or "BOTH"
    removed = to_text(compile_expression(node.expression, scope)).sql if node.expression else "' '"
    return Fragment(f"my_trim({text}, {removed}, {types.quote_text(position)})", types.TEXT)


@handles(exp.Extract)
def _extract(node: exp.Expr, scope: Scope) -> Fragment:
    unit = node.name.upper()
    if unit not in UNITS or unit not in _PLAIN:
        if "_" in unit or unit in ("WEEK", "MICROSECOND"):
            raise Mistake.NOT_SUPPORTED(f"EXTRACT({unit} …)")
        raise Misplaced(unit)
    return _call_by_name(unit, [node.expression], scope)


AGGREGATES = frozenset({"COUNT", "SUM", "AVG", "MIN", "MAX", "ANY_VALUE"})
_RANKS = frozenset({"ROW_NUMBER", "RANK", "DENSE_RANK"})
_SHIFTS = frozenset({"LAG", "LEAD"})


def _aggregate(node: exp.Expr, scope: Scope) -> Fragment:
    """Returns an aggregate call of a query block. Raises: MySQLError (1111)."""
    if not scope.aggregates_allowed:
        raise Mistake.GROUP_FUNCTION()
    mark, num_uses, select_list = len(scope.bare), scope.num_uses, scope.select_list
    windows_allowed = scope.windows_allowed
    scope.aggregates_allowed = scope.windows_allowed = False
    scope.select_list = {}
    value = _aggregate_over(node, "", scope)
    scope.aggregates_allowed, scope.windows_allowed = True, windows_allowed
    scope.select_list = select_list
    if scope.num_uses == num_uses and node.find(exp.Column) is not None:
        raise Mistake.NOT_SUPPORTED("an aggregate of the query around")
    del scope.bare[mark:]
    scope.num_aggregates += name_of(node).upper() != "ANY_VALUE"
    return value


def _aggregate_over(node: exp.Expr, over: str, scope: Scope) -> Fragment:
    """Returns an aggregate, `over` a window if that is not empty."""
    name = name_of(node).upper()
    arguments = node.expressions
    distinct = ""
    if arguments and isinstance(arguments[0], exp.Distinct):
        arguments, distinct = arguments[0].expressions, "DISTINCT "
        if over:
            raise Mistake.NOT_SUPPORTED("<window function>(DISTINCT ..)")
    if name == "COUNT" and len(arguments) == 1 and isinstance(arguments[0], exp.Star):
        return Fragment(f"count(*){over}", types.INTEGER)
    if not arguments or (len(arguments) > 1 and not (name == "COUNT" and distinct)):
        raise Misplaced(f"{name})")
    values = [compile_expression(argument, scope) for argument in arguments]
    if distinct:
        values = [rounded(value) for value in values]
    value = values[0]
    if name == "COUNT":
        key = f"my_row_key({', '.join(v.sql for v in values)})"
        inner = key if len(values) > 1 else collated(value)
        return Fragment(f"count({distinct}{inner}){over}", types.INTEGER)
    if over or scope.is_grouped:
        value = rounded(value)
    if name in ("MIN", "MAX"):
        return Fragment(f"{name.lower()}({collated(value)}){over}", value.type)
    return value if name == "ANY_VALUE" else _sum(name, distinct, value, over)


def _sum(name: str, distinct: str, value: Fragment, over: str) -> Fragment:
    """Returns SUM or AVG."""
    if value.type.kind is Kind.TEXT and not value.is_collated and value.literal is None:
        raise Mistake.NOT_SUPPORTED(f"{name} of a text that is no column")
    number = to_number(value)
    if number.type.kind not in (Kind.INTEGER, Kind.DECIMAL, Kind.NULL):
        scale = number.type.scale and number.type.scale + types.DIVISION_SCALE * (name == "AVG")
        double = SqlType(Kind.DOUBLE, scale)
        return Fragment(f"{name.lower()}({distinct}{number.sql}){over}", double)
    kind = SqlType(Kind.DECIMAL, number.type.scale, is_exact=number.type.is_exact)
    total = f"sum({distinct}{number.sql}){over}"
    if kind.is_exact and kind.scale:  # floats add up to nearly the decimal
        total = f"round({total}, {kind.scale})"
    if name == "SUM":
        return Fragment(total, kind)
    scale = min(kind.scale + types.DIVISION_SCALE, types.MAX_SCALE)
    mean = f"({total} / CAST(count({distinct}{number.sql}){over} AS REAL))"
    return Fragment(mean, SqlType(Kind.DECIMAL, scale, is_exact=False))


@handles(exp.Window)
def _window(node: exp.Expr, scope: Scope) -> Fragment:
    name = name_of(node.this).upper() if isinstance(node.this, exp.Anonymous) else ""
    if not scope.windows_allowed:
        raise Mistake.WINDOW_MISUSE(name.lower())
    over = f" OVER ({_window_definition(node, scope)})"
    if name in AGGREGATES - {"ANY_VALUE"}:
        return _aggregate_over(node.this, over, scope)
    values = [compile_expression(argument, scope) for argument in node.this.expressions]
    if name in _RANKS and not values:
        return Fragment(f"{name.lower()}(){over}", types.INTEGER)
    if name in _SHIFTS and 1 <= len(values) <= 2:
        if len(values) == 2 and not (values[1].literal or "").isdigit():
            raise Mistake.WRONG_ARGUMENTS(name.lower())
        return Fragment(f"{name.lower()}({', '.join(v.sql for v in values)}){over}", values[0].type)
    if name in FUNCTIONS or name in _SHIFTS:
        raise Mistake.NOT_SUPPORTED(f"{name} OVER")
    raise Misplaced(node.args.get("over") or "OVER")


def _window_definition(node: exp.Expr, scope: Scope) -> str:
    """Returns what stands between the parentheses of OVER. Raises: MySQLError (1235)."""
    for column in node.find_all(exp.Column):
        is_inside = column.find_ancestor(exp.Order) or column.arg_key == "partition_by"
        if is_inside and not column.table and column.name.lower() in scope.aliases:
            raise Mistake.NOT_SUPPORTED("a window over an alias")
    parts = []
    if node.args.get("partition_by"):
        terms = (collated(compile_expression(term, scope)) for term in node.args["partition_by"])
        parts.append(f"PARTITION BY {', '.join(terms)}")
    if node.args.get("order"):
        parts.append(compile_order(node.args["order"], scope))
    return " ".join(parts)


def compile_order(order: exp.Expr, scope: Scope) -> str:
    """Returns an ORDER BY clause whose terms are expressions, not positions."""
    terms = (
        collated(rounded(compile_expression(term.this, scope))) + direction(term)
        for term in order.expressions
    )
    return f"ORDER BY {', '.join(terms)}"


def direction(term: exp.Expr) -> str:
    """Returns what follows a term of ORDER BY."""
    return " DESC" if term.args.get("desc") else ""
