"""Columns, literals, operators, functions and aggregates as SQLite text with types."""

import re
from collections.abc import Callable
from functools import lru_cache

from agentpeft.envs.db_bench.backends.sqlite.mysql import types
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import Fragment, Scope
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.values import (
    MAX_CHARS,
    STRICT,
    align,
    choose,
    collated,
    compile_condition,
    compile_expression,
    convert,
    handles,
    ordered,
    rounded,
    to_number,
    to_temporal,
    to_text,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse import nodes, words
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime import dates
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.collation import fold_pattern
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Kind, SqlType


@handles(nodes.ColumnName)
def _column(node: nodes.ColumnName, scope: Scope) -> Fragment:
    return scope.find_column(node)


@handles(nodes.Constant)
def _constant(node: nodes.Constant, scope: Scope) -> Fragment:
    text, kind = node
    if kind == "null":
        return Fragment("NULL", types.NULL)
    if kind == "number":
        return Fragment(text, _number_type(text), literal=text)
    if kind == "boolean":
        text = str(int(text == "TRUE"))
        return Fragment(text, types.INTEGER, literal=text)
    return Fragment(types.quote_text(text), types.TEXT, literal=text)


@lru_cache(maxsize=1024)
def _number_type(text: str) -> SqlType:
    """Returns a number's type. Raises: MySQLError (1235) for one too long for a double."""
    if "e" in text.lower():
        return types.DOUBLE
    digits, _, decimals = text.partition(".")
    if "." in text:
        if len((digits + decimals).lstrip("0")) > types.MAX_EXACT_DIGITS:
            raise Mistake.NOT_SUPPORTED(f"decimals of more than {types.MAX_EXACT_DIGITS} digits")
        return SqlType(Kind.DECIMAL, min(len(decimals), types.MAX_SCALE))
    if int(text) >= 1 << 63:
        raise Mistake.NOT_SUPPORTED("integers beyond 64 bits with a sign")
    return SqlType(Kind.INTEGER, length=int(text).bit_length() + 1)


def _calculate(left: Fragment, operator: str, right: Fragment) -> Fragment:
    """Returns a sum, difference or product."""
    if left.type.is_unsigned or right.type.is_unsigned or types.NULL in (left.type, right.type):
        raise Mistake.NOT_SUPPORTED("arithmetic of UNSIGNED or NULL")
    sql = f"({left.sql} {operator} {right.sql})"
    kinds = {left.type.kind, right.type.kind}
    if kinds & types.FLOATS:
        return Fragment(sql, types.DOUBLE)
    if kinds == {Kind.INTEGER}:
        bits = (left.type.length or 64, right.type.length or 64)
        length = sum(bits) if operator == "*" else max(bits) + 1
        if length > 64:
            return Fragment(f"my_bigint({sql})", types.INTEGER)
        return Fragment(sql, SqlType(Kind.INTEGER, length=length))
    scales = (left.type.scale, right.type.scale)
    scale = min(sum(scales) if operator == "*" else max(scales), types.MAX_SCALE)
    if not (left.type.is_exact and right.type.is_exact):
        return Fragment(sql, SqlType(Kind.DECIMAL, scale, is_exact=False))
    # the double nearest to it: 0.1 + 0.2 = 0.3
    return Fragment(f"round({sql}, {scale})", SqlType(Kind.DECIMAL, scale))


def _quotient(left: Fragment, right: Fragment) -> Fragment:
    """Returns a quotient, of decimals with four more digits than the dividend.

    MySQL calculates decimals in words of nine digits and cuts off the rest: 2 / 3 is 0.666666666
    before it is rounded for display. One word is done likewise; more digits than that as doubles.
    """
    if {left.type.kind, right.type.kind} & types.FLOATS:
        return Fragment(f"(CAST({left.sql} AS REAL) / {right.sql})", types.DOUBLE)
    scale = min(left.type.scale + types.DIVISION_SCALE, types.MAX_SCALE)
    kind = SqlType(Kind.DECIMAL, scale, is_exact=False)
    num_words = [-(-decimals // 9) for decimals in (left.type.scale, right.type.scale)]
    num_missing = scale + right.type.scale - 9 * sum(num_words)
    if num_words == [0, 0] or (sum(num_words) == 1 and num_missing <= 0):
        return Fragment(f"my_quotient({left.sql}, {right.sql})", kind)
    return Fragment(f"(CAST({left.sql} AS REAL) / {right.sql})", kind)


def _remainder(left: Fragment, right: Fragment) -> Fragment:
    """Returns the remainder, with the sign of the dividend."""
    if {left.type.kind, right.type.kind} != {Kind.INTEGER}:
        raise Mistake.NOT_SUPPORTED("% of numbers with decimals")
    return Fragment(f"({left.sql} % {_divisor(right).sql})", types.INTEGER)


@handles("+", "-", "*", "/", "%")
def _arithmetic(node: nodes.Operator, scope: Scope) -> Fragment:
    operator, (first, second) = node
    left = _unrounded(to_number(compile_expression(first, scope)))
    right = _unrounded(to_number(compile_expression(second, scope)))
    if operator == "/":
        return _quotient(left, _divisor(right))
    return _remainder(left, right) if operator == "%" else _calculate(left, operator, right)


def _divisor(value: Fragment) -> Fragment:
    """Returns a divisor, which in a change must not be zero."""
    return value._replace(sql=f"my_divisor({value.sql})") if STRICT.get() else value


def _unrounded(value: Fragment) -> Fragment:
    """Returns a number. Raises: MySQLError (1235) for a rounded DOUBLE: it fixes more decimals."""
    if value.type.kind is Kind.DOUBLE and not value.type.is_exact:
        raise Mistake.NOT_SUPPORTED("a calculation with a rounded floating-point number")
    return value


@handles("AND", "OR")
def _connector(node: nodes.Operator, scope: Scope) -> Fragment:
    """AND and OR: SQLite reads a chain of thousands as a tree as deep, which it refuses."""
    word = f" {node.operator} "
    conditions = [compile_condition(operand, scope) for operand in node.operands]
    while len(conditions) > 1:  # a tree whose depth is logarithmic
        chunks = (conditions[i : i + 30] for i in range(0, len(conditions), 30))
        conditions = [f"({word.join(chunk)})" for chunk in chunks]
    return Fragment(conditions[0], types.INTEGER)


@handles(*(f"IS {word}" for word in ("NULL", "TRUE", "FALSE", "NOT NULL", "NOT TRUE", "NOT FALSE")))
@handles("NEGATIVE", "NOT", "LIKE", "NOT LIKE", "BETWEEN", "NOT BETWEEN")
def _operator(node: nodes.Operator, scope: Scope) -> Fragment:
    operator = node.operator
    values = [compile_expression(operand, scope) for operand in node.operands]
    if operator == "NEGATIVE":
        value = to_number(values[0])
        literal = f"-{value.literal}" if value.literal is not None else None
        kind = types.DOUBLE if value.type.kind is Kind.FLOAT else value.type
        return Fragment(f"(-{value.sql})", kind, literal=literal)
    if operator.endswith("LIKE"):
        return _like(to_text(values[0]), to_text(values[1]), operator)
    if operator.endswith("BETWEEN"):
        first, low, high = align(values, is_order=True)
        return Fragment(f"({first} {operator} {low} AND {high})", types.INTEGER)
    sql = values[0].sql if operator.endswith("NULL") else to_number(values[0]).sql
    return Fragment(f"(NOT {sql})" if operator == "NOT" else f"({sql} {operator})", types.INTEGER)


def _like(value: Fragment, pattern: Fragment, operator: str) -> Fragment:
    folded = f"my_fold_pattern({pattern.sql})"
    if pattern.literal is not None:
        folded = types.quote_text(fold_pattern(pattern.literal))
    sql = f"(my_fold_text({value.sql}) {operator} {folded} ESCAPE '\\')"
    return Fragment(sql, types.INTEGER)


_UNROUNDED = types.FLOATS | {Kind.TEXT}
"""What a quotient is compared with in all of its digits."""


def _is_quotient(value: Fragment) -> bool:
    """Returns whether decimals were divided for it; of an AVG the rounded value is compared."""
    has_division = "my_quotient(" in value.sql or "AS REAL) / " in value.sql
    return has_division and value.type.kind is Kind.DECIMAL and not value.type.is_exact


@handles("=", "<>", ">", ">=", "<", "<=", "<=>")
def _comparison(node: nodes.Operator, scope: Scope) -> Fragment:
    values = [compile_expression(operand, scope) for operand in node.operands]
    left, right = map(rounded, values)
    if any(map(_is_quotient, values)) and {left.type.kind, right.type.kind} & _UNROUNDED:
        raise Mistake.NOT_SUPPORTED("a quotient beside a text or a floating-point number")
    if right.is_collated and left.literal is not None:
        left = left._replace(is_collated=True)  # the right side's collation will be used
    first, second = align([left, right], is_order=node.operator in ("<", ">", "<=", ">="))
    operator = "IS" if node.operator == "<=>" else node.operator
    return Fragment(f"({first} {operator} {second})", types.INTEGER)


def is_in(left: Fragment, values: list[Fragment], operator: str) -> Fragment:
    """Returns whether a value is in a list; one of texts and numbers is two lists."""
    kinds = {value.type.kind for value in (left, *values)} - {Kind.NULL}
    texts = [value for value in values if value.type.kind is Kind.TEXT]
    others = [value for value in values if value.type.kind is not Kind.TEXT]
    if not kinds <= types.NUMBERS | {Kind.TEXT} and len(kinds - {left.type.kind}) > 1:
        raise Mistake.NOT_SUPPORTED("a list of several types")
    tests = []
    for group in filter(None, (others, texts)):
        first, *rest = align([left, *group])
        tests.append(f"{first} IN ({', '.join(rest)})")
    negation = "NOT " if operator == "NOT IN" else ""
    return Fragment(f"({negation}({' OR '.join(tests)}))", types.INTEGER)


@handles(nodes.Case)
def _case(node: nodes.Case, scope: Scope) -> Fragment:
    values = [compile_expression(value, scope) for _, value in node.branches]
    values.append(compile_expression(node.default, scope))
    if node.operand is None:
        return choose(
            [compile_condition(condition, scope) for condition, _ in node.branches], values
        )
    operand = compile_expression(node.operand, scope)
    if len(operand.sql) * len(node.branches) > MAX_CHARS:  # each branch has a copy of it
        raise Mistake.STACK()
    others = [compile_expression(condition, scope) for condition, _ in node.branches]
    return choose([" = ".join(align([operand, other])) for other in others], values)


@handles(nodes.Cast)
def _cast(node: nodes.Cast, scope: Scope) -> Fragment:
    value, name = compile_expression(node.value, scope), node.type_name
    if name == "SIGNED":
        return _to_integer(value)
    if name == "UNSIGNED":
        kind = SqlType(Kind.INTEGER, length=64, is_unsigned=True)
        return Fragment(f"my_unsigned({_to_integer(value).sql})", kind)
    if name == "DECIMAL":
        return _to_decimal(value, *(node.sizes or (10,)))
    if node.sizes or (name != "CHAR" and value.type.kind in types.NUMBERS):
        raise Mistake.NOT_SUPPORTED(f"CAST of {value.type.kind} AS {name}")
    if name == "CHAR":
        return Fragment(f"({to_text(value).sql})", types.TEXT)
    return _to_date(value, Kind(name.lower()))


def _to_date(value: Fragment, kind: Kind) -> Fragment:
    """Returns a value as a date or a date and time, NULL where it is none.

    The parentheses tell `DATE(d)` from `d`, which is another expression for GROUP BY.
    """
    return Fragment(f"({to_temporal(value._replace(literal=None), kind).sql})", SqlType(kind))


def _to_integer(value: Fragment) -> Fragment:
    if value.type.kind is not Kind.TEXT:
        number = to_number(value)
        is_decimal = int(number.type.kind is Kind.DECIMAL)
        return Fragment(f"my_cast_integer({number.sql}, {is_decimal})", types.INTEGER)
    if STRICT.get():
        raise Mistake.NOT_SUPPORTED("CAST of a text AS SIGNED in a change")
    return Fragment(f"my_text_integer({value.sql})", types.INTEGER)


def _to_decimal(value: Fragment, digits: int, scale: int = 0) -> Fragment:
    if digits > types.MAX_EXACT_DIGITS or scale > digits:
        raise Mistake.NOT_SUPPORTED(f"CAST AS DECIMAL({digits},{scale})")
    most = f"{'9' * (digits - scale) or '0'}.{'9' * scale or '0'}"
    number = f"my_round({to_number(value).sql}, {scale}, 1)"
    return Fragment(f"max(min({number}, {most}), -{most})", SqlType(Kind.DECIMAL, scale))


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
    if value.type.kind is Kind.NULL:
        raise Mistake.NOT_SUPPORTED("a function of numbers of NULL")
    return to_number(value)


def _abs(values: list[Fragment]) -> Fragment:
    value = _numeric(values[0])
    kind = types.DOUBLE if value.type.kind is Kind.FLOAT else value.type
    return Fragment(f"abs({value.sql})", kind)


def _rounded(values: list[Fragment]) -> Fragment:
    """ROUND, whose places are known, for they are the type's decimals."""
    value, places = _numeric(values[0]), 0
    if len(values) > 1:
        if values[1].literal is None or values[1].type.kind is not Kind.INTEGER:
            raise Mistake.NOT_SUPPORTED("ROUND to a number of decimals that is no literal")
        places = min(max(int(values[1].literal), -types.MAX_SCALE), types.MAX_SCALE)
    kind = value.type
    if kind.kind in types.FLOATS:
        kind = types.ROUNDED
    elif kind.kind is Kind.DECIMAL:
        kind = SqlType(Kind.DECIMAL, max(places, 0))
    return Fragment(f"my_round({value.sql}, {places}, {int(kind is not types.ROUNDED)})", kind)


def _whole(function: str, values: list[Fragment]) -> Fragment:
    value = _numeric(values[0])
    kind = types.ROUNDED if value.type.kind in types.FLOATS else types.INTEGER
    return Fragment(f"{function}({value.sql})", kind)


def _shift_date(sign: int, values: list[Fragment]) -> Fragment:
    """A date plus or minus an INTERVAL."""
    base, amount, unit = values
    is_whole = amount.type.kind is Kind.INTEGER or (amount.literal or "").isdigit()
    if base.type.kind not in (Kind.DATE, Kind.DATETIME) or base.type.is_partial or not is_whole:
        raise Mistake.NOT_SUPPORTED(f"INTERVAL of {amount.type.kind} and {base.type.kind}")
    is_date = base.type.kind is Kind.DATE and unit.literal in dates.DATE_UNITS
    unit_sql = _convert("u", unit, "INTERVAL")
    sql = f"my_date_add({base.sql}, {sign} * {amount.sql}, {unit_sql}, {int(is_date)})"
    return Fragment(sql, types.DATE if is_date else types.DATETIME)


def _date(values: list[Fragment]) -> Fragment:
    if values[0].type.kind in types.NUMBERS | {Kind.TIME}:
        raise Mistake.NOT_SUPPORTED(f"DATE of {values[0].type.kind}")
    return _to_date(values[0], Kind.DATE)


_SIGNATURES = {
    types.TEXT: """upper(t) lower(t) left(ti) right(ti) repeat(ti) substring(tii?) trim(t) ltrim(t)
        rtrim(t) replace(ttt) dayname(d) monthname(d) date_format(dt)""",
    types.INTEGER: """length(t) char_length(t) instr(tt) isnull(a) datediff(dd)
        timestampdiff(udd) year(d) quarter(d) month(d) day(d) dayofweek(d) dayofyear(d) weekday(d)
        hour(m) minute(m) second(m)""",
    types.DATE: "curdate()",
    types.DATETIME: "now(x?)",
}
"""Functions whose type is always the same, with a letter for each argument.

`t` text, `i` whole number, `d` date or date and time, `m` date or time that is no literal, `u`
unit of time, `a` any, `x` none that is done. The last may be missing (`?`).
"""
_TEMPLATES = {
    "TRIM": "trim({})",
    "LTRIM": "ltrim({})",
    "RTRIM": "rtrim({})",
    "REPLACE": "replace({}, {}, {})",
    "LENGTH": "length(CAST({} AS BLOB))",
    "ISNULL": "({} IS NULL)",
    "YEAR": "CAST(substr({}, 1, 4) AS INTEGER)",
    "MONTH": "CAST(substr({}, 6, 2) AS INTEGER)",
    "DAY": "CAST(substr({}, 9, 2) AS INTEGER)",
    "QUARTER": "((CAST(substr({}, 6, 2) AS INTEGER) + 2) / 3)",
    "DAYOFWEEK": "(CAST(strftime('%w', {}) AS INTEGER) + 1)",
    "WEEKDAY": "((CAST(strftime('%w', {}) AS INTEGER) + 6) % 7)",
    "DAYOFYEAR": "CAST(strftime('%j', {}) AS INTEGER)",
    "DAYNAME": "my_date_format({}, '%W')",
    "MONTHNAME": "my_date_format({}, '%M')",
    "HOUR": "CAST(substr({}, -8, 2) AS INTEGER)",
    "MINUTE": "CAST(substr({}, -5, 2) AS INTEGER)",
    "SECOND": "CAST(substr({}, -2, 2) AS INTEGER)",
}
"""SQLite's text for those of them that are not a function `my_…` of the runtime."""
_ALLOWED = {
    "i": frozenset({Kind.INTEGER, Kind.NULL}),
    "d": frozenset({Kind.DATE, Kind.DATETIME, Kind.NULL}),
    "m": frozenset({Kind.DATETIME, Kind.TIME, Kind.NULL}),
}


def _convert(letter: str, value: Fragment, name: str) -> str:
    """Returns an argument of a function as its letter asks. Raises: MySQLError (1235)."""
    if letter == "t":
        return to_text(value).sql
    if letter == "m" and value.type.kind is Kind.DATE:
        value = to_temporal(value, Kind.DATETIME)
    if letter == "d" and value.type.kind is Kind.TEXT and value.literal is not None:
        moment = dates.normalize(value.literal, Kind.DATETIME)
        if moment is not None:
            return types.quote_text(moment)
    is_unit = letter == "u" and value.literal in dates.UNITS
    if letter != "a" and not is_unit and value.type.kind not in _ALLOWED.get(letter, ()):
        raise Mistake.NOT_SUPPORTED(f"{name} of {value.literal or value.type.kind}")
    return value.sql


def _plain(name: str, letters: str, kind: SqlType) -> Builder:
    def build(values: list[Fragment]) -> Fragment:
        pairs = zip(letters, values, strict=False)
        arguments = [_convert(letter, value, name) for letter, value in pairs]
        if name in _TEMPLATES:
            return Fragment(_TEMPLATES[name].format(*arguments), kind)
        return Fragment(f"my_{name.lower()}({', '.join(arguments)})", kind)

    return build


_BUILDERS: dict[str, tuple[int, int, Builder]] = {
    name.upper(): (len(letters) - len(mark), len(letters), _plain(name.upper(), letters, kind))
    for kind, text in _SIGNATURES.items()
    for name, letters, mark in re.findall(r"(\w+)\((\w*)(\W?)\)", text)
} | {
    "IF": (3, 3, lambda values: choose([to_number(values[0]).sql], values[1:])),
    "IFNULL": (2, 2, _coalesce),
    "COALESCE": (1, _MOST, _coalesce),
    "NULLIF": (2, 2, _nullif),
    "CONCAT": (1, _MOST, _concat),
    "ABS": (1, 1, _abs),
    "MOD": (2, 2, lambda values: _remainder(*values)),
    "ROUND": (1, 2, _rounded),
    "CEIL": (1, 1, lambda values: _whole("my_ceil", values)),
    "FLOOR": (1, 1, lambda values: _whole("my_floor", values)),
    "DATE_ADD": (3, 3, lambda values: _shift_date(1, values)),
    "DATE_SUB": (3, 3, lambda values: _shift_date(-1, values)),
    "DATE": (1, 1, _date),
}
"""The fewest arguments of each function, the most, and what it becomes."""
_ALIASES = {
    "UCASE": "UPPER",
    "LCASE": "LOWER",
    "CHARACTER_LENGTH": "CHAR_LENGTH",
    "OCTET_LENGTH": "LENGTH",
    "CEILING": "CEIL",
    "DAYOFMONTH": "DAY",
    "SUBSTR": "SUBSTRING",
    "MID": "SUBSTRING",
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
    return build([compile_expression(argument, scope) for argument in node.arguments])


def _aggregate(node: nodes.Call, name: str, scope: Scope) -> Fragment:
    """Returns an aggregate call of a query block. Raises: MySQLError (1111)."""
    if not scope.aggregates_allowed:
        raise Mistake.GROUP_FUNCTION()
    mark, num_uses, num_outer_uses = len(scope.bare), scope.num_uses, scope.num_outer_uses
    select_list = scope.select_list
    scope.aggregates_allowed, scope.select_list = False, {}
    value = _compile_aggregate(node, name, scope)
    scope.aggregates_allowed, scope.select_list = True, select_list
    if scope.num_uses == num_uses and scope.num_outer_uses > num_outer_uses:
        raise Mistake.NOT_SUPPORTED("an aggregate of the query around")
    del scope.bare[mark:]
    scope.num_aggregates += name != "ANY_VALUE"
    return value


def _compile_aggregate(node: nodes.Call, name: str, scope: Scope) -> Fragment:
    if isinstance(node.arguments[0], nodes.Star):
        return Fragment("count(*)", types.INTEGER)
    if len(node.arguments) > 1:
        raise Mistake.NOT_SUPPORTED(f"{name} of several columns")
    value = compile_expression(node.arguments[0], scope)
    distinct = "DISTINCT " if node.is_distinct else ""
    if distinct or scope.is_grouped:
        value = rounded(value)
    if name == "COUNT":
        return Fragment(f"count({distinct}{collated(value)})", types.INTEGER)
    if name in ("MIN", "MAX"):
        return Fragment(f"{name.lower()}({ordered(value)})", value.type)
    return value if name == "ANY_VALUE" else _sum(name, distinct, value)


def _sum(name: str, distinct: str, value: Fragment) -> Fragment:
    if value.type.kind is Kind.TEXT and not value.is_collated and value.literal is None:
        raise Mistake.NOT_SUPPORTED(f"{name} of a text that is no column")
    number = _unrounded(to_number(value))
    if number.type.kind not in (Kind.INTEGER, Kind.DECIMAL, Kind.NULL):
        return Fragment(f"{name.lower()}({distinct}{number.sql})", types.DOUBLE)
    kind = SqlType(Kind.DECIMAL, number.type.scale, is_exact=number.type.is_exact)
    total = f"sum({distinct}{number.sql})"
    if kind.is_exact and kind.scale:  # floats add up to nearly the decimal
        total = f"round({total}, {kind.scale})"
    if name == "SUM":
        return Fragment(total, kind)
    scale = min(kind.scale + types.DIVISION_SCALE, types.MAX_SCALE)
    count = f"count({distinct}{number.sql})"
    mean = f"({total} / CAST({count} AS REAL))"
    if kind.is_exact and scale <= 9:  # as many as a quotient has
        mean = f"my_mean({total}, {count})"
    return Fragment(mean, SqlType(Kind.DECIMAL, scale, is_exact=False))


def _window(node: nodes.Call, name: str, window: nodes.Window, scope: Scope) -> Fragment:
    """ROW_NUMBER, RANK and DENSE_RANK over columns of this query."""
    if not scope.aggregates_allowed or scope.clause == "having clause":
        raise Mistake.WINDOW_MISUSE(name.lower())
    for term in (*window.partition, *(item.term for item in window.order)):
        column = term.name if isinstance(term, nodes.ColumnName) else ""
        if not scope.has_column(column) or column.lower() in scope.aliases:
            raise Mistake.NOT_SUPPORTED("a window over what is no column")
    if name not in words.WINDOW_FUNCTIONS or node.arguments:
        raise Mistake.NOT_SUPPORTED(f"{name} OVER")
    partition = ", ".join(collated(compile_expression(term, scope)) for term in window.partition)
    order = compile_order(window.order, scope)
    over = f"PARTITION BY {partition}{order}" if partition else order
    return Fragment(f"{name.lower()}() OVER ({over})", types.INTEGER)


def compile_order(order: tuple[nodes.Ordered, ...], scope: Scope) -> str:
    """Returns an ORDER BY clause whose terms are expressions, not positions; empty without any."""
    terms = (
        order_value(compile_expression(term, scope)) + direction(is_descending)
        for term, is_descending in order
    )
    return f" ORDER BY {', '.join(terms)}" if order else ""


def order_value(value: Fragment) -> str:
    """Returns a term of ORDER BY.

    A literal orders nothing; SQLite would read a number in its place as a position.
    """
    return ordered(rounded(value)) if value.literal is None else "NULL"


def direction(is_descending: bool) -> str:
    """Returns what follows a term of ORDER BY."""
    return " DESC" if is_descending else ""
