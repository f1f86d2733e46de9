"""CREATE and DROP TABLE, SHOW and DESCRIBE: the schema, and how it changes."""

from collections.abc import Iterable, Sequence

from agentpeft.envs.db_bench.backends.sqlite.mysql import types
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.queries import find_table, table_name
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import (
    CompiledQuery,
    OutputColumn,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse import nodes
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    ColumnSchema,
    Schema,
    TableSchema,
    quote_name,
    quote_text,
)

_SYNONYMS = {
    **dict.fromkeys(("boolean", "bool"), "tinyint(1)"),
    **dict.fromkeys(("numeric", "dec", "fixed"), "decimal"),
    "integer": "int",
}
Definition = tuple[tuple[str, ...], Schema]
"""What a change of the schema does: SQLite's statements, and the schema after them."""


def compile_create(node: nodes.Create, schema: Schema) -> Definition:
    """Translates CREATE TABLE. Raises: MySQLError."""
    name = table_name(node.table, schema, "CREATE")
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
        columns[column.lower()] = ColumnSchema(column, declared, types.parse_type(declared))
    table = TableSchema(name, tuple(columns.values()))
    return (table.sqlite_ddl,), Schema(schema.name, (*schema.tables, table))


def compile_drop(command: nodes.PlainStatement, schema: Schema) -> Definition:
    """Translates DROP TABLE. Raises: MySQLError (1051)."""
    names = dict.fromkeys(table_name(table, schema, "DROP") for table in command.tables)
    unknown = [f"{schema.name}.{name}" for name in names if name not in schema.by_name]
    if unknown and command.words == "DROP":
        raise Mistake.UNKNOWN_TABLE(",".join(unknown))
    known = [name for name in names if name in schema.by_name]
    left = tuple(table for table in schema.tables if table.name not in known)
    return tuple(f"DROP TABLE {quote_name(name)}" for name in known), Schema(schema.name, left)


def _query(names: Sequence[str], rows: Iterable[Sequence[str | None]]) -> CompiledQuery:
    lines = (
        f"({', '.join('NULL' if cell is None else quote_text(cell) for cell in row)})"
        for row in rows
    )
    values = ", ".join(lines)
    columns = [OutputColumn(name, types.TEXT) for name in names]
    return CompiledQuery(f"VALUES {values}" if values else "SELECT NULL WHERE 0", columns)


def _declared(column: ColumnSchema) -> str:
    """Returns a column's type as MySQL 8 shows it."""
    name, bracket, sizes = column.declared.lower().replace(" ", "").partition("(")
    name = _SYNONYMS.get(name, name)
    if not bracket and name in ("decimal", "char"):
        return "decimal(10,0)" if name == "decimal" else "char(1)"
    return name + bracket + sizes


def describe(command: nodes.PlainStatement, schema: Schema) -> CompiledQuery:
    """Answers DESCRIBE. Raises: MySQLError (1146)."""
    table = find_table(command.tables[0], schema)
    rows = [(column.name, _declared(column), "YES", "", None, "") for column in table.columns]
    return _query(("Field", "Type", "Null", "Key", "Default", "Extra"), rows)


def show_tables(schema: Schema) -> CompiledQuery:
    """Answers SHOW TABLES."""
    return _query(("Tables",), [(name,) for name in sorted(schema.by_name)])
