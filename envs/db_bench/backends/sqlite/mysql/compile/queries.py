"""Query blocks: SELECT, UNION, common table expressions and derived tables."""

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.coercion import collated, convert
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.expressions import (
    compile_expression,
    direction,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import (
    Fragment,
    OutputColumn,
    Query,
    Scope,
    name_of,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.select import (
    compile_limit,
    compile_select,
    order_term,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Kind, merge_types, quote_name

_SET_OPERATIONS: dict[type[exp.Expr], str] = {
    exp.Union: "UNION",
    exp.Intersect: "INTERSECT",
    exp.Except: "EXCEPT",
}


def compile_query(node: exp.Expr, parent: Scope, is_derived: bool) -> Query:
    """Translates a SELECT, a set operation or one in parentheses. Raises: MySQLError.

    `is_derived`: its result is kept as a table, with names and rounded decimals.
    """
    scope = Scope(parent.statement, parent, is_derived=is_derived)
    prefix = _compile_ctes(node, scope)
    if isinstance(node, exp.Subquery):
        query = compile_query(node.this, scope, True)
        if node.args.get("order") or node.args.get("limit"):
            query.sql = f"SELECT * FROM ({query.sql}){_tail(node, query.columns, scope)}"
            query.is_limited = node.args.get("limit") is not None
    elif type(node) in _SET_OPERATIONS:
        query = _compile_union(node, scope)
    elif isinstance(node, exp.Select):
        query = compile_select(node, scope)
    elif isinstance(node, exp.Values):
        query = _compile_values(node, scope)
    else:
        raise Mistake.NOT_SUPPORTED(type(node).__name__.upper())
    query.sql = prefix + query.sql
    return query


def _compile_ctes(node: exp.Expr, scope: Scope) -> str:
    with_ = node.args.get("with_")
    if with_ is None:
        return ""
    is_recursive = bool(with_.args.get("recursive"))
    parts = []
    for cte in with_.expressions:
        name = name_of(cte.args["alias"].this)
        written = [name_of(column) for column in cte.args["alias"].args.get("columns") or []]
        if is_recursive and isinstance(cte.this, exp.Union):
            anchor = compile_query(cte.this.this.copy(), scope, True)
            scope.ctes[name.lower()] = _renamed(anchor.columns, written)
        query = compile_query(cte.this, scope, True)
        columns = _renamed(query.columns, written)
        scope.ctes[name.lower()] = columns
        names = ", ".join(quote_name(column.name) for column in columns)
        parts.append(f"{quote_name(name)}({names}) AS ({query.sql})")
    return f"WITH {'RECURSIVE ' if is_recursive else ''}{', '.join(parts)} "


def _renamed(columns: list[OutputColumn], names: list[str]) -> list[OutputColumn]:
    if not names:
        return columns
    if len(names) != len(columns):
        raise Mistake.VIEW_COLUMNS()
    return [column._replace(name=name) for column, name in zip(columns, names, strict=True)]


def _tail(node: exp.Expr, columns: list[OutputColumn], scope: Scope) -> str:
    """Returns ORDER BY and LIMIT after a set operation: names and positions only."""
    projections = [(c.name, Fragment(quote_name(c.name), c.type, c.is_collated)) for c in columns]
    names = {column.name.lower(): index for index, column in reversed(list(enumerate(columns)))}
    terms = []
    for ordered in node.args["order"].expressions if node.args.get("order") else ():
        term = order_term(ordered.this, projections, names)
        if term is None:
            name = name_of(ordered.this.this) if isinstance(ordered.this, exp.Column) else "?"
            raise Mistake.UNKNOWN_COLUMN(name, "order clause")
        terms.append(term + direction(ordered))
    order = f" ORDER BY {', '.join(terms)}" if terms else ""
    return order + compile_limit(node)


def _compile_union(node: exp.Expr, scope: Scope) -> Query:
    word = _SET_OPERATIONS[type(node)] + ("" if node.args.get("distinct") else " ALL")
    left = compile_query(node.this, scope, True)
    right = compile_query(node.expression, scope, True)
    if len(left.columns) != len(right.columns):
        raise Mistake.UNION_COLUMNS()
    types = [
        merge_types((a.type, b.type)) for a, b in zip(left.columns, right.columns, strict=True)
    ]
    columns = [column._replace(type=kind) for column, kind in zip(left.columns, types, strict=True)]
    first = _member(left, columns, isinstance(node.this, exp.Select))
    if type(node.this) in _SET_OPERATIONS and not node.this.args.get("limit"):
        first = _member(left, columns, not node.this.args.get("order"))
    second = _member(right, columns, isinstance(node.expression, exp.Select))
    sql = f"{first} {word} {second}"
    if (
        word == "UNION"
        and not _is_recursive(node)
        and any(c.type.kind is Kind.TEXT for c in columns)
    ):
        sql = f"SELECT DISTINCT * FROM ({first} UNION ALL {second})"  # of 'a' and 'A', the first
    sql += _tail(node, columns, scope)
    return Query(sql, columns, is_limited=node.args.get("limit") is not None)


def _is_recursive(node: exp.Expr) -> bool:
    with_ = node.parent.parent if isinstance(node.parent, exp.CTE) else None
    return with_ is not None and bool(with_.args.get("recursive"))


def _member(query: Query, columns: list[OutputColumn], is_plain: bool) -> str:
    """Returns a member of a set operation with values of the common types."""
    converted = [
        convert(Fragment(quote_name(own.name), own.type, own.is_collated), column.type)
        for own, column in zip(query.columns, columns, strict=True)
    ]
    if all(
        value.sql == quote_name(own.name)
        for value, own in zip(converted, query.columns, strict=True)
    ):
        has_tail = query.is_limited or " ORDER BY " in query.sql
        return query.sql if is_plain and not has_tail else f"SELECT * FROM ({query.sql})"
    return f"SELECT {', '.join(collated(value) for value in converted)} FROM ({query.sql})"


def row_values(row: exp.Expr) -> list[exp.Expr]:
    """Returns the values of `(…)` or `ROW(…)` after VALUES."""
    values = list(row.expressions if isinstance(row, exp.Tuple) else [row])
    is_call = len(values) == 1 and isinstance(values[0], exp.Anonymous)
    return list(values[0].expressions) if is_call and values[0].name.upper() == "ROW" else values


def _compile_values(node: exp.Expr, scope: Scope) -> Query:
    rows = [
        [compile_expression(value, scope) for value in row_values(row)] for row in node.expressions
    ]
    columns = [
        OutputColumn(f"column_{index}", merge_types(value.type for value in column))
        for index, column in enumerate(zip(*rows, strict=True))
    ]
    text = ", ".join(f"({', '.join(value.sql for value in row)})" for row in rows)
    return Query(f"VALUES {text}", columns)
