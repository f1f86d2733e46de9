"""Queries: FROM, UNION, and queries within expressions."""

from dataclasses import replace

from agentpeft.envs.db_bench.backends.sqlite.mysql import types
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.expressions import is_in
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
    direction,
    order_term,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.values import (
    align,
    collated,
    compile_condition,
    compile_expression,
    handles,
    kept,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse import nodes
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Kind, TableSchema, quote_name

_INNER = quote_name(f"{types.INTERNAL}q")
"""A common table expression of ours; within its own query the name is another one's or none."""


def compile_query(node: nodes.Query, parent: Scope, *, is_derived: bool = False) -> CompiledQuery:
    """Translates a query. Raises: MySQLError.

    `is_derived`: its result is kept as a table, with names and rounded decimals.
    """
    scope = Scope(parent.schema, parent, parent.target, is_derived)
    if isinstance(node.body, nodes.Select):
        from_sql = _compile_joins(node.body.sources, scope) if node.body.sources else ""
        return compile_select(node.body, node.tail, scope, from_sql)
    if isinstance(node.body, nodes.Union):
        query = _compile_union(node.body, scope)
    else:
        query = compile_query(node.body, scope, is_derived=True)
    if node.tail == nodes.Tail():
        return query
    sql = f"SELECT * FROM ({query.sql}){_compile_tail(node.tail, query.columns)}"
    return query._replace(sql=sql, is_limited=node.tail.limit is not None)


def _compile_tail(tail: nodes.Tail, columns: list[OutputColumn]) -> str:
    """Returns ORDER BY and LIMIT after a UNION: names only."""
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


def _compile_union(node: nodes.Union, scope: Scope) -> CompiledQuery:
    left = compile_query(node.left, scope, is_derived=True)
    right = compile_query(node.right, scope, is_derived=True)
    if len(left.columns) != len(right.columns):
        raise Mistake.UNION_COLUMNS()
    columns = []
    for first, second in zip(left.columns, right.columns, strict=True):
        kind = replace(types.merge_types((first.type, second.type)), is_exact=True)
        columns.append(first._replace(type=kind))
    # SQLite's UNION gives the last of 'a' and 'A', MySQL's the first.
    sql = f"{_member(left, columns)} UNION ALL {_member(right, columns)}"
    return CompiledQuery(sql if node.is_all else f"SELECT DISTINCT * FROM ({sql})", columns)


def _member(query: CompiledQuery, columns: list[OutputColumn]) -> str:
    """Returns a member of a UNION with values of the common types."""
    values = []
    for own, column in zip(query.columns, columns, strict=True):
        value = Fragment(quote_name(own.name), own.type, own.is_collated)
        if own.type.kind is Kind.DECIMAL and not own.type.is_exact:
            value = value._replace(type=replace(own.type, scale=column.type.scale))
        values.append(f"{collated(kept(value))} AS {quote_name(column.name)}")
    return f"SELECT {', '.join(values)} FROM ({query.sql})"


def _compile_joins(joins: tuple[nodes.Join, ...], scope: Scope) -> str:
    """Returns the tables of FROM; adds them to the scope. Raises: MySQLError."""
    sql = ""
    for source, is_left, condition in joins:
        table = _compile_source(source, scope)
        if sql:
            sql += f" {'LEFT ' if is_left else ''}JOIN "
        sql += table
        if condition is not None:
            scope.clause = "on clause"
            sql += f" ON {compile_condition(condition, scope)}"
            scope.bare.clear()
    return sql


def _compile_source(node: nodes.TableName | nodes.Derived, scope: Scope) -> str:
    if isinstance(node, nodes.Derived):
        query = compile_query(node.query, Scope(scope.schema, scope.parent), is_derived=True)
        scope.add(Source(node.alias, query.columns))
        return f"({query.sql}) AS {quote_name(node.alias)}"
    return add_table(node, scope)


def add_table(node: nodes.TableName, scope: Scope) -> str:
    """Returns a table as FROM names it; adds it to the scope. Raises: MySQLError."""
    table = find_table(node, scope.schema)
    if scope.target == node.name:
        raise Mistake.UPDATE_TARGET(node.name)
    columns = [OutputColumn(column.name, column.type) for column in table.columns]
    scope.add(Source(node.alias, columns, scope.schema.name))
    return f"main.{quote_name(table.name)} AS {quote_name(node.alias)}"


def find_table(node: nodes.TableName, schema: types.Schema, command: str = "SELECT") -> TableSchema:
    """Returns the table that a node names. Raises: MySQLError (1142, 1146, 1235)."""
    check_database(node, schema, command)
    return schema.table(node.name)


def check_database(node: nodes.TableName, schema: types.Schema, command: str) -> None:
    """Raises: MySQLError (1142, 1235) for a table of another database."""
    if node.database.lower() == "information_schema":
        raise Mistake.NOT_SUPPORTED("information_schema")
    if (node.database or schema.name) != schema.name:
        raise Mistake.COMMAND_DENIED(command, node.name)


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
        f'(WITH {_INNER}("c") AS ({query.sql}) SELECT my_single_row(count(*), max("c")) '
        f'FROM (SELECT "c" FROM {_INNER} LIMIT 2))',
        kind,
    )


@handles("EXISTS")
def _exists(node: nodes.Operator, scope: Scope) -> Fragment:
    (query,) = node.operands
    assert isinstance(query, nodes.Query)  # noqa: S101 (the parser makes no other)
    return Fragment(f"EXISTS ({compile_query(query, scope).sql})", types.INTEGER)


@handles("IN", "NOT IN")
def _in(node: nodes.Operator, scope: Scope) -> Fragment:
    first, *others = node.operands
    left = compile_expression(first, scope)
    if not isinstance(others[0], nodes.Query) or len(others) > 1:
        values = [compile_expression(value, scope) for value in others]
        return is_in(left, values, node.operator)
    query = compile_query(others[0], scope)
    if len(query.columns) != 1:
        raise Mistake.OPERAND(1)
    if query.is_limited:
        raise Mistake.NOT_SUPPORTED("LIMIT & IN/ALL/ANY/SOME subquery")
    value, column = align([left, Fragment("", query.columns[0].type, True)])
    if column:
        raise Mistake.NOT_SUPPORTED("IN of a query whose column has another type")
    return Fragment(f"({value} {node.operator} ({query.sql}))", types.INTEGER)
