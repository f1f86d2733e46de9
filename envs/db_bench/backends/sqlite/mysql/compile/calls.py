"""Functions and aggregates: which SQLite function each becomes, and its result's type."""

import re
from collections.abc import Callable

from agentpeft.envs.db_bench.backends.sqlite.mysql import types
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import Fragment, Scope
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.values import (
    STRICT,
    choose,
    collated,
    compile_expression,
    kept,
    to_number,
    to_text,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse import nodes, words
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Kind, SqlType

Builder = Callable[[list[Fragment]], Fragment]
_MOST = 64


def _coalesce(values: list[Fragment]) -> Fragment:
    kind = types.merge_types(value.type for value in values)
    return Fragment(f"coalesce({', '.join([value.sql for value in values])}, NULL)", kind)


def _concat(values: list[Fragment]) -> Fragment:
    return Fragment(f"({' || '.join(to_text(value).sql for value in values)})", types.TEXT)


def _numeric(value: Fragment) -> Fragment:
    if value.type.kind is Kind.NULL:
        raise Mistake.NOT_SUPPORTED("a function of numbers of NULL")
    number = to_number(value)
    is_float = number.type.kind is Kind.FLOAT
    return number._replace(type=types.DOUBLE) if is_float else number


def _abs(values: list[Fragment]) -> Fragment:
    value = _numeric(values[0])
    return Fragment(f"abs({value.sql})", value.type)


def _rounded(values: list[Fragment]) -> Fragment:
    """ROUND, whose places are known, for they are the type's decimals."""
    value = _numeric(values[0])
    places = 0
    if len(values) > 1:
        if values[1].literal is None or values[1].type.kind is not Kind.INTEGER:
            raise Mistake.NOT_SUPPORTED("a number of decimals that is no literal")
        places = min(max(int(values[1].literal), -types.MAX_SCALE), types.MAX_SCALE)
    kind = value.type
    if kind.kind is Kind.DOUBLE:
        kind = SqlType(Kind.DOUBLE, is_fixed=True)
    elif kind.kind is Kind.DECIMAL:
        kind = SqlType(Kind.DECIMAL, max(places, 0))
    return Fragment(f"my_round({value.sql}, {places}, {int(kind.kind is not Kind.DOUBLE)})", kind)


def _whole(function: str, values: list[Fragment]) -> Fragment:
    value = _numeric(values[0])
    if value.type.kind is Kind.DOUBLE:
        raise Mistake.NOT_SUPPORTED("CEIL and FLOOR of floating-point numbers")
    return Fragment(f"{function}({value.sql})", types.INTEGER)


_SIGNATURES = {
    types.TEXT: """upper(t) lower(t) left(ti) right(ti) substring(tii?) ltrim(t) rtrim(t) trim(t)
        replace(ttt)""",
    types.INTEGER: "length(t) char_length(t) year(d) month(d) day(d)",
}
"""Functions whose type is always the same, with a letter for each argument.

`t` text, `i` whole number, `d` date. The last may be missing (`?`).
"""
_TEMPLATES = {
    **{name: f"{name.lower()}({{}})" for name in ("LTRIM", "RTRIM", "TRIM")},
    "REPLACE": "replace({}, {}, {})",
    "LEFT": "substr({}, 1, max({}, 0))",
    "LENGTH": "length(CAST({} AS BLOB))",
    "CHAR_LENGTH": "length({})",
}
"""SQLite's text for those of them that are not a function `my_…` of the runtime."""
_ALLOWED = {
    "i": frozenset({Kind.INTEGER}),
    "d": frozenset({Kind.DATE, Kind.DATETIME, Kind.TEXT}),
}


def _convert(letter: str, value: Fragment, name: str) -> str:
    """Returns an argument of a function as its letter asks. Raises: MySQLError (1235)."""
    if letter == "t":
        return to_text(value).sql
    is_strict = value.type.kind is Kind.TEXT and STRICT.get()  # 1292 for one that is no date
    if value.type.kind not in _ALLOWED[letter] | {Kind.NULL} or is_strict:
        raise Mistake.NOT_SUPPORTED(f"{name} of {value.type.kind}")
    return value.sql


def _plain(name: str, letters: str, kind: SqlType) -> Builder:
    template = _TEMPLATES.get(name)

    def build(values: list[Fragment]) -> Fragment:
        arguments = [_convert(*pair, name) for pair in zip(letters, values, strict=False)]
        if template is not None:
            return Fragment(template.format(*arguments), kind)
        return Fragment(f"my_{name.lower()}({', '.join(arguments)})", kind)

    return build


_BUILDERS: dict[str, tuple[int, int, Builder]] = {
    match[1].upper(): (
        len(match[2]) - (match[3] == "?"),
        len(match[2]),
        _plain(match[1].upper(), match[2], kind),
    )
    for kind, text in _SIGNATURES.items()
    for match in re.finditer(r"(\w+)\((\w*)(\W?)\)", text)
} | {
    "IF": (3, 3, lambda values: choose([to_number(values[0]).sql], values[1:])),
    "IFNULL": (2, 2, _coalesce),
    "COALESCE": (1, _MOST, _coalesce),
    "CONCAT": (1, _MOST, _concat),
    "ABS": (1, 1, _abs),
    "ROUND": (1, 2, _rounded),
    "CEIL": (1, 1, lambda values: _whole("my_ceil", values)),
    "FLOOR": (1, 1, lambda values: _whole("my_floor", values)),
}
"""The fewest arguments of each function, the most, and what it becomes."""
_ALIASES = {
    "UCASE": "UPPER",
    "LCASE": "LOWER",
    "CHARACTER_LENGTH": "CHAR_LENGTH",
    "OCTET_LENGTH": "LENGTH",
    "CEILING": "CEIL",
    "DAYOFMONTH": "DAY",
    **dict.fromkeys(("SUBSTR", "MID"), "SUBSTRING"),
}


def compile_call(node: nodes.Call, scope: Scope) -> Fragment:
    """Returns a call of a function. Raises: MySQLError (1235, 1305, 1370, 1582)."""
    written = node.name.upper()
    name = _ALIASES.get(written, written)
    if "." in name:
        raise Mistake.FUNCTION_DENIED(node.name)
    if name in words.AGGREGATES:
        return _aggregate(node, name, scope)
    if name not in _BUILDERS:
        raise Mistake.NO_FUNCTION(scope.schema.name, node.name)
    least, most, build = _BUILDERS[name]
    if not least <= len(node.arguments) <= most:
        raise Mistake.ARGUMENTS(written)
    return build([compile_expression(argument, scope) for argument in node.arguments])


def _aggregate(node: nodes.Call, name: str, scope: Scope) -> Fragment:
    """Returns an aggregate call of a query block. Raises: MySQLError (1111)."""
    if not scope.aggregates_allowed:
        raise Mistake.GROUP_FUNCTION()
    mark, num_uses, num_outer_uses = len(scope.bare), scope.num_uses, scope.num_outer_uses
    select_list, scope.select_list = scope.select_list, {}
    scope.aggregates_allowed = False
    value = _aggregate_over(node, name, scope)
    scope.aggregates_allowed, scope.select_list = True, select_list
    if scope.num_uses == num_uses and scope.num_outer_uses > num_outer_uses:
        raise Mistake.NOT_SUPPORTED("an aggregate of the query around")
    del scope.bare[mark:]
    scope.num_aggregates += 1
    return value


def _aggregate_over(node: nodes.Call, name: str, scope: Scope) -> Fragment:
    if isinstance(node.arguments[0], nodes.Star):
        return Fragment("count(*)", types.INTEGER)
    if len(node.arguments) > 1:
        raise Mistake.NOT_SUPPORTED(f"{name} of several columns")
    value = compile_expression(node.arguments[0], scope)
    distinct = "DISTINCT " if node.is_distinct else ""
    if distinct or scope.is_grouped:
        value = kept(value)
    if name == "COUNT":
        return Fragment(f"count({distinct}{collated(value)})", types.INTEGER)
    if name in ("MIN", "MAX"):
        return Fragment(f"{name.lower()}({collated(value)})", value.type)
    return _sum(name, distinct, value)


def _sum(name: str, distinct: str, value: Fragment) -> Fragment:
    if value.type.kind is Kind.TEXT and not value.is_collated and value.literal is None:
        raise Mistake.NOT_SUPPORTED(f"{name} of a text that is no column")
    number = to_number(value)
    if number.type.kind not in (Kind.INTEGER, Kind.DECIMAL, Kind.NULL):
        return Fragment(f"{name.lower()}({distinct}{number.sql})", types.DOUBLE)
    kind = SqlType(Kind.DECIMAL, number.type.scale, is_exact=number.type.is_exact)
    total = f"sum({distinct}{number.sql})"
    if kind.is_exact and kind.scale:  # floats add up to nearly the decimal
        total = f"round({total}, {kind.scale})"
    if name == "SUM":
        return Fragment(total, kind)
    scale = min(kind.scale + types.DIVISION_SCALE, types.MAX_SCALE)
    mean = f"({total} / CAST(count({distinct}{number.sql}) AS REAL))"
    return Fragment(mean, SqlType(Kind.DECIMAL, scale, is_exact=False))
