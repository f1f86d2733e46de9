"""What changes tables, INSERT, UPDATE, DELETE, CREATE and DROP; and what shows them."""

from collections.abc import Iterable, Sequence

from agentpeft.envs.db_bench.backends.sqlite.mysql import types
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.expressions import compile_order
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.queries import (
    add_table,
    check_database,
    compile_limit,
    compile_query,
    find_position,
    find_table,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import (
    CompiledQuery,
    Fragment,
    OutputColumn,
    Scope,
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
    quote_text,
)


def compile_insert(node: nodes.Insert, schema: Schema) -> str:
    """Translates INSERT. Raises: MySQLError."""
    table = find_table(node.table, schema, "INSERT")
    columns = _insert_columns(node.columns, table)
    names = ", ".join(quote_name(column.name) for column in columns)
    start = f"INSERT INTO {quote_name(table.name)} ({names})"
    if isinstance(node.source, nodes.Query):
        return f"{start} {_query_to_insert(node.source, table, columns, schema)}"
    scope = Scope(schema, refused=table.by_name)
    lines = []
    for number, values in enumerate(node.source, start=1):
        if len(values) != len(columns):
            raise Mistake.COLUMN_COUNT(number)
        pairs = zip(values, columns, strict=True)
        lines.append(f"({', '.join(_stored(*pair, number, scope) for pair in pairs)})")
    return f"{start} VALUES {', '.join(lines)}"


def _query_to_insert(
    node: nodes.Query, table: TableSchema, columns: list[ColumnSchema], schema: Schema
) -> str:
    query = compile_query(node, Scope(schema))
    if len(query.columns) != len(columns):
        raise Mistake.COLUMN_COUNT(1)
    is_kept = f"main.{quote_name(table.name)} AS" in query.sql  # as a table, before it is inserted
    kinds = [column.type for column in query.columns]
    if is_kept and any(kind.kind is types.Kind.FLOAT or not kind.is_exact for kind in kinds):
        raise Mistake.NOT_SUPPORTED("INSERT of a FLOAT or a quotient of the table itself")
    pairs = zip(query.columns, columns, strict=True)
    values = (
        store(Fragment(f"c{index}", own.type), column) for index, (own, column) in enumerate(pairs)
    )
    return f"SELECT {', '.join(values)} FROM ({query.sql})"


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
    scope = Scope(schema)
    table = find_table(node.table, schema, "UPDATE" if node.assignments else "DELETE")
    source = add_table(node.table, table, scope)
    scope.target = table.name
    sets = _assignments(node.assignments, table, scope)
    scope.clause = "where clause"
    where = f" WHERE {compile_condition(node.where, scope)}" if node.where else ""
    if node.tail != nodes.Tail():
        scope.clause = "order clause"
        for term, _ in node.tail.order:
            find_position(term, 0, scope.clause)  # there are none
        order = compile_order(node.tail.order, scope)
        free = [name for name in ("rowid", "_rowid_", "oid") if name not in table.by_name]
        if not free:
            raise Mistake.NOT_SUPPORTED("columns rowid, _rowid_ and oid in one table")
        rows = f"SELECT {free[0]} FROM {source}{where}{order}{compile_limit(node.tail)}"
        where = f" WHERE {free[0]} IN ({rows})"
    return f"UPDATE {source} SET {sets}{where}" if sets else f"DELETE FROM {source}{where}"


def _assignments(assignments: nodes.Assignments, table: TableSchema, scope: Scope) -> str:
    """Returns what SET sets; later ones see the values before them. Raises: MySQLError."""
    sets: dict[str, str] = {}
    changed: dict[str, Fragment] = {}
    for node, expression in assignments:
        scope.select_list = {}
        scope.find_column(node)
        scope.select_list = changed
        column = table.by_name[node.name.lower()]
        value = _stored(expression, column, 1, scope)
        sets[quote_name(column.name)] = value
        changed[node.name.lower()] = Fragment(f"({value})", column.type)
    scope.select_list = {}
    return ", ".join(f"{name} = {value}" for name, value in sets.items())


_SYNONYMS = {
    **dict.fromkeys(("boolean", "bool"), "tinyint(1)"),
    **dict.fromkeys(("numeric", "dec", "fixed"), "decimal"),
    "integer": "int",
    "real": "double",
}
Definition = tuple[tuple[str, ...], Schema]
"""What a change of the schema does: SQLite's statements, and the schema after them."""


def compile_create(node: nodes.Create, schema: Schema) -> Definition:
    """Translates CREATE TABLE. Raises: MySQLError."""
    name = node.table.name
    check_database(node.table, schema, "CREATE")
    if name in schema.by_name and node.if_not_exists:
        return (), schema
    if not types.is_name(name) or name.lower().startswith("sqlite_"):
        raise Mistake.WRONG_TABLE_NAME(name)
    if any(table.name.lower() == name.lower() for table in schema.tables):
        raise Mistake.TABLE_EXISTS(name)  # as on a server with `lower_case_table_names`
    columns: dict[str, ColumnSchema] = {}
    for column, declared in node.columns:
        if not types.is_name(column):
            raise Mistake.WRONG_COLUMN_NAME(column)
        if column.lower() in columns:
            raise Mistake.DUPLICATE_COLUMN(column)
        kind = types.parse_type(declared)
        columns[column.lower()] = ColumnSchema(column, declared, kind)
    table = TableSchema(name, tuple(columns.values()))
    return (table.sqlite_ddl,), Schema(schema.name, (*schema.tables, table))


def compile_drop(node: nodes.PlainStatement, schema: Schema) -> Definition:
    """Translates DROP TABLE. Raises: MySQLError (1051)."""
    for table in node.tables:
        check_database(table, schema, "DROP")
    names = dict.fromkeys(table.name for table in node.tables)
    unknown = [f"{schema.name}.{name}" for name in names if name not in schema.by_name]
    if unknown and node.words == "DROP":
        raise Mistake.UNKNOWN_TABLE(",".join(unknown))
    known = [name for name in names if name in schema.by_name]
    left = tuple(table for table in schema.tables if table.name not in known)
    return tuple(f"DROP TABLE {quote_name(name)}" for name in known), Schema(schema.name, left)


def _query(rows: Iterable[Sequence[str | None]], num_columns: int = 1) -> CompiledQuery:
    lines = (
        f"({', '.join('NULL' if cell is None else quote_text(cell) for cell in row)})"
        for row in rows
    )
    values = ", ".join(lines)
    columns = [OutputColumn("", types.TEXT)] * num_columns
    return CompiledQuery(f"VALUES {values}" if values else "SELECT NULL WHERE 0", columns)


def _declared(column: ColumnSchema) -> str:
    name, bracket, sizes = column.declared.lower().replace(" ", "").partition("(")
    name = _SYNONYMS.get(name, name)
    if not bracket and name in ("decimal", "char"):
        return "decimal(10,0)" if name == "decimal" else "char(1)"
    return name + bracket + sizes


def describe(node: nodes.TableName, schema: Schema) -> CompiledQuery:
    """Answers DESCRIBE: no column has a key, a default or a rule. Raises: MySQLError (1146)."""
    columns = find_table(node, schema).columns
    if any(column.type.is_partial and "'" in column.declared for column in columns):
        raise Mistake.NOT_SUPPORTED("DESCRIBE of ENUM and SET")
    return _query([(c.name, _declared(c), "YES", "", None, "") for c in columns], 6)


def show_tables(schema: Schema) -> CompiledQuery:
    """Answers SHOW TABLES."""
    return _query((name,) for name in sorted(schema.by_name))
