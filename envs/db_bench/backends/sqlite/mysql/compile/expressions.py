"""Columns, literals, operators, functions and aggregates as SQLite text with types."""

import re
from collections.abc import Callable

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
    kept,
    rounded,
    to_number,
    to_temporal,
    to_text,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse import nodes, words
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.dates import DATE_UNITS, UNITS
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
    if left.type.is_unsigned or right.type.is_unsigned or types.NULL in (left.type, right.type):
        raise Mistake.NOT_SUPPORTED("arithmetic of UNSIGNED or NULL")
    scales = (left.type.scale, right.type.scale)
    scale = sum(scales) if operator == "*" else max(scales)
    kind = _common_type(left.type, right.type, scale)
    sql = f"({left.sql} {operator} {right.sql})"
    if kind.kind is Kind.INTEGER:
        bits = (left.type.length or 64, right.type.length or 64)
        length = sum(bits) if operator == "*" else max(bits) + 1
        if length > 64:
            return Fragment(f"my_bigint({sql})", types.INTEGER)
        return Fragment(sql, SqlType(Kind.INTEGER, length=length))
    if kind.kind is Kind.DECIMAL and kind.is_exact:
        sql = f"round({sql}, {kind.scale})"  # the double nearest to it: 0.1 + 0.2 = 0.3
    return Fragment(sql, kind)


def _common_type(left: SqlType, right: SqlType, scale: int) -> SqlType:
    """Returns the type of a sum or product, with `scale` decimals if it is a decimal."""
    kinds = {left.kind, right.kind}
    if kinds & types.FLOATS:
        return types.calculated_double(max(left.scale, right.scale))
    if Kind.DECIMAL in kinds:
        is_exact = left.is_exact and right.is_exact
        return SqlType(Kind.DECIMAL, min(scale, types.MAX_SCALE), is_exact=is_exact)
    return types.INTEGER


def _quotient(left: Fragment, right: Fragment) -> Fragment:
    """Returns a quotient, of decimals with four more digits than the dividend.

    MySQL calculates decimals in words of nine digits and cuts off the rest: 2 / 3 is 0.666666666
    before it is rounded for display. One word is done likewise; more digits than that as doubles.
    """
    if {left.type.kind, right.type.kind} & types.FLOATS:
        scale = max(left.type.scale, right.type.scale) + types.DIVISION_SCALE
        kind = types.calculated_double(scale)
        return Fragment(f"(CAST({left.sql} AS REAL) / {right.sql})", kind)
    scale = min(left.type.scale + types.DIVISION_SCALE, types.MAX_SCALE)
    kind = SqlType(Kind.DECIMAL, scale, is_exact=False)
    if _num_digits(left.type.scale, right.type.scale) <= 9:
        return Fragment(f"my_quotient({left.sql}, {right.sql})", kind)
    return Fragment(f"(CAST({left.sql} AS REAL) / {right.sql})", kind)


