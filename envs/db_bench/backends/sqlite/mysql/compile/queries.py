"""Queries: FROM, common table expressions, UNION, and queries within expressions."""

from dataclasses import replace

from agentpeft.envs.db_bench.backends.sqlite.mysql import types
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.calls import direction
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.expressions import compare, is_in
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import (
    CompiledQuery,
    Fragment,
    OutputColumn,
    Scope,
    Source,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.select import (
    compile_limit,
    compile_select,
    order_term,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.values import (
    MAX_CHARS,
    align,
    collated,
    compile_condition,
    compile_expression,
    convert,
    handles,
    kept,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse import nodes
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Kind, TableSchema, quote_name

INNER = quote_name(f"{types.INTERNAL}q")
"""A common table expression of ours; within its own query the name is another one's or none."""

MAX_ROWS = 200
"""Most rows of values in a list: each is a level of SQLite's tree."""


def compile_query(node: nodes.Query, parent: Scope, *, is_derived: bool = False) -> CompiledQuery:
    """Translates a query. Raises: MySQLError.

    `is_derived`: its result is kept as a table, with names and rounded decimals.
    """
    scope = parent.make_inner(is_derived=is_derived)
    prefix = _compile_common_tables(node.common_tables, scope)
    if isinstance(node.body, nodes.Select):
        from_sql = compile_joins(node.body.sources, scope) if node.body.sources else ""
        query = compile_select(node.body, node.tail, scope, from_sql)
    elif isinstance(node.body, nodes.Union):
        query = _compile_union(node.body, node.tail, scope)
    else:
        query = compile_query(node.body, scope, is_derived=True)
        if node.tail != nodes.Tail():
            sql = f"SELECT * FROM ({query.sql}){_compile_tail(node.tail, query.columns)}"
            is_limited = node.tail.limit is not None
            query = query._replace(sql=sql, is_limited=is_limited, has_tail=True)
    return query._replace(sql=prefix + query.sql)


def _compile_common_tables(tables: tuple[nodes.CommonTable, ...], scope: Scope) -> str:
    parts = []
    for name, names, node in tables:
        columns = compile_query(node, scope, is_derived=True)
        renamed = _renamed(columns.columns, names)
        scope.common_tables[name.lower()] = renamed
        listed = ", ".join(quote_name(column.name) for column in renamed)
        parts.append(f"{quote_name(name)}({listed}) AS ({columns.sql})")
    return f"WITH {', '.join(parts)} " if parts else ""


def _renamed(columns: list[OutputColumn], names: tuple[str, ...]) -> list[OutputColumn]:
    if not names:
        return columns
    if len(names) != len(columns):
        raise Mistake.VIEW_COLUMNS()
    return [column._replace(name=name) for column, name in zip(columns, names, strict=True)]


def _compile_tail(tail: nodes.Tail, columns: list[OutputColumn]) -> str:
    """Returns ORDER BY and LIMIT after a UNION: names and positions only."""
    projections = [(c.name, Fragment(quote_name(c.name), c.type, c.is_collated)) for c in columns]
    terms = []
    for term, is_descending in tail.order:
        sql = order_term(term, projections)
        if sql is None:
            if not isinstance(term, nodes.ColumnName):
                raise Mistake.NOT_SUPPORTED("an expression in ORDER BY of a UNION")
            raise Mistake.UNKNOWN_COLUMN(term.name, "order clause")
        terms.append(sql + direction(is_descending))
    order = f" ORDER BY {', '.join(terms)}" if terms else ""
    return order + compile_limit(tail)


def _compile_union(node: nodes.Union, tail: nodes.Tail, scope: Scope) -> CompiledQuery:
    left = compile_query(node.left, scope, is_derived=True)
    right = compile_query(node.right, scope, is_derived=True)
    if len(left.columns) != len(right.columns):
        raise Mistake.UNION_COLUMNS()
    columns = []
    for first, second in zip(left.columns, right.columns, strict=True):
        kind = replace(types.merge_types((first.type, second.type)), is_exact=True)
        columns.append(first._replace(type=kind))
    # SQLite's UNION gives the last of 'a' and 'A', MySQL's the first.
    word = "UNION ALL" if node.operator == "UNION" else node.operator
    sql = f"{_member(left, columns)} {word} {_member(right, columns)}"
    if word == "UNION ALL" and not node.is_all:
        sql = f"SELECT DISTINCT * FROM ({sql})"
    sql = f"SELECT * FROM ({sql}){_compile_tail(tail, columns)}" if tail != nodes.Tail() else sql
    return CompiledQuery(sql, columns, False, tail.limit is not None, tail != nodes.Tail())


def _member(query: CompiledQuery, columns: list[OutputColumn]) -> str:
    """Returns a member of a UNION with values of the common types."""
    values = []
    for own, column in zip(query.columns, columns, strict=True):
        value = Fragment(quote_name(own.name), own.type, own.is_collated)
        if own.type.kind is Kind.DECIMAL and not own.type.is_exact:
            value = value._replace(type=replace(own.type, scale=column.type.scale))
        values.append(convert(kept(value), column.type))
    listed = (
        f"{collated(value)} AS {quote_name(column.name)}"
        for value, column in zip(values, columns, strict=True)
    )
    return f"SELECT {', '.join(listed)} FROM ({query.sql})"


def compile_joins(joins: tuple[nodes.Join, ...], scope: Scope) -> str:
    """Returns the tables of FROM; adds them to the scope. Raises: MySQLError."""
    sql = ""
    for source, side, condition in joins:
        if side == ",":
            scope.visible_from = len(scope.sources)  # ON sees only what follows a comma
        num_before = len(scope.sources)
        table = _compile_source(source, scope)
        on = ""
        if condition is not None:
            scope.clause = "on clause"
            on = f" ON {compile_condition(condition, scope)}"
            scope.bare.clear()
        if side == "RIGHT":
            sql = f"{table} LEFT JOIN {sql if num_before == 1 else f'({sql})'}{on}"
        elif sql:
            sql = f"{sql} {'LEFT ' if side == 'LEFT' else ''}JOIN {table}{on}"
        else:
            sql = table
    scope.visible_from = 0
    return sql


def _compile_source(node: nodes.TableName | nodes.Derived, scope: Scope) -> str:
    if isinstance(node, nodes.Derived):
        outer = Scope(scope.schema, scope.parent, common_tables=scope.common_tables)
        query = compile_query(node.query, outer, is_derived=True)  # it may read a changed table
        scope.add(Source(node.alias, query.columns))
        return f"({query.sql}) AS {quote_name(node.alias)}"
    columns = None if node.database else scope.find_common_table(node.name)
    if columns is not None:
        scope.add(Source(node.alias, columns))
        return f"{quote_name(node.name)} AS {quote_name(node.alias)}"
    table = find_table(node, scope.schema)
    if scope.target == node.name and scope.parent is not None:
        raise Mistake.UPDATE_TARGET(node.name)
    columns = [OutputColumn(column.name, column.type) for column in table.columns]
    scope.add(Source(node.alias, columns, scope.schema.name))
    return f"main.{quote_name(table.name)} AS {quote_name(node.alias)}"  # and no CTE of that name


def find_table(node: nodes.TableName, schema: types.Schema) -> TableSchema:
    """Returns the table that a node names. Raises: MySQLError (1142, 1146, 1235)."""
    if node.database.lower() == "information_schema":
        raise Mistake.NOT_SUPPORTED("information_schema")
    return schema.table(table_name(node, schema, "SELECT"))


def table_name(node: nodes.TableName, schema: types.Schema, command: str) -> str:
    """Returns the name of a table, which `command` is for. Raises: MySQLError (1142)."""
    if (node.database or schema.name) != schema.name:
        raise Mistake.COMMAND_DENIED(command, node.name)
    return node.name


@handles(nodes.Query)
def _scalar_subquery(node: nodes.Query, scope: Scope) -> Fragment:
    """A query as a value. SQLite would take the first of several rows; MySQL raises error 1242."""
    query = compile_query(node, scope)
    if len(query.columns) != 1:
        raise Mistake.OPERAND(1)
    kind = query.columns[0].type
    if query.is_single_row:
        return Fragment(f"({query.sql})", kind)
    return Fragment(
        f'(WITH {INNER}("c") AS ({query.sql}) SELECT my_single_row(count(*), max("c")) '
        f'FROM (SELECT "c" FROM {INNER} LIMIT 2))',
        kind,
    )


@handles("EXISTS")
def _exists(node: nodes.Operator, scope: Scope) -> Fragment:
    (query,) = node.operands
    assert isinstance(query, nodes.Query)  # noqa: S101 (the parser makes no other)
    return Fragment(f"EXISTS ({compile_query(query, scope).sql})", types.INTEGER)


@handles("=", "<>", ">", ">=", "<", "<=", "<=>")
def _comparison(node: nodes.Operator, scope: Scope) -> Fragment:
    first, second = node.operands
    if isinstance(first, nodes.Query) and _is_row(second):
        first, second = second, first
    if not _is_row(first) or not isinstance(second, nodes.Query):
        left, right = _row(first, scope), _row(second, scope)
        return Fragment(_compare_rows(left, node.operator, right), types.INTEGER)
    left = _row(first, scope)
    _check_row_operator(node.operator)
    query = compile_query(second, scope)
    values, columns, listed = _aligned(left, query)
    row = f"my_single_row(count(*), max({columns[0]}))"
    chosen = ", ".join([row, *(f"max({column})" for column in columns[1:])])
    operator = "IS" if node.operator == "<=>" else node.operator
    return Fragment(
        f"(({', '.join(values)}) {operator} (WITH {INNER}({listed}) AS ({query.sql}) "
        f"SELECT {chosen} FROM (SELECT * FROM {INNER} LIMIT 2)))",
        types.INTEGER,
    )


def _is_row(node: nodes.Expression) -> bool:
    return isinstance(node, nodes.Operator) and node.operator == "ROW"


def _row(node: nodes.Expression, scope: Scope) -> list[Fragment]:
    parts = node.operands if isinstance(node, nodes.Operator) and _is_row(node) else (node,)
    return [compile_expression(part, scope) for part in parts]


def _check_row_operator(operator: str) -> None:
    if operator not in ("=", "<>", "<=>"):
        raise Mistake.NOT_SUPPORTED(f"rows compared by {operator}")


def _compare_rows(left: list[Fragment], operator: str, right: list[Fragment]) -> str:
    if len(left) != len(right):
        raise Mistake.OPERAND(len(left))
    if len(left) == 1:
        return compare(left[0], operator, right[0])
    _check_row_operator(operator)
    equal = "<=>" if operator == "<=>" else "="
    tests = (compare(*pair) for pair in zip(left, [equal] * len(left), right, strict=True))
    return f"({'NOT ' if operator == '<>' else ''}({' AND '.join(tests)}))"


def _aligned(left: list[Fragment], query: CompiledQuery) -> tuple[list[str], list[str], str]:
    """Returns values and a query's columns as they are compared, and the columns' names."""
    if len(left) != len(query.columns):
        raise Mistake.OPERAND(len(left))
    names = [f'"c{index}"' for index in range(len(left))]
    columns = [
        Fragment(name, column.type, True) for name, column in zip(names, query.columns, strict=True)
    ]
    pairs = [align(pair) for pair in zip(left, columns, strict=True)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs], ", ".join(names)


@handles("IN", "NOT IN")
def _in(node: nodes.Operator, scope: Scope) -> Fragment:
    first, *others = node.operands
    left = _row(first, scope)
    if not isinstance(others[0], nodes.Query) or len(others) > 1:
        return _in_list(left, [_row(value, scope) for value in others], node.operator)
    query = compile_query(others[0], scope)
    values, columns, listed = _aligned(left, query)
    if query.is_limited:
        raise Mistake.NOT_SUPPORTED("LIMIT & IN/ALL/ANY/SOME subquery")
    inner = query.sql
    if ", ".join(columns) != listed:
        chosen = ", ".join(columns)
        inner = f"WITH {INNER}({listed}) AS ({query.sql}) SELECT {chosen} FROM {INNER}"
    value = values[0] if len(values) == 1 else f"({', '.join(values)})"
    return Fragment(f"({value} {node.operator} ({inner}))", types.INTEGER)


def _in_list(left: list[Fragment], rows: list[list[Fragment]], operator: str) -> Fragment:
    for row in rows:
        if len(row) != len(left):
            raise Mistake.OPERAND(len(left))
    if len(left) == 1:
        return is_in(left[0], [value for (value,) in rows], operator)
    for value, *others in zip(left, *rows, strict=True):
        kinds = {other.type.kind for other in others} - {Kind.NULL}
        if value.type.kind is Kind.TEXT and kinds & types.NUMBERS and kinds - types.NUMBERS:
            raise Mistake.NOT_SUPPORTED("a text in a list of rows with numbers and texts")
    if len(rows) > MAX_ROWS or sum(len(value.sql) for value in left) * len(rows) > MAX_CHARS:
        raise Mistake.STACK()
    tests = " OR ".join(_compare_rows(left, "=", row) for row in rows)
    return Fragment(f"({'NOT ' if operator == 'NOT IN' else ''}({tests}))", types.INTEGER)
