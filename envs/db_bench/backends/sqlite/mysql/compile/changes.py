"""INSERT, UPDATE and DELETE."""

from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.queries import add_table, find_table
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import Scope
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.select import (
    compile_limit,
    direction,
    order_value,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.values import (
    compile_condition,
    compile_expression,
    store,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake, MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse import nodes
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    ColumnSchema,
    Schema,
    TableSchema,
    quote_name,
)


def compile_insert(node: nodes.Insert, schema: Schema) -> str:
    """Translates INSERT. Raises: MySQLError."""
    table = find_table(node.table, schema, "INSERT")
    columns = _insert_columns(node.columns, table)
    scope = Scope(schema, refused=table.by_name)
    lines = []
    for number, values in enumerate(node.rows, start=1):
        if len(values) != len(columns):
            raise Mistake.COLUMN_COUNT(number)
        pairs = zip(values, columns, strict=True)
        lines.append(f"({', '.join(_stored(*pair, number, scope) for pair in pairs)})")
    names = ", ".join(quote_name(column.name) for column in columns)
    return f"INSERT INTO {quote_name(table.name)} ({names}) VALUES {', '.join(lines)}"


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
    return columns


def _stored(node: nodes.Expression, column: ColumnSchema, row: int, scope: Scope) -> str:
    """Returns the SQL of a value of INSERT or SET."""
    value = compile_expression(node, scope)
    try:
        return store(value, column, row)
    except MySQLError:  # is one only where there is a row to change
        return store(value._replace(literal=None), column, row)


def compile_change(node: nodes.Change, schema: Schema) -> str:
    """Translates UPDATE and DELETE. Raises: MySQLError."""
    table = find_table(node.table, schema)
    scope = Scope(schema)
    source = add_table(node.table, scope)
    scope.target = table.name
    sets: dict[str, str] = {}
    scope.refused = changed = set[str]()  # those have the values that they were set to
    for target, expression in node.assignments:
        scope.find_column(target)
        column = table.by_name[target.name.lower()]
        sets[quote_name(column.name)] = _stored(expression, column, 1, scope)
        changed.add(column.name.lower())
    scope.refused = ()
    scope.clause = "where clause"
    where = f" WHERE {compile_condition(node.where, scope)}" if node.where else ""
    if node.tail != nodes.Tail():
        scope.clause = "order clause"
        terms = [
            order_value(compile_expression(term, scope)) + direction(is_descending)
            for term, is_descending in node.tail.order
        ]
        order = f" ORDER BY {', '.join(terms)}" if terms else ""
        rows = f"SELECT {table.row_id} FROM {source}{where}{order}{compile_limit(node.tail)}"
        where = f" WHERE {table.row_id} IN ({rows})"
    assignments = ", ".join(f"{name} = {value}" for name, value in sets.items())
    return f"UPDATE {source} SET {assignments}{where}" if sets else f"DELETE FROM {source}{where}"
