"""Functions, aggregates and windows: which SQLite function each becomes, and its result's type."""

import re
from collections.abc import Callable

from agentpeft.envs.db_bench.backends.sqlite.mysql import types
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.expressions import (
    cast_to_temporal,
    modulo,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import Fragment, Scope
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.values import (
    STRICT,
    align,
    choose,
    collated,
    compile_expression,
    convert,
    handles,
    kept,
    rounded,
    to_number,
    to_text,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse import nodes, words
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.dates import DATE_UNITS, UNITS, has_time
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Kind, SqlType

Builder = Callable[[list[Fragment]], Fragment]
_MOST = 64


def _coalesce(values: list[Fragment]) -> Fragment:
    kind = types.merge_types(value.type for value in values)
    converted = [convert(value, kind).sql for value in values]
    return Fragment(f"coalesce({', '.join([*converted, 'NULL'])})", kind)


def _nullif(values: list[Fragment]) -> Fragment:
    first, second = align([rounded(value) for value in values])
    if first != collated(values[0]):
        raise Mistake.NOT_SUPPORTED("NULLIF of several types")
    return Fragment(f"nullif({first}, {second})", values[0].type)


def _concat(values: list[Fragment]) -> Fragment:
    return Fragment(f"({' || '.join(to_text(value).sql for value in values)})", types.TEXT)


def _numeric(value: Fragment) -> Fragment:
    if value.type.kind in types.TEMPORALS | {Kind.NULL}:
        raise Mistake.NOT_SUPPORTED(f"a function of numbers of {value.type.kind}")
    return to_number(value)


def _abs(values: list[Fragment]) -> Fragment:
    value = _numeric(values[0])
    kind = types.DOUBLE if value.type.kind is Kind.FLOAT else value.type
    return Fragment(f"abs({value.sql})", kind)


def _rounded(values: list[Fragment]) -> Fragment:
    """ROUND, whose places are known, for they are the type's decimals."""
    value = _numeric(values[0])
    places = _whole_number(values[1]) if len(values) > 1 else 0
    kind = types.DOUBLE if value.type.kind is Kind.FLOAT else value.type
    if kind.kind in (Kind.DECIMAL, Kind.DOUBLE):
        kind = SqlType(kind.kind, min(max(places, 0), types.MAX_SCALE))
    is_decimal = int(kind.kind in (Kind.DECIMAL, Kind.INTEGER))
    return Fragment(f"my_round({value.sql}, {places}, {is_decimal})", kind)


def _whole_number(value: Fragment) -> int:
    if value.literal is None or value.type.kind is not Kind.INTEGER:
        raise Mistake.NOT_SUPPORTED("a number of decimals that is no literal")
    return min(max(int(value.literal), -types.MAX_SCALE), types.MAX_SCALE)


def _whole(function: str, values: list[Fragment]) -> Fragment:
    value = _numeric(values[0])
    is_double = value.type.kind in types.FLOATS
    kind = SqlType(Kind.DOUBLE) if is_double else types.INTEGER
    return Fragment(f"{function}({value.sql})", kind)


def _truncated(values: list[Fragment]) -> Fragment:
    value = _numeric(values[0])
    places = _whole_number(values[1])
    if value.type.kind in types.FLOATS:
        raise Mistake.NOT_SUPPORTED("TRUNCATE of floating-point numbers")
    kind = value.type
    if kind.kind is Kind.DECIMAL:
        kind = SqlType(Kind.DECIMAL, min(max(places, 0), types.MAX_SCALE))
    return Fragment(f"my_truncate({value.sql}, {places})", kind)


def _format(values: list[Fragment]) -> Fragment:
    if values[0].type.kind not in (Kind.INTEGER, Kind.DECIMAL):
        raise Mistake.NOT_SUPPORTED(f"FORMAT of {values[0].type.kind}")
    places = max(_whole_number(values[1]), 0)
    return Fragment(f"my_format({rounded(_rounded(values)).sql}, {places})", types.TEXT)


def _field(values: list[Fragment]) -> Fragment:
    if len({v.type.kind in types.NUMBERS for v in values if v.type.kind is not Kind.NULL}) > 1:
        raise Mistake.NOT_SUPPORTED("FIELD of several types")
    tests = (" = ".join(align([values[0], other])) for other in values[1:])
    branches = " ".join(f"WHEN {test} THEN {n}" for n, test in enumerate(tests, start=1))
    return Fragment(f"(CASE {branches} ELSE 0 END)", types.INTEGER)


def _extreme(function: str, values: list[Fragment]) -> Fragment:
    kinds = {value.type.kind for value in values}
    if Kind.NULL in kinds:
        return Fragment("NULL", types.NULL)
    if not kinds <= types.NUMBERS and len(kinds) > 1:
        raise Mistake.NOT_SUPPORTED("GREATEST and LEAST of several types")
    kind = types.merge_types(value.type for value in values)
    return Fragment(f"{function}({', '.join(align([rounded(v) for v in values]))})", kind)


def _shift_date(sign: int, values: list[Fragment]) -> Fragment:
    """A date plus or minus an INTERVAL."""
    base, amount, unit = values
    kind = base.type
    if kind.kind is Kind.DATE and unit.literal not in DATE_UNITS:
        kind = types.DATETIME
    elif kind.kind not in (Kind.DATE, Kind.DATETIME):
        kind = types.TEXT
    date, unit_sql = _convert("d", base, "INTERVAL"), _convert("u", unit, "INTERVAL")
    function = "my_strict_date_add" if STRICT.get() else "my_date_add"
    return Fragment(f"{function}({date}, {amount.sql}, {unit_sql}, {sign})", kind)


def _parsed_date(values: list[Fragment]) -> Fragment:
    """STR_TO_DATE, whose type is the format's."""
    text, pattern = values
    if pattern.literal is None or STRICT.get():
        raise Mistake.NOT_SUPPORTED("STR_TO_DATE in a change, or with a format that is no literal")
    kind = types.DATETIME if has_time(pattern.literal) else types.DATE
    return Fragment(f"my_str_to_date({to_text(text).sql}, {pattern.sql})", kind)


def _date(values: list[Fragment]) -> Fragment:
    if values[0].type.kind in types.NUMBERS | {Kind.TIME}:
        raise Mistake.NOT_SUPPORTED(f"DATE of {values[0].type.kind}")
    return cast_to_temporal(values[0], Kind.DATE)


_SIGNATURES = {
    types.TEXT: """upper(t) lower(t) left(ti) right(ti) repeat(ti) substring(tii?) ltrim(t) rtrim(t)
        replace(ttt) reverse(t) lpad(tit) rpad(tit) substring_index(tti) dayname(d) monthname(d)
        date_format(dt) trim(ttt) concat_ws(tt+) database()""",
    types.INTEGER: """length(t) char_length(t) locate(tti?) instr(tt) ascii(t) datediff(dd) year(d)
        quarter(d) month(d) day(d) dayofweek(d) dayofyear(d) weekday(d) hour(m) minute(m) second(m)
        timestampdiff(udd) isnull(a) sign(n)""",
    types.DOUBLE: "sqrt(n) pow(nn)",
    types.DATE: "curdate() last_day(d)",
    types.DATETIME: "now(x?)",
}
"""Functions whose type is always the same, with a letter for each argument.

`t` text, `i` whole number, `n` number, `d` date, `m` date that is no text, `u` unit of time, `a`
any, `x` none that is done. The last may be missing (`?`), or be repeated (`+`).
"""
_TEMPLATES = {
    **{name: f"{name.lower()}({{}})" for name in ("LTRIM", "RTRIM")},
    "REPLACE": "replace({}, {}, {})",
    "LEFT": "substr({}, 1, max({}, 0))",
    "LENGTH": "length(CAST({} AS BLOB))",
    "CHAR_LENGTH": "length({})",
    "INSTR": "my_locate({1}, {0})",
    "ISNULL": "({} IS NULL)",
}
"""SQLite's text for those of them that are not a function `my_…` of the runtime."""
_ALLOWED = {
    "i": frozenset({Kind.INTEGER}),
    "d": frozenset({Kind.DATE, Kind.DATETIME, Kind.TEXT}),
    "m": frozenset({Kind.DATE, Kind.DATETIME, Kind.TIME}),
}


def _convert(letter: str, value: Fragment, name: str) -> str:
    """Returns an argument of a function as its letter asks. Raises: MySQLError (1235)."""
    if letter == "t":
        return to_text(value).sql
    if letter == "n":
        return _numeric(value).sql
    if letter == "u" and value.literal not in UNITS:
        raise Mistake.NOT_SUPPORTED(f"{name} with {value.literal}")
    kind = value.type.kind
    if letter == "x" or (letter in _ALLOWED and kind not in _ALLOWED[letter] | {Kind.NULL}):
        raise Mistake.NOT_SUPPORTED(f"{name} of {kind}")
    is_date = letter == "d" and kind is Kind.TEXT and STRICT.get()
    return f"my_strict_date({value.sql})" if is_date else value.sql


def _plain(name: str, letters: str, kind: SqlType) -> Builder:
    template = _TEMPLATES.get(name)

    def build(values: list[Fragment]) -> Fragment:
        letter_of_each = letters.ljust(len(values), letters[-1:] or " ")
        arguments = [
            _convert(letter, value, name)
            for letter, value in zip(letter_of_each, values, strict=False)
        ]
        if template is not None:
            return Fragment(template.format(*arguments), kind)
        return Fragment(f"my_{name.lower()}({', '.join(arguments)})", kind)

    return build


_BUILDERS: dict[str, tuple[int, int, Builder]] = {
    match[1].upper(): (
        len(match[2]) - (match[3] == "?"),
        _MOST if match[3] == "+" else len(match[2]),
        _plain(match[1].upper(), match[2], kind),
    )
    for kind, text in _SIGNATURES.items()
    for match in re.finditer(r"(\w+)\((\w*)(\W?)\)", text)
} | {
    "IF": (3, 3, lambda values: choose([to_number(values[0]).sql], values[1:])),
    "IFNULL": (2, 2, _coalesce),
    "COALESCE": (1, _MOST, _coalesce),
    "NULLIF": (2, 2, _nullif),
    "CONCAT": (1, _MOST, _concat),
    "ABS": (1, 1, _abs),
    "MOD": (2, 2, lambda values: modulo(_numeric(values[0]), _numeric(values[1]))),
    "ROUND": (1, 2, _rounded),
    "CEIL": (1, 1, lambda values: _whole("my_ceil", values)),
    "FLOOR": (1, 1, lambda values: _whole("my_floor", values)),
    "FIELD": (2, _MOST, _field),
    "FORMAT": (2, 2, _format),
    "TRUNCATE": (2, 2, _truncated),
    "GREATEST": (2, _MOST, lambda values: _extreme("max", values)),
    "LEAST": (2, _MOST, lambda values: _extreme("min", values)),
    "DATE_ADD": (3, 3, lambda values: _shift_date(1, values)),
    "DATE_SUB": (3, 3, lambda values: _shift_date(-1, values)),
    "STR_TO_DATE": (2, 2, _parsed_date),
    "DATE": (1, 1, _date),
}
"""The fewest arguments of each function, the most, and what it becomes."""
_ALIASES = {
    "UCASE": "UPPER",
    "LCASE": "LOWER",
    "CHARACTER_LENGTH": "CHAR_LENGTH",
    "OCTET_LENGTH": "LENGTH",
    "POWER": "POW",
    "CEILING": "CEIL",
    "SCHEMA": "DATABASE",
    "DAYOFMONTH": "DAY",
    **dict.fromkeys(("SUBSTR", "MID"), "SUBSTRING"),
    "CURRENT_DATE": "CURDATE",
    "CURRENT_TIMESTAMP": "NOW",
}


@handles(nodes.Call)
def _call(node: nodes.Call, scope: Scope) -> Fragment:
    written = node.name.upper()
    name = _ALIASES.get(written, written)
    if "." in name:
        raise Mistake.FUNCTION_DENIED(node.name)
    if node.window is not None:
        return _window(node, name, node.window, scope)
    if name in words.AGGREGATES:
        return _aggregate(node, name, scope)
    if name not in _BUILDERS:
        raise Mistake.NO_FUNCTION(scope.schema.name, node.name)
    least, most, build = _BUILDERS[name]
    if not least <= len(node.arguments) <= most:
        raise Mistake.ARGUMENTS(written)
    if name == "DATABASE":
        return Fragment(types.quote_text(scope.schema.name), types.TEXT)
    return build([compile_expression(argument, scope) for argument in node.arguments])


def _aggregate(node: nodes.Call, name: str, scope: Scope) -> Fragment:
    """Returns an aggregate call of a query block. Raises: MySQLError (1111)."""
    if not scope.aggregates_allowed:
        raise Mistake.GROUP_FUNCTION()
    mark, num_uses, num_outer_uses = len(scope.bare), scope.num_uses, scope.num_outer_uses
    select_list, windows_allowed = scope.select_list, scope.windows_allowed
    scope.aggregates_allowed = scope.windows_allowed = False
    scope.select_list = {}
    value = _aggregate_over(node, name, "", scope)
    scope.aggregates_allowed, scope.windows_allowed = True, windows_allowed
    scope.select_list = select_list
    if scope.num_uses == num_uses and scope.num_outer_uses > num_outer_uses:
        raise Mistake.NOT_SUPPORTED("an aggregate of the query around")
    del scope.bare[mark:]
    scope.num_aggregates += name != "ANY_VALUE"
    return value


def _aggregate_over(node: nodes.Call, name: str, over: str, scope: Scope) -> Fragment:
    """Returns an aggregate, `over` a window if that is not empty."""
    if isinstance(node.arguments[0], nodes.Star):
        return Fragment(f"count(*){over}", types.INTEGER)
    if over and (node.is_distinct or name == "GROUP_CONCAT"):
        raise Mistake.NOT_SUPPORTED(f"{name} in a window, or DISTINCT there")
    if name == "GROUP_CONCAT":
        return _group_concat(node, scope)
    if len(node.arguments) > 1:
        return _count_rows(node, name, scope)
    value = compile_expression(node.arguments[0], scope)
    distinct = "DISTINCT " if node.is_distinct else ""
    if over or distinct or scope.is_grouped:
        value = kept(value)
    if name == "COUNT":
        return Fragment(f"count({distinct}{collated(value)}){over}", types.INTEGER)
    if name in ("MIN", "MAX"):
        return Fragment(f"{name.lower()}({collated(value)}){over}", value.type)
    return value if name == "ANY_VALUE" else _sum(name, distinct, value, over)


def _count_rows(node: nodes.Call, name: str, scope: Scope) -> Fragment:
    """COUNT(DISTINCT a, b)."""
    if name != "COUNT" or not node.is_distinct:
        raise Mistake.NOT_SUPPORTED(f"{name} of several columns")
    values = ", ".join(kept(compile_expression(v, scope)).sql for v in node.arguments)
    return Fragment(f"count(DISTINCT my_row_key({values}))", types.INTEGER)


def _group_concat(node: nodes.Call, scope: Scope) -> Fragment:
    value = kept(compile_expression(node.arguments[0], scope))
    separator = compile_expression(node.arguments[1], scope).sql
    terms = []
    for term, is_descending in node.order:
        key = kept(compile_expression(term, scope))
        if key.literal is not None or (node.is_distinct and key.sql != value.sql):
            raise Mistake.NOT_SUPPORTED("GROUP_CONCAT in this order")
        terms += [key.sql, str(int(is_descending))]
    arguments = (to_text(value).sql, separator, str(int(node.is_distinct)), *terms)
    return Fragment(f"my_group_concat({', '.join(arguments)})", types.TEXT)


def _sum(name: str, distinct: str, value: Fragment, over: str) -> Fragment:
    if value.type.kind is Kind.TEXT and not value.is_collated and value.literal is None:
        raise Mistake.NOT_SUPPORTED(f"{name} of a text that is no column")
    number = to_number(value)
    if number.type.kind not in (Kind.INTEGER, Kind.DECIMAL, Kind.NULL):
        scale = number.type.scale + types.DIVISION_SCALE * (name == "AVG")
        total = f"{name.lower()}({distinct}{number.sql}){over}"
        return Fragment(total, types.calculated_double(scale))
    kind = SqlType(Kind.DECIMAL, number.type.scale, is_exact=number.type.is_exact)
    total = f"sum({distinct}{number.sql}){over}"
    if kind.is_exact and kind.scale:  # floats add up to nearly the decimal
        total = f"round({total}, {kind.scale})"
    if name == "SUM":
        return Fragment(total, kind)
    scale = min(kind.scale + types.DIVISION_SCALE, types.MAX_SCALE)
    mean = f"({total} / CAST(count({distinct}{number.sql}){over} AS REAL))"
    return Fragment(mean, SqlType(Kind.DECIMAL, scale, is_exact=False))


def _window(node: nodes.Call, name: str, window: nodes.Window, scope: Scope) -> Fragment:
    if not scope.windows_allowed:
        raise Mistake.WINDOW_MISUSE(name.lower())
    scope.windows_allowed, scope.refused = False, scope.aliases
    num_outer_uses = scope.num_outer_uses
    parts = []
    if window.partition:
        terms = (collated(compile_expression(term, scope)) for term in window.partition)
        parts.append(f"PARTITION BY {', '.join(terms)}")
    if window.order:
        parts.append(compile_order(window.order, scope))
    scope.refused = ()
    if scope.num_outer_uses > num_outer_uses:
        raise Mistake.NOT_SUPPORTED("a window over columns of the query around")
    over = f" OVER ({' '.join(parts)})"
    value = _windowed(node, name, over, scope)
    scope.windows_allowed = True
    return value


def _windowed(node: nodes.Call, name: str, over: str, scope: Scope) -> Fragment:
    if name in words.AGGREGATES and name != "ANY_VALUE":
        return _aggregate_over(node, name, over, scope)
    values = [compile_expression(argument, scope) for argument in node.arguments]
    if name in ("LAG", "LEAD"):
        step = values[1].literal or "" if len(values) == 2 else "1"
        if not 1 <= len(values) <= 2 or not step.isdigit():
            raise Mistake.NOT_SUPPORTED(f"{name} with these arguments")
        return Fragment(f"{name.lower()}({values[0].sql}, {step}){over}", values[0].type)
    if name not in words.WINDOW_FUNCTIONS or values:
        raise Mistake.NOT_SUPPORTED(f"{name} OVER")
    return Fragment(f"{name.lower()}(){over}", types.INTEGER)


def compile_order(order: tuple[nodes.Ordered, ...], scope: Scope) -> str:
    """Returns an ORDER BY clause whose terms are expressions, not positions."""
    terms = (
        order_value(compile_expression(term, scope)) + direction(is_descending)
        for term, is_descending in order
    )
    return f"ORDER BY {', '.join(terms)}"


def order_value(value: Fragment) -> str:
    """Returns a term of ORDER BY or GROUP BY.

    A literal orders nothing; SQLite would read a number in its place as a position.
    """
    return collated(kept(value)) if value.literal is None else "NULL"


def direction(is_descending: bool) -> str:
    """Returns what follows a term of ORDER BY."""
    return " DESC" if is_descending else ""
