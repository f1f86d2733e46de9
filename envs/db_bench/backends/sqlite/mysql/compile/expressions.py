"""Columns, literals, operators, CASE and CAST as SQLite text with types."""

import math
from collections.abc import Callable

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql import types
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import Fragment, Scope
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.values import (
    STRICT,
    align,
    check_size,
    choose,
    compile_condition,
    compile_expression,
    handles,
    rounded,
    to_number,
    to_temporal,
    to_text,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.dates import DATE_UNITS, UNITS
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Kind, SqlType


@handles(exp.Column)
def _column(node: exp.Expr, scope: Scope) -> Fragment:
    if isinstance(node.this, exp.Star):
        raise Misplaced("*")
    return scope.find_column(node)


@handles(exp.Literal)
def _literal(node: exp.Expr, scope: Scope) -> Fragment:
    text = node.name
    if node.is_string:
        return Fragment(types.quote_text(text), types.TEXT, literal=text)
    if "e" in text.lower():
        if math.isinf(float(text)):
            raise Mistake.BAD_DOUBLE(text)
        return Fragment(text, types.DOUBLE, literal=text)
    digits, _, decimals = text.partition(".")
    if len((digits + decimals).lstrip("0")) > types.MAX_EXACT_DIGITS and "." in text:
        raise Mistake.NOT_SUPPORTED(f"decimals of more than {types.MAX_EXACT_DIGITS} digits")
    if "." in text:
        kind = SqlType(Kind.DECIMAL, min(len(decimals), types.MAX_SCALE))
        return Fragment(text, kind, literal=text)
    if len(text) > 18 and int(text) >= 1 << 63:
        raise Mistake.NOT_SUPPORTED("integers beyond 64 bits with a sign")
    kind = SqlType(Kind.INTEGER, length=int(text).bit_length() + 1)
    return Fragment(text, kind, literal=text)


@handles(exp.Concat)
def _adjacent_texts(node: exp.Expr, scope: Scope) -> Fragment:
    text = "".join(part.name for part in node.expressions)
    return Fragment(types.quote_text(text), types.TEXT, literal=text)


@handles(exp.Null)
def _null(node: exp.Expr, scope: Scope) -> Fragment:
    return Fragment("NULL", types.NULL)


@handles(exp.Boolean)
def _boolean(node: exp.Expr, scope: Scope) -> Fragment:
    text = "1" if node.this else "0"
    return Fragment(text, types.INTEGER, literal=text)


@handles(exp.Paren)
def _paren(node: exp.Expr, scope: Scope) -> Fragment:
    inner = compile_expression(node.this, scope)
    return inner if inner.literal is not None else inner._replace(sql=f"({inner.sql})")


def _sum_type(left: SqlType, right: SqlType, scale: int) -> SqlType:
    """Returns the type of a sum or product with `scale` decimals if it is a decimal."""
    kinds = {left.kind, right.kind}
    if kinds & types.FLOATS:
        return types.DOUBLE
    if Kind.DECIMAL in kinds:
        is_exact = left.is_exact and right.is_exact
        return SqlType(Kind.DECIMAL, min(scale, types.MAX_SCALE), is_exact=is_exact)
    return types.INTEGER


def _calculate(left: Fragment, operator: str, right: Fragment) -> Fragment:
    if operator == "-" and (left.type.is_unsigned or right.type.is_unsigned):
        raise Mistake.NOT_SUPPORTED("a difference of UNSIGNED")
    scales = (left.type.scale, right.type.scale)
    kind = _sum_type(left.type, right.type, sum(scales) if operator == "*" else max(scales))
    sql = f"({left.sql} {operator} {right.sql})"
    if kind.kind is Kind.INTEGER:
        return _whole_result(sql, left.type, operator, right.type)
    if kind.kind is Kind.DECIMAL and kind.is_exact:
        sql = f"round({sql}, {kind.scale})"  # the double nearest to it: 0.1 + 0.2 = 0.3
    return Fragment(sql, kind)


def _whole_result(sql: str, left: SqlType, operator: str, right: SqlType) -> Fragment:
    """Returns a sum or product of integers, checked where it may have more than 64 bits."""
    bits = (left.length or 64, right.length or 64)
    length = sum(bits) if operator == "*" else max(bits) + 1
    if length > 64:
        return Fragment(f"my_bigint({sql})", types.INTEGER)
    return Fragment(sql, SqlType(Kind.INTEGER, length=length))


def _quotient(left: Fragment, right: Fragment) -> Fragment:
    """Returns a quotient, of decimals with four more digits than the dividend.

    MySQL calculates decimals in words of nine digits and cuts off the rest: 2 / 3 is 0.666666666
    before it is rounded for display. One word is done likewise; more digits than that as doubles.
    """
    if {left.type.kind, right.type.kind} & types.FLOATS:
        return Fragment(f"(CAST({left.sql} AS REAL) / {right.sql})", types.DOUBLE)
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
    kind = _sum_type(left.type, right.type, max(left.type.scale, right.type.scale))
    if kind.kind is Kind.INTEGER:
        return Fragment(f"({left.sql} % {right.sql})", kind)
    function = "my_fmod" if kind.kind is Kind.DOUBLE else "my_mod"
    return Fragment(f"{function}({left.sql}, {right.sql})", kind)


_DIVISIONS = (exp.Div, exp.IntDiv, exp.Mod)
_ARITHMETIC: dict[type[exp.Expr], Callable[[Fragment, Fragment], Fragment]] = {
    exp.Add: lambda left, right: _calculate(left, "+", right),
    exp.Sub: lambda left, right: _calculate(left, "-", right),
    exp.Mul: lambda left, right: _calculate(left, "*", right),
    exp.Div: _quotient,
    exp.IntDiv: _integer_quotient,
    exp.Mod: modulo,
}


@handles(*_ARITHMETIC)
def _arithmetic(node: exp.Expr, scope: Scope) -> Fragment:
    is_sum = isinstance(node, exp.Add | exp.Sub)
    if isinstance(node.expression, exp.Interval) and is_sum:
        sign = -1 if isinstance(node, exp.Sub) else 1
        return shift_date(node.this, node.expression, sign, scope)
    if isinstance(node.this, exp.Interval) and isinstance(node, exp.Add):
        return shift_date(node.expression, node.this, 1, scope)
    left = to_number(compile_expression(node.this, scope))
    right = to_number(compile_expression(node.expression, scope))
    if STRICT.get() and scope.clause == "field list" and isinstance(node, _DIVISIONS):
        right = right._replace(sql=f"my_divisor({right.sql})")
    return _ARITHMETIC[type(node)](left, right)


def shift_date(value: exp.Expr, interval: exp.Expr, sign: int, scope: Scope) -> Fragment:
    """Returns a date plus or minus an INTERVAL."""
    unit = interval.args["unit"].name.upper() if interval.args.get("unit") else ""
    if unit not in UNITS:
        if unit == "MICROSECOND" or "_" in unit:
            raise Mistake.NOT_SUPPORTED(f"INTERVAL … {unit}")
        raise Misplaced(unit)
    base = compile_expression(value, scope)
    if base.type.kind is Kind.TIME:
        raise Mistake.NOT_SUPPORTED("TIME with an INTERVAL")
    if base.type.kind is Kind.TEXT and STRICT.get():
        base = base._replace(sql=f"my_strict_date({base.sql})")
    amount = compile_expression(interval.this, scope)
    kind = base.type
    if kind.kind is Kind.DATE and unit not in DATE_UNITS:
        kind = types.DATETIME
    elif kind.kind not in types.TEMPORALS:
        kind = types.TEXT
    return Fragment(f"my_date_add({base.sql}, {amount.sql}, '{unit}', {sign})", kind)


@handles(exp.Neg)
def _negative(node: exp.Expr, scope: Scope) -> Fragment:
    operand = compile_expression(node.this, scope)
    if operand.type.kind in types.TEMPORALS:
        raise Mistake.NOT_SUPPORTED(f"a negative {operand.type.kind}")
    value = to_number(operand)
    literal = f"-{value.literal}" if value.literal is not None else None
    kind = types.DOUBLE if value.type.kind is Kind.FLOAT else value.type
    return Fragment(f"(-{value.sql})", kind, literal=literal)


_CHAIN = 30


@handles(exp.And, exp.Or)
def _connector(node: exp.Expr, scope: Scope) -> Fragment:
    """AND and OR: a chain of thousands is one flat text, not a recursion.

    sqlglot's tree of `a AND b AND c` is as deep as the chain is long. Python's stack would overflow
    in compiling it, and SQLite's limit on depth refuses the text as it stands.
    """
    word = " AND " if isinstance(node, exp.And) else " OR "
    conditions = [compile_condition(part, scope) for part in node.flatten(unnest=False)]
    while len(conditions) > _CHAIN:  # a tree of groups, whose depth is logarithmic
        chunks = (conditions[i : i + _CHAIN] for i in range(0, len(conditions), _CHAIN))
        conditions = [f"({word.join(chunk)})" for chunk in chunks]
    return Fragment(f"({word.join(conditions)})", types.INTEGER)


@handles(exp.Not)
def _not(node: exp.Expr, scope: Scope) -> Fragment:
    return Fragment(f"(NOT {compile_condition(node.this, scope)})", types.INTEGER)


COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.NullSafeEQ: "IS",
}


