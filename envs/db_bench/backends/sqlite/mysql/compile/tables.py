"""CREATE and DROP TABLE, SHOW and DESCRIBE: the schema, and how it changes."""

from collections.abc import Iterable, Sequence

from agentpeft.envs.db_bench.backends.sqlite.mysql import types
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.queries import (
    check_database,
    find_table,
)
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
    name = node.table.name
    check_database(node.table, schema, "CREATE")
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


def compile_drop(node: nodes.TableName, schema: Schema) -> Definition:
    """Translates DROP TABLE. Raises: MySQLError (1051)."""
    check_database(node, schema, "DROP")
    if node.name not in schema.by_name:
        raise Mistake.UNKNOWN_TABLE(f"{schema.name}.{node.name}")
    left = tuple(table for table in schema.tables if table.name != node.name)
    return (f"DROP TABLE {quote_name(node.name)}",), Schema(schema.name, left)


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
    return _query([(c.name, _declared(c), "YES", "", None, "") for c in columns], 6)


def show(what: str, schema: Schema) -> CompiledQuery:
    """Answers SHOW TABLES and SHOW DATABASES."""
    names = schema.by_name if what == "SHOW TABLES" else (schema.name, "information_schema")
    return _query((name,) for name in sorted(names))
