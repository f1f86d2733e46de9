"""SHOW, DESCRIBE and information_schema, answered from the schema."""

import re
from collections.abc import Iterable, Sequence

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import (
    OutputColumn,
    Query,
    name_of,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.collation import like
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    INTEGER,
    TEXT,
    ColumnSchema,
    Kind,
    Schema,
    TableSchema,
    quote_text,
)

_SYNONYMS = {
    **dict.fromkeys(("boolean", "bool"), "tinyint(1)"),
    **dict.fromkeys(("double precision", "real"), "double"),
    **dict.fromkeys(("numeric", "dec", "fixed"), "decimal"),
    "integer": "int",
}
Cell = str | int | None


def _cell(value: Cell) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else quote_text(value)


def _table(names: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Query:
    rows = list(rows)
    columns = [
        OutputColumn(name, INTEGER if rows and isinstance(rows[0][index], int) else TEXT, False)
        for index, name in enumerate(names)
    ]
    if not rows:
        return Query(f"SELECT {', '.join('NULL' for _ in names)} WHERE 0", columns)
    values = ", ".join(f"({', '.join(_cell(cell) for cell in row)})" for row in rows)
    return Query(f"VALUES {values}", columns)


def _key(column: ColumnSchema, table: TableSchema) -> str:
    if column.name in table.primary_key:
        return "PRI"
    return "UNI" if any(key == (column.name,) for _, key in table.unique_keys) else ""


def _declared(column: ColumnSchema) -> str:
    declared = column.declared.lower()
    for name, written in _SYNONYMS.items():
        if re.fullmatch(rf"{name}(\(.*)?", declared):
            return declared.replace(name, written, 1)
    return declared


def _described(table: TableSchema) -> list[tuple[Cell, ...]]:
    return [
        (
            column.name,
            _declared(column),
            "YES" if column.is_nullable else "NO",
            _key(column, table),
            None if column.default is None else column.default.strip("'"),
            "auto_increment" if column.is_auto_increment else "",
        )
        for column in table.columns
    ]


def describe(table: TableSchema) -> Query:
    """Answers DESCRIBE."""
    return _table(("Field", "Type", "Null", "Key", "Default", "Extra"), _described(table))


def show(node: exp.Expr, schema: Schema) -> Query:
    """Answers SHOW. Raises: MySQLError (1064, 1146)."""
    kind = node.name.upper()
    like_node = node.args.get("like")
    pattern = like_node.name if like_node is not None else "%"
    if kind == "TABLES":
        names = [t.name for t in schema.tables if like(t.name, pattern, "\\")]
        if node.args.get("full"):
            return _table(
                ("Tables", "Table_type"), [(name, "BASE TABLE") for name in sorted(names)]
            )
        return _table(("Tables",), [(name,) for name in sorted(names)])
    if kind in ("DATABASES", "SCHEMAS"):
        return _table(("Database",), [(schema.name,), ("information_schema",)])
    if kind in ("COLUMNS", "FIELDS", "CREATE TABLE", "INDEX", "INDEXES", "KEYS"):
        return _show_table(kind, schema.table(name_of(node.args.get("target"))), pattern)
    if kind in ("WARNINGS", "ERRORS", "PROCESSLIST", "GRANTS"):
        return _table(("Level", "Code", "Message"), [])
    if kind in ("VARIABLES", "STATUS", "SESSION VARIABLES"):
        return _table(("Variable_name", "Value"), [])
    raise Misplaced(kind)


def _show_table(kind: str, table: TableSchema, pattern: str) -> Query:
    if kind == "CREATE TABLE":
        return _table(("Table", "Create Table"), [(table.name, _create_table(table))])
    if kind in ("COLUMNS", "FIELDS"):
        rows = [row for row in _described(table) if like(str(row[0]), pattern, "\\")]
        return _table(("Field", "Type", "Null", "Key", "Default", "Extra"), rows)
    keys = [("PRIMARY", table.primary_key)] if table.primary_key else []
    rows = [
        (table.name, 0, key, number, column)
        for key, columns in (*keys, *table.unique_keys)
        for number, column in enumerate(columns, start=1)
    ]
    return _table(("Table", "Non_unique", "Key_name", "Seq_in_index", "Column_name"), rows)


def _listed(names: Iterable[str]) -> str:
    return ",".join(f"`{name}`" for name in names)


def _create_table(table: TableSchema) -> str:
    lines = []
    for column in table.columns:
        text = f"  `{column.name}` {_declared(column)}"
        if not column.is_nullable:
            text += " NOT NULL"
        if column.default is not None:
            text += f" DEFAULT {column.default}"
        elif column.is_nullable and column.type.kind is not Kind.BLOB:
            text += " DEFAULT NULL"
        lines.append(text + (" AUTO_INCREMENT" if column.is_auto_increment else ""))
    if table.primary_key:
        lines.append(f"  PRIMARY KEY ({_listed(table.primary_key)})")
    lines += [f"  UNIQUE KEY `{name}` ({_listed(key)})" for name, key in table.unique_keys]
    body = ",\n".join(lines)
    return (
        f"CREATE TABLE `{table.name}` (\n{body}\n) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 "
        "COLLATE=utf8mb4_0900_ai_ci"
    )


def information_schema(name: str, schema: Schema) -> Query:
    """Returns a table of information_schema. Raises: MySQLError (1109)."""
    if name.lower() == "tables":
        return _table(
            ("TABLE_SCHEMA", "TABLE_NAME", "TABLE_TYPE", "ENGINE"),
            [(schema.name, table.name, "BASE TABLE", "InnoDB") for table in schema.tables],
        )
    if name.lower() == "columns":
        names = "TABLE_SCHEMA TABLE_NAME COLUMN_NAME ORDINAL_POSITION COLUMN_DEFAULT IS_NULLABLE"
        return _table(
            (*names.split(), "DATA_TYPE", "COLUMN_TYPE", "COLUMN_KEY", "EXTRA"),
            _column_rows(schema),
        )
    if name.lower() == "schemata":
        return _table(("SCHEMA_NAME",), [(schema.name,), ("information_schema",)])
    raise Mistake.UNKNOWN_CATALOG(name)


def _column_rows(schema: Schema) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for table in schema.tables:
        for number, row in enumerate(_described(table), start=1):
            field, declared, null, key, default, extra = row
            kind = str(declared).split("(")[0]
            rows.append(
                (schema.name, table.name, field, number, default, null, kind, declared, key, extra)
            )
    return rows