_LOOSER = (exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Is)
"""What sqlglot binds closer than `=`, and MySQL from left to right: `a = b > c`."""


@handles(*COMPARISONS)
def _comparison(node: exp.Expr, scope: Scope) -> Fragment:
    if isinstance(node.expression, _LOOSER) or (
        isinstance(node.expression, exp.Not) and isinstance(node.expression.this, exp.Is)
    ):
        raise Mistake.NOT_SUPPORTED("comparisons in a row without parentheses")
    if isinstance(node.this, exp.Tuple) or isinstance(node.expression, exp.Tuple):
        raise Mistake.NOT_SUPPORTED("a comparison of rows")
    if isinstance(node.expression, exp.Any | exp.All):
        return compile_expression(node.expression, scope)
    left = compile_expression(node.this, scope)
    right = compile_expression(node.expression, scope)
    if right.is_collated and left.literal is not None:
        left = left._replace(is_collated=True)  # the right side's collation will be used
    first, second = align([rounded(left), rounded(right)])
    return Fragment(f"({first} {COMPARISONS[type(node)]} {second})", types.INTEGER)


@handles(exp.Is)
def _is(node: exp.Expr, scope: Scope) -> Fragment:
    value = compile_expression(node.this, scope)
    if isinstance(node.expression, exp.Boolean):
        word = "TRUE" if node.expression.this else "FALSE"
        return Fragment(f"({to_number(value).sql} IS {word})", types.INTEGER)
    return Fragment(f"({value.sql} IS NULL)", types.INTEGER)


