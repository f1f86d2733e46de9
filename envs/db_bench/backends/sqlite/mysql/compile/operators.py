"""Operators: arithmetic, comparisons and conditions."""

from collections.abc import Callable

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.coercion import (
    STRICT,
    align,
    collated,
    to_number,
    to_text,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.expressions import (
    check_size,
    compile_condition,
    compile_expression,
    compile_subquery,
    handles,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import INNER, Fragment, Scope
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.temporal import DATE_UNITS, UNITS
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    DATETIME,
    DIVISION_SCALE,
    DOUBLE,
    INTEGER,
    MAX_SCALE,
    NUMBERS,
    TEMPORALS,
    TEXT,
    UNKNOWN,
    Kind,
    SqlType,
    quote_text,
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
    # MySQL calculates decimals in words of nine digits and cuts off the rest: 2 / 3 is 0.666666666
    # before it is rounded for display. One word is done likewise; more digits than that as doubles.
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
    return Fragment(f"({word.join(conditions)})", INTEGER)


@handles(exp.Xor)
def _xor(node: exp.Expr, scope: Scope) -> Fragment:
    left, right = compile_condition(node.this, scope), compile_condition(node.expression, scope)
    return Fragment(f"((({left}) <> 0) <> (({right}) <> 0))", INTEGER)


@handles(exp.Not)
def _not(node: exp.Expr, scope: Scope) -> Fragment:
    return Fragment(f"(NOT {compile_condition(node.this, scope)})", INTEGER)


_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.NullSafeEQ: "IS",
}


@handles(*_COMPARISONS)
def _comparison(node: exp.Expr, scope: Scope) -> Fragment:
    operator = _COMPARISONS[type(node)]
    if isinstance(node.expression, exp.Any | exp.All):
        return _quantified(node, operator, scope)
    if _is_row(node.this) or _is_row(node.expression):
        return _row_comparison(node, operator, scope)
    left = compile_expression(node.this, scope)
    right = compile_expression(node.expression, scope)
    first, second = align(_collated_first(left, right))
    return Fragment(f"({first} {operator} {second})", INTEGER)


def _collated_first(left: Fragment, right: Fragment) -> tuple[Fragment, Fragment]:
    """Marks the left side as collated where the right side's collation will be used."""
    if right.is_collated and left.literal is not None:
        left = left._replace(is_collated=True)
    return left, right


def _is_row(node: exp.Expr) -> bool:
    return isinstance(node, exp.Tuple) or (
        isinstance(node, exp.Anonymous) and node.name.upper() == "ROW"
    )


def _row_comparison(node: exp.Expr, operator: str, scope: Scope) -> Fragment:
    left, right = node.this.expressions, node.expression.expressions
    if not (_is_row(node.this) and _is_row(node.expression) and len(left) == len(right)):
        raise Mistake.OPERAND(len(left) or 1)
    rows = [
        align([compile_expression(a, scope), compile_expression(b, scope)])
        for a, b in zip(left, right, strict=True)
    ]
    first, second = (", ".join(side) for side in zip(*rows, strict=True))
    return Fragment(f"(({first}) {operator} ({second}))", INTEGER)


def _quantified(node: exp.Expr, operator: str, scope: Scope) -> Fragment:
    """`x > ANY (SELECT …)` and `x > ALL (SELECT …)`, which SQLite lacks.

    ANY is true if one comparison is, ALL false if one is not. Otherwise a NULL among them makes
    either NULL; over no rows ANY is false and ALL true. `count(test)` counts what is not NULL.
    """
    left = compile_expression(node.this, scope)
    query = compile_subquery(node.expression.this, scope, 1)
    column = Fragment('"c"', query.columns[0].type, query.columns[0].is_collated)
    first, second = align([left, column])
    test = f"({first} {operator} {second})"
    if isinstance(node.expression, exp.All):
        decided, default, chosen = f"min{test} = 0", "1", "0"
    else:
        decided, default, chosen = f"max{test} = 1", "0", "1"
    return Fragment(
        f'(WITH {INNER}("c") AS ({query.sql}) SELECT CASE WHEN {decided} THEN {chosen} '
        f"WHEN count(*) > count{test} THEN NULL ELSE {default} END FROM {INNER})",
        INTEGER,
    )


@handles(exp.Subquery, exp.Select)
def _scalar_subquery(node: exp.Expr, scope: Scope) -> Fragment:
    """A query as a value. SQLite would take the first of several rows; MySQL raises error 1242."""
    query = compile_subquery(node, scope, 1)
    kind = query.columns[0].type
    if query.is_single_row:
        return Fragment(f"({query.sql})", kind)
    return Fragment(
        f'(WITH {INNER}("c") AS ({query.sql}) SELECT my_single_row(count(*), max("c")) '
        f'FROM (SELECT "c" FROM {INNER} LIMIT 2))',
        kind,
    )


@handles(exp.Exists)
def _exists(node: exp.Expr, scope: Scope) -> Fragment:
    return Fragment(f"EXISTS ({compile_subquery(node.this, scope, None).sql})", INTEGER)


@handles(exp.Is)
def _is(node: exp.Expr, scope: Scope) -> Fragment:
    value = compile_expression(node.this, scope)
    if isinstance(node.expression, exp.Boolean):
        word = "TRUE" if node.expression.this else "FALSE"
        return Fragment(f"({to_number(value).sql} IS {word})", INTEGER)
    return Fragment(f"({value.sql} IS NULL)", INTEGER)


@handles(exp.In)
def _in(node: exp.Expr, scope: Scope) -> Fragment:
    if _is_row(node.this):
        return _row_in(node, scope)
    left = compile_expression(node.this, scope)
    if node.args.get("query") is not None:
        return _in_query(left, node.args["query"], scope)
    values = [compile_expression(value, scope) for value in node.expressions]
    kinds = {value.type.kind for value in values} - {Kind.NULL}
    if kinds & NUMBERS and not kinds <= NUMBERS:
        check_size(len(left.sql) * len(values))
        tests = [" = ".join(align([left, value])) for value in values]
        return Fragment(f"({' OR '.join(tests)})", INTEGER)
    first, *rest = align([left, *values])
    return Fragment(f"({first} IN ({', '.join(rest)}))", INTEGER)


def _in_query(left: Fragment, node: exp.Expr, scope: Scope) -> Fragment:
    query = compile_subquery(node, scope, 1)
    if query.is_limited:
        raise Mistake.NOT_SUPPORTED("LIMIT & IN/ALL/ANY/SOME subquery")
    column = Fragment('"c"', query.columns[0].type, True)
    first, second = align([left, column])
    if second == '"c"':
        return Fragment(f"({first} IN ({query.sql}))", INTEGER)
    return Fragment(
        f'({first} IN (WITH {INNER}("c") AS ({query.sql}) SELECT {second} FROM {INNER}))', INTEGER
    )


def _row_in(node: exp.Expr, scope: Scope) -> Fragment:
    left = [compile_expression(value, scope) for value in node.this.expressions]
    if node.args.get("query") is not None:
        query = compile_subquery(node.args["query"], scope, len(left))
        return Fragment(f"(({', '.join(collated(v) for v in left)}) IN ({query.sql}))", INTEGER)
    check_size(sum(len(value.sql) for value in left) * len(node.expressions))
    tests = []
    for row in node.expressions:
        if len(row.expressions) != len(left):
            raise Mistake.OPERAND(len(left))
        pairs = (
            " = ".join(align([value, compile_expression(other, scope)]))
            for value, other in zip(left, row.expressions, strict=True)
        )
        tests.append(f"({' AND '.join(pairs)})")
    return Fragment(f"({' OR '.join(tests)})", INTEGER)


@handles(exp.Between)
def _between(node: exp.Expr, scope: Scope) -> Fragment:
    value = compile_expression(node.this, scope)
    low = compile_expression(node.args["low"], scope)
    high = compile_expression(node.args["high"], scope)
    first, second, third = align([value, low, high])
    return Fragment(f"({first} BETWEEN {second} AND {third})", INTEGER)


@handles(exp.Like, exp.Escape)
def _like(node: exp.Expr, scope: Scope) -> Fragment:
    escape = "\\"
    if isinstance(node, exp.Escape):
        escape = node.expression.name
        node = node.this
    value = to_text(compile_expression(node.this, scope))
    pattern = to_text(compile_expression(node.expression, scope))
    word = "NOT LIKE" if node.args.get("negate") else "LIKE"
    may_escape = escape and (pattern.literal is None or escape in pattern.literal)
    clause = f" ESCAPE {quote_text(escape)}" if may_escape else ""
    return Fragment(f"({value.sql} {word} {pattern.sql}{clause})", INTEGER)


@handles(exp.RegexpLike)
def _regexp(node: exp.Expr, scope: Scope) -> Fragment:
    value = to_text(compile_expression(node.this, scope))
    pattern = to_text(compile_expression(node.expression, scope))
    mode = ", 'c'" if Kind.BLOB in (value.type.kind, pattern.type.kind) else ""
    return Fragment(f"my_regexp_like({value.sql}, {pattern.sql}{mode})", INTEGER)
