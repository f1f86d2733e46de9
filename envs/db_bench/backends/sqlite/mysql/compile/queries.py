"""Queries: FROM, common table expressions, set operations, and queries within expressions."""

from dataclasses import replace
from sys import getsizeof

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql import types
from agentpeft.envs.db_bench.backends.sqlite.mysql.byte_cache import ByteCache
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.calls import direction
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.expressions import COMPARISONS, is_in
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import (
    Fragment,
    OutputColumn,
    Query,
    Scope,
    Source,
    name_of,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.select import (
    compile_limit,
    compile_select,
    order_term,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.values import (
    align,
    check_size,
    collated,
    compile_condition,
    compile_expression,
    convert,
    handles,
    rounded,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Kind, TableSchema, quote_name

INNER = quote_name(f"{types.INTERNAL}q")
"""A common table expression of ours; within its own query the name is another one's or none."""
_SET_OPERATIONS: dict[type[exp.Expr], str] = {
    exp.Union: "UNION",
    exp.Intersect: "INTERSECT",
    exp.Except: "EXCEPT",
}


def compile_query(node: exp.Expr, parent: Scope, *, is_derived: bool = False) -> Query:
    """Translates a SELECT, a set operation or one in parentheses. Raises: MySQLError.

    `is_derived`: its result is kept as a table, with names and rounded decimals.
    """
    scope = parent.make_inner(is_derived=is_derived)
    prefix = _compile_ctes(node, scope)
    if isinstance(node, exp.Subquery):
        query = compile_query(node.this, scope, is_derived=True)
        if node.args.get("order") or node.args.get("limit"):
            query.sql = f"SELECT * FROM ({query.sql}){_tail(node, query.columns)}"
            query.is_limited = node.args.get("limit") is not None
    elif type(node) in _SET_OPERATIONS:
        query = _compile_union(node, scope)
    elif isinstance(node, exp.Select):
        query = compile_select(node, scope, _compile_from(node, scope))
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
            anchor = compile_query(cte.this.this.copy(), scope, is_derived=True)
            scope.ctes[name.lower()] = _renamed(anchor.columns, written)
        query = compile_query(cte.this, scope, is_derived=True)
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


def _tail(node: exp.Expr, columns: list[OutputColumn]) -> str:
    """Returns ORDER BY and LIMIT after a set operation: names and positions only."""
    projections = [(c.name, Fragment(quote_name(c.name), c.type, c.is_collated)) for c in columns]
    names = {column.name.lower(): index for index, column in reversed(list(enumerate(columns)))}
    terms = []
    for ordered in node.args["order"].expressions if node.args.get("order") else ():
        term = order_term(ordered.this, projections, names)
        if term is None:
            if not isinstance(ordered.this, exp.Column):
                raise Mistake.NOT_SUPPORTED("an expression in ORDER BY of a UNION")
            raise Mistake.UNKNOWN_COLUMN(name_of(ordered.this.this), "order clause")
        terms.append(term + direction(ordered))
    order = f" ORDER BY {', '.join(terms)}" if terms else ""
    return order + compile_limit(node)


def _compile_union(node: exp.Expr, scope: Scope) -> Query:
    word = _SET_OPERATIONS[type(node)] + ("" if node.args.get("distinct") else " ALL")
    if word in ("INTERSECT ALL", "EXCEPT ALL"):
        raise Mistake.NOT_SUPPORTED(word)
    left = compile_query(node.this, scope, is_derived=True)
    right = compile_query(node.expression, scope, is_derived=True)
    if len(left.columns) != len(right.columns):
        raise Mistake.UNION_COLUMNS()
    kinds = [
        replace(types.merge_types((a.type, b.type)), is_exact=True)
        for a, b in zip(left.columns, right.columns, strict=True)
    ]
    columns = [column._replace(type=kind) for column, kind in zip(left.columns, kinds, strict=True)]
    first = _member(left, columns, is_plain=not isinstance(node.this, exp.Subquery))
    second = _member(right, columns, is_plain=isinstance(node.expression, exp.Select))
    if _is_recursive(node):
        _check_recursion(node.expression, left, right, second)
    sql = f"{first} {word} {second}"
    has_texts = any(column.type.kind is Kind.TEXT for column in columns)
    if word == "UNION" and has_texts and not _is_recursive(node):
        sql = f"SELECT DISTINCT * FROM ({first} UNION ALL {second})"  # of 'a' and 'A', the first
    sql += _tail(node, columns)
    return Query(sql, columns, is_limited=node.args.get("limit") is not None)


def _is_recursive(node: exp.Expr) -> bool:
    with_ = node.parent.parent if isinstance(node.parent, exp.CTE) else None
    return with_ is not None and bool(with_.args.get("recursive"))


def _check_recursion(node: exp.Expr, anchor: Query, query: Query, sql: str) -> None:
    """Refuses what the anchor's columns would not take as it is: their types alone count.

    Raises: MySQLError (1235).
    """
    is_same = sql == query.sql and len(node.expressions) == len(query.columns)
    for term, first, column in zip(node.expressions, anchor.columns, query.columns, strict=False):
        may_grow = column.type.kind is Kind.TEXT and not isinstance(term.unalias(), exp.Column)
        is_same &= first.type.kind is column.type.kind and first.type.scale == column.type.scale
        is_same &= not may_grow
    if not is_same:
        raise Mistake.NOT_SUPPORTED("a recursive query of other types than its anchor")


def _member(query: Query, columns: list[OutputColumn], *, is_plain: bool) -> str:
    """Returns a member of a set operation with values of the common types."""
    converted = []
    for own, column in zip(query.columns, columns, strict=True):
        value = Fragment(quote_name(own.name), own.type, own.is_collated)
        if own.type.kind is Kind.DECIMAL and not own.type.is_exact:
            value = value._replace(type=replace(own.type, scale=column.type.scale))
        converted.append(convert(rounded(value), column.type))
    if all(
        value.sql == quote_name(own.name)
        for value, own in zip(converted, query.columns, strict=True)
    ):
        has_tail = query.is_limited or " ORDER BY " in query.sql
        return query.sql if is_plain and not has_tail else f"SELECT * FROM ({query.sql})"
    listed = (
        f"{collated(value)} AS {quote_name(column.name)}"
        for value, column in zip(converted, columns, strict=True)
    )
    return f"SELECT {', '.join(listed)} FROM ({query.sql})"


def _compile_from(node: exp.Expr, scope: Scope) -> str:
    if not node.args.get("from_"):
        return ""
    first = node.args["from_"].this
    if isinstance(first, exp.Table) and first.name.upper() == "DUAL" and not node.args.get("joins"):
        return ""
    return compile_joins(first, node.args.get("joins") or [], scope)


def compile_joins(first: exp.Expr, joins: list[exp.Expr], scope: Scope) -> str:
    """Returns a table and the joins after it; adds them to the scope. Raises: MySQLError."""
    start = len(scope.sources)
    sql = _compile_source(first, scope)
    for join in joins:
        side, kind = join.text("side").upper(), join.text("kind").upper()
        if side == "FULL" or kind not in ("", "INNER", "CROSS", "OUTER"):
            raise Mistake.NOT_SUPPORTED(f"{side} {kind} JOIN".strip())
        if side and kind not in ("", "OUTER"):
            raise Misplaced(kind)
        if not (side or kind or join.args.get("on")):
            scope.visible_from = len(scope.sources)  # a comma: ON sees only what follows it
        is_one = len(scope.sources) - start == 1
        table = _compile_source(join.this, scope)
        condition = ""
        if join.args.get("on"):
            scope.clause = "on clause"
            condition = f" ON {compile_condition(join.args['on'], scope)}"
            scope.bare.clear()
        elif side:
            raise Mistake.SYNTAX("", 1)  # LEFT and RIGHT need a condition
        if side == "RIGHT":
            sql = f"{table} LEFT JOIN {sql if is_one else f'({sql})'}{condition}"
        else:
            sql = f"{sql} {'LEFT ' if side else ''}JOIN {table}{condition}"
    scope.visible_from = 0
    return sql


def _compile_source(node: exp.Expr, scope: Scope) -> str:
    if isinstance(node, exp.Table):
        joins = node.args.pop("joins", None)
        return f"({compile_joins(node, joins, scope)})" if joins else _compile_table(node, scope)
    if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table):
        return _compile_source(node.this, scope)
    alias = node.args.get("alias")
    if not isinstance(node, exp.Subquery):
        raise Mistake.NOT_SUPPORTED(type(node).__name__.upper())
    if alias is None:
        raise Mistake.DERIVED_ALIAS()
    if alias.args.get("columns"):
        raise Mistake.NOT_SUPPORTED("names of columns after a derived table's")
    outer = Scope(scope.schema, scope.parent, ctes=scope.ctes)  # it may read the changed table
    query = compile_query(node.this, outer, is_derived=True)
    name = name_of(alias.this)
    scope.add(Source(name, query.columns))
    return f"({query.sql}) AS {quote_name(name)}"


def _compile_table(node: exp.Expr, scope: Scope) -> str:
    name = name_of(node.this)
    alias = name_of(node.args["alias"].this) if node.args.get("alias") else name
    columns = scope.find_cte(name) if not node.text("db") else None
    if columns is not None:
        scope.add(Source(alias, columns))
        return f"{quote_name(name)} AS {quote_name(alias)}"
    table = find_table(node, scope)
    if scope.target == name and scope.parent is not None:
        raise Mistake.UPDATE_TARGET(name)
    scope.add(table_source(table, alias, scope.schema.name))
    return f"main.{quote_name(table.name)} AS {quote_name(alias)}"  # and no CTE of that name


def find_table(node: exp.Expr, scope: Scope) -> TableSchema:
    """Returns the table that a node names. Raises: MySQLError (1142, 1146, 1235)."""
    database = node.text("db").lower()
    if database == "information_schema":
        raise Mistake.NOT_SUPPORTED(database)
    return scope.schema.table(table_name(node, scope.schema, "SELECT"))


def table_name(node: exp.Expr, schema: types.Schema, command: str) -> str:
    """Returns the name of a table, which `command` is for. Raises: MySQLError (1142)."""
    name = name_of(node.this)
    if (node.text("db") or schema.name) != schema.name:
        raise Mistake.COMMAND_DENIED(command, name)
    return name


_SOURCES: ByteCache[tuple[TableSchema, str, str], Source] = ByteCache(16 * 1024**2)


def table_source(table: TableSchema, alias: str, database: str) -> Source:
    """Returns a table of the schema as a source, which no scope changes."""
    source = _SOURCES.find((table, alias, database))
    if source is None:
        columns = [OutputColumn(column.name, column.type) for column in table.columns]
        is_null = {column.name.lower(): column.is_nullable for column in table.columns}
        keys = [key for key in table.keys if not any(is_null[name.lower()] for name in key)]
        source = Source(alias, columns, keys, database)
        num_bytes = 2 * table.num_bytes + len(table.columns) * getsizeof(alias)
        _SOURCES.keep((table, alias, database), source, num_bytes)
    return source


def _compile_subquery(node: exp.Expr, scope: Scope, num_columns: int | None) -> Query:
    """Translates a query within an expression. Raises: MySQLError (1241)."""
    while isinstance(node, exp.Subquery) and not node.args.get("limit"):  # parentheses
        node = node.this
    query = compile_query(node, scope)
    if num_columns is not None and len(query.columns) != num_columns:
        raise Mistake.OPERAND(num_columns)
    return query


@handles(exp.Subquery, exp.Select)
def _scalar_subquery(node: exp.Expr, scope: Scope) -> Fragment:
    """A query as a value. SQLite would take the first of several rows; MySQL raises error 1242."""
    query = _compile_subquery(node, scope, 1)
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
    return Fragment(f"EXISTS ({_compile_subquery(node.this, scope, None).sql})", types.INTEGER)


@handles(exp.In)
def _in(node: exp.Expr, scope: Scope) -> Fragment:
    if isinstance(node.this, exp.Tuple):
        return _row_in(node, scope)
    left = compile_expression(node.this, scope)
    if node.args.get("query") is None:
        return is_in(left, [compile_expression(value, scope) for value in node.expressions])
    query = _compile_subquery(node.args["query"], scope, 1)
    if query.is_limited:
        raise Mistake.NOT_SUPPORTED("LIMIT & IN/ALL/ANY/SOME subquery")
    column = Fragment('"c"', query.columns[0].type, True)
    first, second = align([left, column])
    if second == '"c"':
        return Fragment(f"({first} IN ({query.sql}))", types.INTEGER)
    inner = f'WITH {INNER}("c") AS ({query.sql}) SELECT {second} FROM {INNER}'
    return Fragment(f"({first} IN ({inner}))", types.INTEGER)


def _row_in(node: exp.Expr, scope: Scope) -> Fragment:
    left = [compile_expression(value, scope) for value in node.this.expressions]
    if node.args.get("query") is not None:
        query = _compile_subquery(node.args["query"], scope, len(left))
        if any(a.type.kind is not b.type.kind for a, b in zip(left, query.columns, strict=True)):
            raise Mistake.NOT_SUPPORTED("a comparison of rows of several types")
        row = ", ".join(collated(value) for value in left)
        return Fragment(f"(({row}) IN ({query.sql}))", types.INTEGER)
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
    return Fragment(f"({' OR '.join(tests)})", types.INTEGER)


@handles(exp.Any, exp.All)
def _quantified(node: exp.Expr, scope: Scope) -> Fragment:
    """`x > ANY (SELECT …)` and `x > ALL (SELECT …)`, which SQLite lacks.

    ANY is true if one comparison is, ALL false if one is not. Otherwise a NULL among them makes
    either NULL; over no rows ANY is false and ALL true. `count(test)` counts what is not NULL.
    """
    comparison = node.parent
    if comparison is None or type(comparison) not in COMPARISONS or comparison.this is node:
        raise Mistake.NOT_SUPPORTED(type(node).__name__.upper())
    left = compile_expression(comparison.this, scope)
    query = _compile_subquery(node.this, scope, 1)
    if query.is_limited:
        raise Mistake.NOT_SUPPORTED("LIMIT & IN/ALL/ANY/SOME subquery")
    column = Fragment('"c"', query.columns[0].type, query.columns[0].is_collated)
    first, second = align([left, column])
    kinds = {left.type.kind, column.type.kind}
    if Kind.TEXT in kinds and len(kinds) > 1:
        raise Mistake.NOT_SUPPORTED("ANY and ALL of several types")
    test = f"({first} {COMPARISONS[type(comparison)]} {second})"
    if isinstance(node, exp.All):
        decided, default, chosen = f"min{test} = 0", "1", "0"
    else:
        decided, default, chosen = f"max{test} = 1", "0", "1"
    return Fragment(
        f'(WITH {INNER}("c") AS ({query.sql}) SELECT CASE WHEN {decided} THEN {chosen} '
        f"WHEN count(*) > count{test} THEN NULL ELSE {default} END FROM {INNER})",
        types.INTEGER,
    )