def is_in(left: Fragment, values: list[Fragment]) -> Fragment:
    """Returns whether a value is in a list; one of mixed types is a comparison for each value."""
    kinds = {value.type.kind for value in values} - {Kind.NULL}
    if kinds & types.TEMPORALS and len(kinds) > 1:
        raise Mistake.NOT_SUPPORTED("a comparison of a date with several types")
    if kinds & types.NUMBERS and not kinds <= types.NUMBERS:
        check_size(len(left.sql) * len(values))
        tests = [" = ".join(align([left, value])) for value in values]
        return Fragment(f"({' OR '.join(tests)})", types.INTEGER)
    first, *rest = align([left, *values])
    return Fragment(f"({first} IN ({', '.join(rest)}))", types.INTEGER)


@handles(exp.Between)
def _between(node: exp.Expr, scope: Scope) -> Fragment:
    parts = [node.this, node.args["low"], node.args["high"]]
    first, second, third = align([compile_expression(part, scope) for part in parts])
    return Fragment(f"({first} BETWEEN {second} AND {third})", types.INTEGER)


@handles(exp.Like, exp.Escape)
def _like(node: exp.Expr, scope: Scope) -> Fragment:
    escape = "\\"
    if isinstance(node, exp.Escape):
        if not isinstance(node.expression, exp.Literal) or len(node.expression.name) != 1:
            raise Mistake.WRONG_ARGUMENTS("ESCAPE")
        escape = node.expression.name
        node = node.this
    value = to_text(compile_expression(node.this, scope))
    pattern = to_text(compile_expression(node.expression, scope))
    word = "NOT LIKE" if node.args.get("negate") else "LIKE"
    may_escape = pattern.literal is None or escape in pattern.literal
    clause = f" ESCAPE {types.quote_text(escape)}" if may_escape else ""
    return Fragment(f"({value.sql} {word} {pattern.sql}{clause})", types.INTEGER)


