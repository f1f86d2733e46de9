"""CREATE and DROP TABLE, SHOW and DESCRIBE: the schema, and how it changes."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from agentpeft.envs.db_bench.backends.sqlite.mysql import types
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.queries import find_table, table_name
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import (
    CompiledQuery,
    OutputColumn,
    Scope,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.values import compile_expression, store
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake, MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse import nodes
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.rows import float_text, to_decimal
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    ColumnSchema,
    Kind,
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
    keys: list[tuple[str, tuple[str, ...]]] = []
    for definition in node.definitions:
        if isinstance(definition, nodes.Key):
            keys.append(definition)
            continue
        column = _column(definition, schema)
        if column.name.lower() in columns:
            raise Mistake.DUPLICATE_COLUMN(column.name)
        columns[column.name.lower()] = column
        keys += [(key, (column.name,)) for key in dict.fromkeys(definition.keys)]
    _check_keys(keys, columns)
    table = TableSchema(name, tuple(columns.values()), tuple(keys))
    return (table.sqlite_ddl,), Schema(schema.name, (*schema.tables, table))


def _column(node: nodes.ColumnDefinition, schema: Schema) -> ColumnSchema:
    if not types.is_name(node.name):
        raise Mistake.WRONG_COLUMN_NAME(node.name)
    column = ColumnSchema(node.name, node.declared, types.parse_type(node.declared))
    default = "NULL"
    if node.default is None:
        return replace(column, is_nullable=node.is_nullable)
    if not isinstance(node.default, nodes.Constant | nodes.Operator):
        raise Mistake.NOT_SUPPORTED("DEFAULT of an expression")
    value = compile_expression(node.default, Scope(schema))
    if value.type.kind is not Kind.NULL:
        is_long = (column.type.length or 0) >= _MAX_KEY_CHARS and column.type.kind is Kind.TEXT
        if value.literal is None or is_long:
            raise Mistake.NOT_SUPPORTED("DEFAULT of an expression, or of a TEXT")
        try:
            default = store(value, column)
        except MySQLError:
            raise Mistake.BAD_DEFAULT(column.name) from None
    elif not node.is_nullable:
        raise Mistake.BAD_DEFAULT(column.name)
    return replace(column, is_nullable=node.is_nullable, default=default)


def _check_keys(
    keys: Sequence[tuple[str, tuple[str, ...]]], columns: dict[str, ColumnSchema]
) -> None:
    """Makes the primary key's columns NOT NULL. Raises: MySQLError (1068, 1072, 1235)."""
    names = [name.lower() for name, _ in keys]
    if names.count("primary") > 1:
        raise Mistake.MULTIPLE_PRIMARY_KEYS()
    if len({*names}) < len(names):
        raise Mistake.NOT_SUPPORTED("keys of one name")
    for name, key in keys:
        if len({column.lower() for column in key}) < len(key):
            raise Mistake.NOT_SUPPORTED("a key with a column twice")
        for column_name in key:
            column = columns.get(column_name.lower())
            if column is None:
                raise Mistake.KEY_COLUMN_MISSING(column_name)
            if column.type.kind is Kind.TEXT and (column.type.length or _MAX_KEY_CHARS) > 255:
                raise Mistake.NOT_SUPPORTED("a key of a long text")
            if name == "PRIMARY":
                columns[column_name.lower()] = replace(column, is_nullable=False)


_MAX_KEY_CHARS = 65535


def compile_drop(command: nodes.PlainStatement, schema: Schema) -> Definition:
    """Translates DROP TABLE. Raises: MySQLError (1051)."""
    names = dict.fromkeys(table_name(table, schema, "DROP") for table in command.tables)
    unknown = [f"{schema.name}.{name}" for name in names if name not in schema.by_name]
    if unknown and command.words == "DROP":
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


def _key_of(column: ColumnSchema, table: TableSchema) -> str:
    keys = [(name, key) for name, key in table.keys if key[0].lower() == column.name.lower()]
    primary = [name.lower() for name, key in table.keys if name == "PRIMARY" for name in key]
    if column.name.lower() in primary:
        return "PRI"
    if any(len(key) == 1 for _, key in keys):
        has_primary = bool(primary) or column.is_nullable
        return "UNI" if has_primary else "PRI"
    return "MUL" if keys else ""


def _shown_default(column: ColumnSchema) -> str:
    if column.type.kind is Kind.DECIMAL:
        return str(to_decimal(float(column.default), column.type.scale))
    if column.default.startswith("'"):
        return column.default[1:-1].replace("''", "'")
    return float_text(float(column.default)) if "." in column.default else column.default


def describe(command: nodes.PlainStatement, schema: Schema) -> CompiledQuery:
    """Answers DESCRIBE. Raises: MySQLError (1146)."""
    table = find_table(command.tables[0], schema)
    rows = [
        (
            column.name,
            _declared(column),
            "YES" if column.is_nullable else "NO",
            _key_of(column, table),
            None if column.default == "NULL" else _shown_default(column),
            "",
        )
        for column in table.columns
    ]
    return _query(rows, 6)


def show(command: nodes.PlainStatement, schema: Schema) -> CompiledQuery:
    """Answers SHOW TABLES and SHOW DATABASES."""
    is_tables = command.words == "SHOW TABLES"
    names = schema.by_name if is_tables else (schema.name, "information_schema")
    return _query((name,) for name in sorted(names))