def _num_digits(left: int, right: int) -> int:
    """Returns how many decimals MySQL calculates in a division: whole words of nine digits."""
    first, second = (-(-scale // 9) * 9 for scale in (left, right))
    more = max(types.DIVISION_SCALE - (first - left) - (second - right), 0)
    return -(-(first + second + more) // 9) * 9


def _integer_quotient(left: Fragment, right: Fragment) -> Fragment:
    if left.type.kind is right.type.kind is Kind.INTEGER:
        return Fragment(f"({left.sql} / {right.sql})", types.INTEGER)
    return Fragment(f"CAST(CAST({left.sql} AS REAL) / {right.sql} AS INTEGER)", types.INTEGER)


def modulo(left: Fragment, right: Fragment) -> Fragment:
    """Returns the remainder, with the sign of the dividend."""
    kind = _common_type(left.type, right.type, max(left.type.scale, right.type.scale))
    if kind.kind is Kind.INTEGER:
        return Fragment(f"({left.sql} % {right.sql})", kind)
    if kind.kind is Kind.DOUBLE:
        raise Mistake.NOT_SUPPORTED("% of floating-point numbers")
    return Fragment(f"my_mod({left.sql}, {right.sql})", kind)


_ARITHMETIC: dict[str, Callable[[Fragment, Fragment], Fragment]] = {
    "+": lambda left, right: _calculate(left, "+", right),
    "-": lambda left, right: _calculate(left, "-", right),
    "*": lambda left, right: _calculate(left, "*", right),
    "/": _quotient,
    "DIV": _integer_quotient,
    "%": modulo,
}


@handles(*_ARITHMETIC)
def _arithmetic(node: nodes.Operator, scope: Scope) -> Fragment:
    operator, (first, second) = node
    left = to_number(compile_expression(first, scope))
    right = to_number(compile_expression(second, scope))
    if STRICT.get() and operator in ("/", "DIV", "%"):
        right = right._replace(sql=f"my_divisor({right.sql})")
    return _ARITHMETIC[operator](left, right)


@handles("NEGATIVE")
def _negative(node: nodes.Operator, scope: Scope) -> Fragment:
    operand = compile_expression(node.operands[0], scope)
    if operand.type.kind in types.TEMPORALS:
        raise Mistake.NOT_SUPPORTED(f"a negative {operand.type.kind}")
    value = to_number(operand)
    literal = f"-{value.literal}" if value.literal is not None else None
    kind = types.DOUBLE if value.type.kind is Kind.FLOAT else value.type
    return Fragment(f"(-{value.sql})", kind, literal=literal)


_CHAIN = 30


@handles("AND", "OR")
def _connector(node: nodes.Operator, scope: Scope) -> Fragment:
    """AND and OR: SQLite reads a chain of thousands as a tree as deep, which it refuses."""
    word = f" {node.operator} "
    conditions = [compile_condition(operand, scope) for operand in node.operands]
    while len(conditions) > _CHAIN:  # a tree of groups, whose depth is logarithmic
        chunks = (conditions[i : i + _CHAIN] for i in range(0, len(conditions), _CHAIN))
        conditions = [f"({word.join(chunk)})" for chunk in chunks]
    return Fragment(f"({word.join(conditions)})", types.INTEGER)


@handles("NOT")
def _not(node: nodes.Operator, scope: Scope) -> Fragment:
    return Fragment(f"(NOT {compile_condition(node.operands[0], scope)})", types.INTEGER)


def compare(left: Fragment, operator: str, right: Fragment) -> str:
    """Returns a comparison of two values.

    Two numbers of known decimals of which one is calculated from a DOUBLE are equal if they differ
    by less than half of the last decimal.
    """
    inexact = [v for v in (left, right) if v.type.kind is Kind.DOUBLE and not v.type.is_exact]
    if inexact and operator != "<=>" and {left.type.kind, right.type.kind} <= types.NUMBERS:
        scale = max(left.type.scale, right.type.scale)
        if scale < types.UNFIXED:
            return f"(round({left.sql} - {right.sql}, {scale}) {operator} 0)"
        return f"({left.sql} {operator} {right.sql})"
    left, right = rounded(left), rounded(right)
    if right.is_collated and left.literal is not None:
        left = left._replace(is_collated=True)  # the right side's collation will be used
    first, second = align([left, right])
    return f"({first} {'IS' if operator == '<=>' else operator} {second})"


@handles("ROW")
def _row(node: nodes.Operator, scope: Scope) -> Fragment:
    raise Mistake.OPERAND(1)


@handles(*(f"IS {word}" for word in ("NULL", "TRUE", "FALSE", "NOT NULL", "NOT TRUE", "NOT FALSE")))
def _is(node: nodes.Operator, scope: Scope) -> Fragment:
    value = compile_expression(node.operands[0], scope)
    sql = value.sql if node.operator.endswith("NULL") else to_number(value).sql
    return Fragment(f"({sql} {node.operator})", types.INTEGER)


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


@handles("BETWEEN", "NOT BETWEEN")
def _between(node: nodes.Operator, scope: Scope) -> Fragment:
    first, low, high = align([compile_expression(operand, scope) for operand in node.operands])
    return Fragment(f"({first} {node.operator} {low} AND {high})", types.INTEGER)


@handles("LIKE", "NOT LIKE")
def _like(node: nodes.Operator, scope: Scope) -> Fragment:
    value, pattern, *escape = (
        to_text(compile_expression(operand, scope)) for operand in node.operands
    )
    sql = f"{value.sql} {node.operator} {pattern.sql}"
    if escape:
        character = escape[0].literal
        if character is None or len(character) > 1 or character in ("%", "_"):
            raise Mistake.NOT_SUPPORTED("ESCAPE with what is no literal of one character")
        sql += f" ESCAPE {escape[0].sql}"
    return Fragment(f"({sql})", types.INTEGER)


@handles("REGEXP", "NOT REGEXP")
def _regexp(node: nodes.Operator, scope: Scope) -> Fragment:
    value, pattern = (to_text(compile_expression(operand, scope)) for operand in node.operands)
    negation = node.operator.removesuffix("REGEXP")
    return Fragment(f"({negation}my_regexp({value.sql}, {pattern.sql}))", types.INTEGER)


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
    value, sizes = compile_expression(node.value, scope), node.sizes
    if node.type_name in ("SIGNED", "UNSIGNED"):
        number = _to_integer(value)
        if node.type_name == "SIGNED":
            return number
        kind = SqlType(Kind.INTEGER, length=64, is_unsigned=True)
        return Fragment(f"my_unsigned({number.sql})", kind)
    if node.type_name == "DECIMAL":
        return _to_decimal(value, *(sizes or (10,)))
    if node.type_name == "CHAR":
        text = to_text(value)
        if sizes:
            return Fragment(f"substr({text.sql}, 1, {sizes[0]})", types.TEXT)
        return text._replace(sql=f"({text.sql})")  # another expression for GROUP BY
    if sizes or value.type.kind in types.NUMBERS:
        raise Mistake.NOT_SUPPORTED(f"CAST of {value.type.kind} AS {node.type_name}")
    return _cast_to_temporal(value, Kind(node.type_name.lower()))


def _cast_to_temporal(value: Fragment, kind: Kind) -> Fragment:
    """Returns a value as a date or a date and time, NULL where it is none.

    The parentheses tell `DATE(d)` from `d`, which is another expression for GROUP BY.
    """
    return Fragment(f"({to_temporal(value._replace(literal=None), kind).sql})", SqlType(kind))


def _to_integer(value: Fragment) -> Fragment:
    if value.type.kind is Kind.TEXT:
        if STRICT.get():
            raise Mistake.NOT_SUPPORTED("CAST of a text AS SIGNED in a change")
        return Fragment(f"my_text_integer({value.sql})", types.INTEGER)
    number = to_number(value)
    is_decimal = int(number.type.kind is Kind.DECIMAL)
    return Fragment(f"my_cast_integer({number.sql}, {is_decimal})", types.INTEGER)


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


def _date(values: list[Fragment]) -> Fragment:
    if values[0].type.kind in types.NUMBERS | {Kind.TIME}:
        raise Mistake.NOT_SUPPORTED(f"DATE of {values[0].type.kind}")
    return _cast_to_temporal(values[0], Kind.DATE)


_SIGNATURES = {
    types.TEXT: """upper(t) lower(t) left(ti) right(ti) repeat(ti) substring(tii?) ltrim(t) rtrim(t)
        replace(ttt) reverse(t) lpad(tit) rpad(tit) substring_index(tti) dayname(d) monthname(d)
        date_format(dt) trim(ttt) concat_ws(tt+)""",
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
    "ISNULL": "({} IS NULL)",
    "INSTR": "my_locate({1}, {0})",
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
        arguments = [_convert(*pair, name) for pair in zip(letter_of_each, values, strict=False)]
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
