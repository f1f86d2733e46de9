"""Aggregate and window functions."""

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.coercion import (
    collated,
    to_number,
    to_text,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.expressions import (
    compile_expression,
    compile_order,
    handles,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import (
    Fragment,
    Scope,
    name_of,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    DIVISION_SCALE,
    DOUBLE,
    INTEGER,
    MAX_SCALE,
    TEXT,
    Kind,
    SqlType,
    quote_name,
    quote_text,
)

_SPREADS = {
    **dict.fromkeys(("STD", "STDDEV", "STDDEV_POP"), "my_stddev_pop"),
    "STDDEV_SAMP": "my_stddev_samp",
    **dict.fromkeys(("VARIANCE", "VAR_POP"), "my_var_pop"),
    "VAR_SAMP": "my_var_samp",
    "BIT_AND": "my_bit_and",
    "BIT_OR": "my_bit_or",
    "BIT_XOR": "my_bit_xor",
}
AGGREGATES = frozenset({"COUNT", "SUM", "AVG", "MIN", "MAX", "ANY_VALUE", *_SPREADS})
_RANKS = {
    **dict.fromkeys(("ROW_NUMBER", "RANK", "DENSE_RANK", "NTILE"), INTEGER),
    **dict.fromkeys(("PERCENT_RANK", "CUME_DIST"), DOUBLE),
}
_SHIFTS = frozenset({"LAG", "LEAD", "FIRST_VALUE", "LAST_VALUE", "NTH_VALUE"})
WINDOW_FUNCTIONS = frozenset({*_RANKS, *_SHIFTS})


def compile_aggregate(node: exp.Expr, scope: Scope) -> Fragment:
    """Returns an aggregate call of a query block. Raises: MySQLError (1111, 1582)."""
    if not scope.aggregates_allowed:
        raise Mistake.GROUP_FUNCTION()
    name = _function_name(node)
    mark, select_list = len(scope.bare), scope.select_list
    scope.aggregates_allowed, scope.select_list = False, {}
    value = _rounded(*_call(name, node, scope))
    scope.aggregates_allowed, scope.select_list = True, select_list
    del scope.bare[mark:]
    scope.num_aggregates += name != "ANY_VALUE"
    return value


handles(exp.GroupConcat)(compile_aggregate)


def _function_name(node: exp.Expr) -> str:
    return "GROUP_CONCAT" if isinstance(node, exp.GroupConcat) else name_of(node).upper()


def _rounded(sql: str, kind: SqlType, is_sum: bool) -> Fragment:
    """Rounds a sum of decimals, whose floats add up to nearly the decimal."""
    if is_sum and kind.kind is Kind.DECIMAL and kind.scale and kind.is_exact:
        return Fragment(f"round({sql}, {kind.scale})", kind)
    return Fragment(sql, kind)


def _call(name: str, node: exp.Expr, scope: Scope) -> tuple[str, SqlType, bool]:
    """Returns (SQL, type, whether it is a sum)."""
    if name == "GROUP_CONCAT":
        return _group_concat(node, scope), TEXT, False
    arguments = node.expressions
    distinct = ""
    if arguments and isinstance(arguments[0], exp.Distinct):
        arguments, distinct = arguments[0].expressions, "DISTINCT "
    if name == "COUNT" and len(arguments) == 1 and isinstance(arguments[0], exp.Star):
        return "count(*)", INTEGER, False
    if not arguments or (len(arguments) > 1 and not (name == "COUNT" and distinct)):
        raise Misplaced(f"{name})")
    values = [compile_expression(argument, scope) for argument in arguments]
    value = values[0]
    if name == "COUNT":
        key = f"my_row_key({', '.join(v.sql for v in values)})"
        inner = key if len(values) > 1 else collated(value)
        return f"count({distinct}{inner})", INTEGER, False
    if name in ("MIN", "MAX"):
        return f"{name.lower()}({collated(value)})", value.type, False
    if name == "ANY_VALUE":
        return value.sql, value.type, False
    number = to_number(value)
    if name in _SPREADS:
        kind = INTEGER if name.startswith("BIT") else DOUBLE
        return f"{_SPREADS[name]}({distinct}{number.sql})", kind, False
    return f"{name.lower()}({distinct}{number.sql})", _sum_type(name, number.type), name == "SUM"


def _sum_type(name: str, kind: SqlType) -> SqlType:
    if kind.kind not in (Kind.INTEGER, Kind.DECIMAL, Kind.NULL):
        return DOUBLE
    if name == "SUM":
        return SqlType(Kind.DECIMAL, kind.scale, is_exact=kind.is_exact)
    return SqlType(Kind.DECIMAL, min(kind.scale + DIVISION_SCALE, MAX_SCALE), is_exact=False)


def _group_concat(node: exp.Expr, scope: Scope) -> str:
    value, order = node.this, []
    if isinstance(value, exp.Order):
        value, order = value.this, value.expressions
    is_distinct = isinstance(value, exp.Distinct)
    if is_distinct:
        parts = value.expressions
        value = parts[0] if len(parts) == 1 else exp.Concat(expressions=parts)
    text = to_text(compile_expression(value, scope)).sql
    keys = [compile_expression(term.this, scope).sql for term in order]
    directions = "".join("d" if term.args.get("desc") else "a" for term in order)
    separator = node.args.get("separator")
    arguments = [
        str(int(is_distinct)),
        quote_text(separator.name if separator else ","),
        quote_text(directions),
        text,
        *keys,
    ]
    return f"my_group_concat({', '.join(arguments)})"


@handles(exp.Window)
def _window(node: exp.Expr, scope: Scope) -> Fragment:
    call = node.this
    name = _function_name(call)
    if name not in AGGREGATES and name not in WINDOW_FUNCTIONS and name != "GROUP_CONCAT":
        raise Misplaced(f"OVER {node.sql('mysql')}")
    if not scope.windows_allowed:
        raise Mistake.WINDOW_MISUSE(name.lower())
    if name in WINDOW_FUNCTIONS:
        sql, kind, is_sum = (*_window_call(name, call, scope), False)
    else:
        sql, kind, is_sum = _call(name, call, scope)
    alias = node.args.get("alias")
    if alias is not None and not node.args.get("partition_by") and not node.args.get("order"):
        if name_of(alias).lower() not in scope.windows:
            raise Mistake.UNKNOWN_WINDOW(name_of(alias))
        return _rounded(f"{sql} OVER {quote_name(name_of(alias).lower())}", kind, is_sum)
    return _rounded(f"{sql} OVER ({window_definition(node, scope)})", kind, is_sum)


def _window_call(name: str, node: exp.Expr, scope: Scope) -> tuple[str, SqlType]:
    values = [compile_expression(argument, scope) for argument in node.expressions]
    sql = f"{name.lower()}({', '.join(value.sql for value in values)})"
    if name in _RANKS:
        return sql, _RANKS[name]
    if not values:
        raise Mistake.ARGUMENTS(name)
    return sql, values[0].type


def window_definition(node: exp.Expr, scope: Scope) -> str:
    """Returns what stands between the parentheses of OVER or WINDOW."""
    parts = []
    partition = node.args.get("partition_by")
    if partition:
        terms = (collated(compile_expression(term, scope)) for term in partition)
        parts.append(f"PARTITION BY {', '.join(terms)}")
    parts.append(compile_order(node.args.get("order"), scope).lstrip())
    spec = node.args.get("spec")
    if spec:
        parts.append(_frame(spec))
    return " ".join(filter(None, parts))


def _frame(spec: exp.Expr) -> str:
    bounds = []
    for end in ("start", "end"):
        bound = spec.args.get(end)
        if bound is None:
            continue
        text = bound if isinstance(bound, str) else str(int(bound.name))
        bounds.append(f"{text} {spec.args.get(f'{end}_side') or ''}".strip())
    frame = f"BETWEEN {' AND '.join(bounds)}" if len(bounds) == 2 else bounds[0]
    return f"{spec.args['kind']} {frame}"


def compile_windows(node: exp.Expr, scope: Scope) -> str:
    """Returns the WINDOW clause of a SELECT."""
    windows = node.args.get("windows") or []
    scope.aggregates_allowed = True
    terms = [
        f"{quote_name(name_of(window.this).lower())} AS ({window_definition(window, scope)})"
        for window in windows
    ]
    scope.aggregates_allowed = False
    return f" WINDOW {', '.join(terms)}" if terms else ""


def window_names(node: exp.Expr) -> set[str]:
    """Returns the names that the WINDOW clause of a SELECT defines."""
    return {name_of(window.this).lower() for window in node.args.get("windows") or []}
