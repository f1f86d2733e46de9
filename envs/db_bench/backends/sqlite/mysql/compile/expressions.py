"""Columns, literals, operators, CASE and CAST as SQLite text with types."""

from agentpeft.envs.db_bench.backends.sqlite.mysql import types
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.calls import compile_call
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import Fragment, Scope
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.values import (
    STRICT,
    align,
    choose,
    compile_condition,
    compile_expression,
    handles,
    kept,
    to_number,
    to_text,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse import nodes
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Kind, SqlType


handles(nodes.Call)(compile_call)


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


@handles("+", "-", "*", "/", "DIV", "%")
def _arithmetic(node: nodes.Operator, scope: Scope) -> Fragment:
    operator, (first, second) = node
    left = to_number(compile_expression(first, scope))
    right = to_number(compile_expression(second, scope))
    if left.type.is_unsigned or right.type.is_unsigned or types.NULL in (left.type, right.type):
        raise Mistake.NOT_SUPPORTED("arithmetic of UNSIGNED or NULL")
    if operator in ("+", "-", "*"):
        return _calculate(left, operator, right)
    if STRICT.get() and not float(right.literal or 0):  # 1365 where it is zero
        raise Mistake.NOT_SUPPORTED("a change that divides by what is no literal, or by zero")
    if operator == "/":
        return _quotient(left, right)
    if not left.type.kind is right.type.kind is Kind.INTEGER:
        raise Mistake.NOT_SUPPORTED(f"{operator} of other numbers than integers")
    return Fragment(f"({left.sql} {'/' if operator == 'DIV' else '%'} {right.sql})", types.INTEGER)


def _calculate(left: Fragment, operator: str, right: Fragment) -> Fragment:
    sql = f"({left.sql} {operator} {right.sql})"
    kinds = {left.type.kind, right.type.kind}
    if kinds & types.FLOATS:
        return Fragment(sql, types.DOUBLE)
    if Kind.DECIMAL in kinds:
        scales = (left.type.scale, right.type.scale)
        scale = min(sum(scales) if operator == "*" else max(scales), types.MAX_SCALE)
        if left.type.is_exact and right.type.is_exact:
            sql = f"round({sql}, {scale})"  # the double nearest to it: 0.1 + 0.2 = 0.3
            return Fragment(sql, SqlType(Kind.DECIMAL, scale))
        return Fragment(sql, SqlType(Kind.DECIMAL, scale, is_exact=False))
    bits = (left.type.length or 64, right.type.length or 64)
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


@handles("NEGATIVE")
def _negative(node: nodes.Operator, scope: Scope) -> Fragment:
    value = to_number(compile_expression(node.operands[0], scope))
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


@handles("=", "<>", ">", ">=", "<", "<=", "<=>")
def _comparison(node: nodes.Operator, scope: Scope) -> Fragment:
    left, right = (kept(compile_expression(operand, scope)) for operand in node.operands)
    if right.is_collated and left.literal is not None:
        left = left._replace(is_collated=True)  # the right side's collation will be used
    first, second = align([left, right])
    operator = "IS" if node.operator == "<=>" else node.operator
    return Fragment(f"({first} {operator} {second})", types.INTEGER)


@handles(*(f"IS {word}" for word in ("NULL", "TRUE", "FALSE", "NOT NULL", "NOT TRUE", "NOT FALSE")))
def _is(node: nodes.Operator, scope: Scope) -> Fragment:
    value = compile_expression(node.operands[0], scope)
    sql = value.sql if node.operator.endswith("NULL") else to_number(value).sql
    return Fragment(f"({sql} {node.operator})", types.INTEGER)


def is_in(left: Fragment, values: list[Fragment], operator: str) -> Fragment:
    """Returns whether a value is in a list. Raises: MySQLError (1235)."""
    kinds = {value.type.kind for value in values} - {Kind.NULL}
    if Kind.TEXT in kinds and len(kinds) > 1:
        raise Mistake.NOT_SUPPORTED("a list of texts and other types")
    first, *rest = align([left, *values])
    return Fragment(f"({first} {operator} ({', '.join(rest)}))", types.INTEGER)


@handles("BETWEEN", "NOT BETWEEN")
def _between(node: nodes.Operator, scope: Scope) -> Fragment:
    first, low, high = align([compile_expression(operand, scope) for operand in node.operands])
    return Fragment(f"({first} {node.operator} {low} AND {high})", types.INTEGER)


@handles("LIKE", "NOT LIKE")
def _like(node: nodes.Operator, scope: Scope) -> Fragment:
    value, pattern = (to_text(compile_expression(operand, scope)) for operand in node.operands)
    return Fragment(f"({value.sql} {node.operator} {pattern.sql})", types.INTEGER)


@handles(nodes.Case)
def _case(node: nodes.Case, scope: Scope) -> Fragment:
    values = [compile_expression(value, scope) for _, value in node.branches]
    values.append(compile_expression(node.default, scope))
    return choose([compile_condition(condition, scope) for condition, _ in node.branches], values)


@handles(nodes.Cast)
def _cast(node: nodes.Cast, scope: Scope) -> Fragment:
    value = compile_expression(node.value, scope)
    if node.type_name == "CHAR":
        text = to_text(value)
        return text._replace(sql=f"({text.sql})")  # another expression for GROUP BY
    if node.type_name == "DECIMAL":
        return _to_decimal(value, *(node.sizes or (10,)))
    number = _to_integer(value)
    if node.type_name == "SIGNED":
        return number
    kind = SqlType(Kind.INTEGER, length=64, is_unsigned=True)
    return Fragment(f"my_unsigned({number.sql})", kind)


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
