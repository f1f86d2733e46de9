"""CREATE and DROP TABLE, SHOW and DESCRIBE: the schema, and how it changes."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

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
_MAX_KEY_CHARS = 768
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
    table = _table(name, node)
    return (table.sqlite_ddl,), Schema(schema.name, (*schema.tables, table))


def _table(name: str, node: nodes.Create) -> TableSchema:
    columns: dict[str, ColumnSchema] = {}
    for column, declared, is_nullable in node.columns:
        if not types.is_name(column):
            raise Mistake.WRONG_COLUMN_NAME(column)
        if column.lower() in columns:
            raise Mistake.DUPLICATE_COLUMN(column)
        kind = types.parse_type(declared)
        columns[column.lower()] = ColumnSchema(column, declared, kind, is_nullable)
    if not columns:
        raise Mistake.NO_COLUMNS()
    if len(node.primary_keys) > 1:
        raise Mistake.MULTIPLE_PRIMARY_KEYS()
    key = node.primary_keys[0] if node.primary_keys else ()
    for part in key:
        if part.lower() not in columns:
            raise Mistake.KEY_COLUMN_MISSING(part)
        column = replace(columns[part.lower()], is_nullable=False)
        is_text = column.type.kind is types.Kind.TEXT
        if is_text and (column.type.length or _MAX_KEY_CHARS + 1) > _MAX_KEY_CHARS:
            raise Mistake.NOT_SUPPORTED("a key of a TEXT column")
        columns[part.lower()] = column
    return TableSchema(name, tuple(columns.values()), key)


def compile_drop(command: nodes.Command, schema: Schema) -> Definition:
    """Translates DROP TABLE. Raises: MySQLError (1051)."""
    names = dict.fromkeys(table_name(table, schema, "DROP") for table in command.tables)
    unknown = [f"{schema.name}.{name}" for name in names if name not in schema.by_name]
    if unknown and command.words == "DROP":
        raise Mistake.UNKNOWN_TABLE(",".join(unknown))
    known = [name for name in names if name in schema.by_name]
    left = tuple(table for table in schema.tables if table.name not in known)
    return tuple(f"DROP TABLE {quote_name(name)}" for name in known), Schema(schema.name, left)


def compile_truncate(command: nodes.Command, schema: Schema) -> Definition:
    """Translates TRUNCATE TABLE. Raises: MySQLError (1146)."""
    table = find_table(command.tables[0], schema)
    return (f"DELETE FROM {quote_name(table.name)}",), schema


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
    name, sizes = re.fullmatch(r"(\w+)(.*)", column.declared.lower(), re.DOTALL).groups()
    name = _SYNONYMS.get(name, name)
    if not sizes and name in ("decimal", "char"):
        sizes = "(10,0)" if name == "decimal" else "(1)"
    return name + sizes.replace(" ", "")


def describe(command: nodes.Command, schema: Schema) -> CompiledQuery:
    """Answers DESCRIBE and SHOW COLUMNS. Raises: MySQLError (1146)."""
    table = find_table(command.tables[0], schema)
    key = {name.lower() for name in table.primary_key}
    rows = []
    for column in table.columns:
        mark = "PRI" if column.name.lower() in key else ""
        nullable = "YES" if column.is_nullable else "NO"
        rows.append((column.name, _declared(column), nullable, mark, None, ""))
    return _query(("Field", "Type", "Null", "Key", "Default", "Extra"), rows)


def show_tables(_: nodes.Command, schema: Schema) -> CompiledQuery:
    """Answers SHOW TABLES."""
    return _query(("Tables",), [(name,) for name in sorted(schema.by_name)])


def show_databases(_: nodes.Command, schema: Schema) -> CompiledQuery:
    """Answers SHOW DATABASES."""
    return _query(("Database",), [(name,) for name in sorted(("information_schema", schema.name))])
