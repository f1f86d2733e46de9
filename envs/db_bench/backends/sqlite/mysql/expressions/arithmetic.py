"""MySQL's arithmetic as SQLite text with types."""

from collections.abc import Callable

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.errors import Misplaced
from agentpeft.envs.db_bench.backends.sqlite.mysql.expressions.coercion import STRICT, to_number
from agentpeft.envs.db_bench.backends.sqlite.mysql.expressions.compiler import (
    compile_expression,
    handles,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.expressions.scopes import Fragment, Scope
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.temporal import DATE_UNITS, UNITS
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    DATETIME,
    DIVISION_SCALE,
    DOUBLE,
    INTEGER,
    MAX_SCALE,
    TEMPORALS,
    TEXT,
    UNKNOWN,
    Kind,
    SqlType,
)

_FLOATS = (Kind.FLOAT, Kind.DOUBLE)


def _sum_type(left: SqlType, right: SqlType, scale: int) -> SqlType:
    """Returns the type of a sum or product with `scale` decimals if it is a decimal."""
    kinds = {left.kind, right.kind}
    if kinds & set(_FLOATS) or Kind.TEXT in kinds:
        return DOUBLE
    if Kind.DECIMAL in kinds:
        is_exact = left.is_exact and right.is_exact
        return SqlType(Kind.DECIMAL, min(scale, MAX_SCALE), is_exact=is_exact)
    return UNKNOWN if Kind.UNKNOWN in kinds else INTEGER


def _calculate(left: Fragment, operator: str, right: Fragment, scale: int) -> Fragment:
    kind = _sum_type(left.type, right.type, scale)
    sql = f"({left.sql} {operator} {right.sql})"
    if kind.kind is Kind.DECIMAL and kind.is_exact:
        sql = f"round({sql}, {kind.scale})"  # the float nearest to the decimal: 0.1 + 0.2 = 0.3
    return Fragment(sql, kind)


def _add(left: Fragment, right: Fragment) -> Fragment:
    return _calculate(left, "+", right, max(left.type.scale, right.type.scale))


def _subtract(left: Fragment, right: Fragment) -> Fragment:
    return _calculate(left, "-", right, max(left.type.scale, right.type.scale))


def _multiply(left: Fragment, right: Fragment) -> Fragment:
    return _calculate(left, "*", right, left.type.scale + right.type.scale)


def _divide(left: Fragment, right: Fragment) -> Fragment:
    is_double = {left.type.kind, right.type.kind} & set(_FLOATS)
    scale = min(left.type.scale + DIVISION_SCALE, MAX_SCALE)
    kind = DOUBLE if is_double else SqlType(Kind.DECIMAL, scale, is_exact=False)
    if not is_double and _num_digits(left.type.scale, right.type.scale) <= 9:
        return Fragment(f"my_quotient({left.sql}, {right.sql})", kind)
    return Fragment(f"(CAST({left.sql} AS REAL) / {right.sql})", kind)


def _num_digits(left: int, right: int) -> int:
    """Returns how many decimals MySQL calculates in a division: whole words of nine digits."""
    first, second = (-(-scale // 9) * 9 for scale in (left, right))
    more = max(DIVISION_SCALE - (first - left) - (second - right), 0)
    return -(-(first + second + more) // 9) * 9


def _integer_divide(left: Fragment, right: Fragment) -> Fragment:
    if left.type.kind is right.type.kind is Kind.INTEGER:
        return Fragment(f"({left.sql} / {right.sql})", INTEGER)
    return Fragment(f"CAST(CAST({left.sql} AS REAL) / {right.sql} AS INTEGER)", INTEGER)


def modulo(left: Fragment, right: Fragment) -> Fragment:
    """Returns the remainder, with the sign of the dividend."""
    kind = _sum_type(left.type, right.type, max(left.type.scale, right.type.scale))
    if kind.kind is Kind.INTEGER:
        return Fragment(f"({left.sql} % {right.sql})", kind)
    function = "my_fmod" if kind.kind is Kind.DOUBLE else "my_mod"
    return Fragment(f"{function}({left.sql}, {right.sql})", kind)


_ARITHMETIC: dict[type[exp.Expr], Callable[[Fragment, Fragment], Fragment]] = {
    exp.Add: _add,
    exp.Sub: _subtract,
    exp.Mul: _multiply,
    exp.Div: _divide,
    exp.IntDiv: _integer_divide,
    exp.Mod: modulo,
}


@handles(*_ARITHMETIC)
def _arithmetic(node: exp.Expr, scope: Scope) -> Fragment:
    if isinstance(node.expression, exp.Interval):
        return shifted_date(
            node.this, node.expression, -1 if isinstance(node, exp.Sub) else 1, scope
        )
    if isinstance(node.this, exp.Interval):
        return shifted_date(node.expression, node.this, 1, scope)
    left = to_number(compile_expression(node.this, scope))
    right = to_number(compile_expression(node.expression, scope))
    if STRICT.get() and scope.clause == "field list" and isinstance(node, _DIVISIONS):
        right = right._replace(sql=f"my_divisor({right.sql})")
    return _ARITHMETIC[type(node)](left, right)


def shifted_date(value: exp.Expr, interval: exp.Expr, sign: int, scope: Scope) -> Fragment:
    """Returns a date plus or minus an INTERVAL."""
    unit = interval.args["unit"].name.upper() if interval.args.get("unit") else ""
    if unit not in UNITS:
        raise Misplaced(unit)
    base = compile_expression(value, scope)
    amount = compile_expression(interval.this, scope)
    kind = base.type
    if kind.kind is Kind.DATE and unit not in DATE_UNITS:
        kind = DATETIME
    elif kind.kind not in TEMPORALS:
        kind = TEXT
    return Fragment(f"my_date_add({base.sql}, {amount.sql}, '{unit}', {sign})", kind)


_DIVISIONS = (exp.Div, exp.IntDiv, exp.Mod)
_BITWISE: dict[type[exp.Expr], str] = {
    exp.BitwiseAnd: "&",
    exp.BitwiseOr: "|",
    exp.BitwiseLeftShift: "<<",
    exp.BitwiseRightShift: ">>",
}


@handles(*_BITWISE, exp.BitwiseXor)
def _bitwise(node: exp.Expr, scope: Scope) -> Fragment:
    left = to_number(compile_expression(node.this, scope)).sql
    right = to_number(compile_expression(node.expression, scope)).sql
    if isinstance(node, exp.BitwiseXor):
        return Fragment(f"(({left} | {right}) - ({left} & {right}))", INTEGER)
    return Fragment(f"({left} {_BITWISE[type(node)]} {right})", INTEGER)


@handles(exp.BitwiseNot)
def _complement(node: exp.Expr, scope: Scope) -> Fragment:
    return Fragment(f"(~{to_number(compile_expression(node.this, scope)).sql})", INTEGER)


@handles(exp.Neg)
def _negative(node: exp.Expr, scope: Scope) -> Fragment:
    value = to_number(compile_expression(node.this, scope))
    literal = f"-{value.literal}" if value.literal is not None else None
    kind = DOUBLE if value.type.kind is Kind.FLOAT else value.type
    return Fragment(f"(-{value.sql})", kind, literal=literal)