@handles(exp.Case)
def _case(node: exp.Expr, scope: Scope) -> Fragment:
    operand = node.this and compile_expression(node.this, scope)
    branches = node.args["ifs"]
    check_size(len(operand.sql) * len(branches) if operand else 0)
    default = node.args.get("default") or exp.Null()
    values = [compile_expression(branch.args["true"], scope) for branch in branches]
    values.append(compile_expression(default, scope))
    tests = []
    for branch in branches:
        if operand:
            tests.append(" = ".join(align([operand, compile_expression(branch.this, scope)])))
        else:
            tests.append(compile_condition(branch.this, scope))
    return choose(tests, values)


@handles(exp.If)
def _if(node: exp.Expr, scope: Scope) -> Fragment:
    otherwise = node.args.get("false")
    if otherwise is None:
        raise Mistake.ARGUMENTS("IF")
    values = [compile_expression(node.args["true"], scope), compile_expression(otherwise, scope)]
    return choose([compile_condition(node.this, scope)], values)


@handles(exp.Cast)
def _cast(node: exp.Expr, scope: Scope) -> Fragment:
    value = compile_expression(node.this, scope)
    target = node.args["to"]
    name = target.this.value if isinstance(target.this, exp.DType) else str(target.this)
    sizes = [int(size.name) for size in target.expressions]
    if name == "BIGINT":
        if value.type.kind is Kind.TEXT:
            if STRICT.get():
                raise Mistake.NOT_SUPPORTED("CAST of a text AS SIGNED in a change")
            return Fragment(f"my_text_integer({value.sql})", types.INTEGER)
        number = to_number(value)
        is_decimal = int(number.type.kind is Kind.DECIMAL)
        return Fragment(f"my_cast_integer({number.sql}, {is_decimal})", types.INTEGER)
    if name == "DECIMAL":
        return _to_decimal(value, *(sizes or [10]))
    if name in ("DATE", "DATETIME", "TIMESTAMP", "TIMESTAMPTZ") and not sizes:
        kind = types.DATE if name == "DATE" else types.DATETIME
        if value.type.kind in types.NUMBERS:
            raise Mistake.NOT_SUPPORTED(f"CAST of a number AS {name}")
        return Fragment(to_temporal(value._replace(literal=None), kind.kind).sql, kind)
    if name == "CHAR":
        text = to_text(value)
        return Fragment(f"substr({text.sql}, 1, {sizes[0]})", types.TEXT) if sizes else text
    raise Mistake.NOT_SUPPORTED(f"CAST AS {name}")


def _to_decimal(value: Fragment, digits: int, scale: int = 0) -> Fragment:
    if digits > types.MAX_EXACT_DIGITS or scale > digits:
        raise Mistake.NOT_SUPPORTED(f"CAST AS DECIMAL({digits},{scale})")
    most = f"{'9' * (digits - scale) or '0'}.{'9' * scale or '0'}"
    rounded = f"my_round({to_number(value).sql}, {scale}, 1)"
    return Fragment(f"max(min({rounded}, {most}), -{most})", SqlType(Kind.DECIMAL, scale))
