"""INSERT, UPDATE and DELETE."""

from collections.abc import Iterable, Sequence

from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.calls import compile_order
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.queries import (
    INNER,
    compile_joins,
    compile_query,
    find_table,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import Fragment, Scope
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.select import (
    compile_limit,
    find_position,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.values import (
    compile_condition,
    compile_expression,
    store,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake, MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse import nodes
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    INTERNAL,
    ColumnSchema,
    Schema,
    TableSchema,
    quote_name,
)


def compile_change(node: nodes.Insert | nodes.Change, schema: Schema) -> str:
    """Translates INSERT, UPDATE and DELETE. Raises: MySQLError."""
    if isinstance(node, nodes.Change):
        return _compile_change(node, schema)
    table = find_table(node.table, schema)
    columns = _insert_columns(node.columns, table)
    scope = Scope(schema, refused=table.by_name)
    if isinstance(node.source, nodes.Query):
        rows = _insert_query(node.source, columns, scope)
    else:
        rows = _insert_rows(node.source, columns, scope)
    names = ", ".join(quote_name(column.name) for column in columns)
    return f"INSERT INTO {quote_name(table.name)} ({names}) {rows}"


def _insert_columns(names: tuple[str, ...] | None, table: TableSchema) -> list[ColumnSchema]:
    if names is None:
        return list(table.columns)
    for name in names:
        if name.lower() not in table.by_name:
            raise Mistake.UNKNOWN_COLUMN(name, "field list")
    columns = [table.by_name[name.lower()] for name in names]
    for number in reversed(range(len(columns))):
        if columns[number] in columns[:number]:
            raise Mistake.FIELD_TWICE(columns[number].name)
    for column in table.columns:
        if column not in columns and not column.is_nullable and column.default == "NULL":
            raise Mistake.NO_DEFAULT(column.name)
    return columns


def _insert_rows(
    rows: Iterable[Sequence[nodes.Expression]], columns: list[ColumnSchema], scope: Scope
) -> str:
    lines = []
    for number, values in enumerate(rows, start=1):
        if len(values) != len(columns):
            raise Mistake.COLUMN_COUNT(number)
        cells = (
            _stored(value, column, number, scope)
            for value, column in zip(values, columns, strict=True)
        )
        lines.append(f"({', '.join(cells)})")
    return f"VALUES {', '.join(lines)}"


def _insert_query(node: nodes.Query, columns: list[ColumnSchema], scope: Scope) -> str:
    query = compile_query(node, Scope(scope.schema))
    if len(query.columns) != len(columns):
        raise Mistake.COLUMN_COUNT(1)
    names = [quote_name(f"{INTERNAL}{index}") for index in range(len(columns))]
    values = (
        store(Fragment(name, own.type), column)
        for name, own, column in zip(names, query.columns, columns, strict=True)
    )
    listed = ", ".join(names)
    rows = f"(WITH {INNER}({listed}) AS ({query.sql}) SELECT * FROM {INNER})"
    return f"SELECT {', '.join(values)} FROM {rows} WHERE 1"


def _stored(node: nodes.Expression, column: ColumnSchema, row: int, scope: Scope) -> str:
    """Returns the SQL of a value of INSERT or SET."""
    value = compile_expression(node, scope)
    try:
        return store(value, column, row)
    except MySQLError:  # is one only where there is a row to change
        return store(value._replace(literal=None), column, row)


def _compile_change(node: nodes.Change, schema: Schema) -> str:
    scope = Scope(schema, Scope(schema))
    names = [join.source for join in node.sources if isinstance(join.source, nodes.TableName)]
    if node.target and node.target not in [name.alias for name in names]:
        raise Mistake.UNKNOWN_TABLE_IN(node.target, "MULTI DELETE")
    tables = {name.alias: find_table(name, schema) for name in names}
    source = compile_joins(node.sources, scope)
    scope.clause = "field list"
    is_joined = len(node.sources) > 1 or bool(node.target)
    alias = node.target or next(iter(tables), "")
    sets: dict[str, str] = {}
    if node.assignments:
        alias = _changed_alias(node.assignments, tables, scope)
    table = tables[alias]
    scope.target = table.name
    if node.assignments:
        sets = _assignments(node.assignments, table, scope)
    scope.clause = "where clause"
    where = f" WHERE {compile_condition(node.where, scope)}" if node.where else ""
    if is_joined:
        if node.tail != nodes.Tail():
            raise Mistake.NOT_SUPPORTED("ORDER BY and LIMIT of a change with joins")
        return _change_joined(alias, table, sets, f"{source}{where}")
    where = _limited(node.tail, source, table, where, scope)
    terms = ", ".join(f"{name} = {value}" for name, value in sets.items())
    return f"UPDATE {source} SET {terms}{where}" if sets else f"DELETE FROM {source}{where}"


def _changed_alias(
    assignments: nodes.Assignments, tables: dict[str, TableSchema], scope: Scope
) -> str:
    """Returns the one table that SET changes. Raises: MySQLError (1054, 1235, 1288)."""
    changed: dict[str, None] = {}
    for node, _ in assignments:
        column = scope.find_column(node)
        owner = next(s for s in scope.sources if column in s.fragments.values())
        changed[owner.alias] = None
    if len(changed) > 1:
        raise Mistake.NOT_SUPPORTED("UPDATE of several tables")
    (alias,) = changed
    if alias not in tables:
        raise Mistake.NOT_UPDATABLE(alias)
    keys = {column.lower() for _, key in tables[alias].keys for column in key}
    if keys & {node.name.lower() for node, _ in assignments}:
        raise Mistake.NOT_SUPPORTED("UPDATE of a key")  # compared row by row, in an order
    return alias


def _change_joined(alias: str, table: TableSchema, sets: dict[str, str], joined: str) -> str:
    """A row that matches several times may be set to one value only."""
    name, row = quote_name(table.name), f"{quote_name(alias)}.{table.row_id}"
    if not sets:
        return f"DELETE FROM {name} WHERE {table.row_id} IN (SELECT {row} FROM {joined})"
    new = quote_name(f"{INTERNAL}s")
    values = ", ".join(f"{value} AS v{index}" for index, value in enumerate(sets.values()))
    singles = ", ".join(
        f"my_single_value(count(DISTINCT v{n}) + (count(v{n}) BETWEEN 1 AND count(*) - 1), "
        f"max(v{n})) AS v{n}"
        for n in range(len(sets))
    )
    terms = ", ".join(f"{column} = {new}.v{n}" for n, column in enumerate(sets))
    return (
        f"UPDATE {name} SET {terms} FROM (SELECT r, {singles} "
        f"FROM (SELECT {row} AS r, {values} FROM {joined}) GROUP BY r) AS {new} "
        f"WHERE {name}.{table.row_id} = {new}.r"
    )


def _assignments(
    assignments: nodes.Assignments, table: TableSchema, scope: Scope
) -> dict[str, str]:
    """Returns what SET sets; later ones see the values before them. Raises: MySQLError."""
    sets: dict[str, str] = {}
    changed: dict[str, Fragment] = {}
    for node, expression in assignments:
        scope.select_list = {}
        scope.find_column(node)
        scope.select_list = changed
        column = table.by_name[node.name.lower()]
        if quote_name(column.name) in sets and len(scope.sources) > 1:
            raise Mistake.NOT_SUPPORTED("UPDATE of a column twice")
        value = _stored(expression, column, 1, scope)
        sets[quote_name(column.name)] = value
        changed[node.name.lower()] = Fragment(f"({value})", column.type, True)
    scope.select_list = {}
    return sets


def _limited(tail: nodes.Tail, source: str, table: TableSchema, where: str, scope: Scope) -> str:
    """Returns WHERE for a change of the first rows in an order only."""
    if tail == nodes.Tail():
        return where
    scope.clause = "order clause"
    for term, _ in tail.order:
        find_position(term, 0, scope.clause)  # there are none
    order = f" {compile_order(tail.order, scope)}" if tail.order else ""
    row = table.row_id
    return f" WHERE {row} IN (SELECT {row} FROM {source}{where}{order}{compile_limit(tail)})"
