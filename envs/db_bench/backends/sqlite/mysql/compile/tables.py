"""CREATE and DROP TABLE, SHOW and DESCRIBE: the schema, and how it changes."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql import types
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.queries import find_table, table_name
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import (
    OutputColumn,
    Query,
    Scope,
    name_of,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.values import compile_expression, store
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake, MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.collation import like
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    ColumnSchema,
    Schema,
    TableSchema,
    quote_name,
    quote_text,
)

_SYNONYMS = {
    **dict.fromkeys(("boolean", "bool"), "tinyint(1)"),
    **dict.fromkeys(("double precision", "real"), "double"),
    **dict.fromkeys(("numeric", "dec", "fixed"), "decimal"),
    "integer": "int",
}
_OPTIONS = {exp.EngineProperty: ("innodb",), exp.CharacterSetProperty: ("utf8mb4", "utf8")}
"""What a table may say of itself, for it is so anyway."""
Cell = str | None


@dataclass(frozen=True)
class Definition:
    """What a change of the schema does: SQLite's statements, and the schema after them."""

    sql: tuple[str, ...]
    schema: Schema


def compile_create(node: exp.Expr, schema: Schema) -> Definition:
    """Translates CREATE TABLE. Raises: MySQLError."""
    if node.args["kind"] != "TABLE":
        raise Mistake.NOT_SUPPORTED(f"CREATE {node.args['kind']}")
    properties = node.args.get("properties")
    for option in properties.expressions if properties else ():
        if option.name.lower() not in _OPTIONS[type(option)]:
            raise Mistake.NOT_SUPPORTED(option.sql("mysql"))
    target = node.this.this if isinstance(node.this, exp.Schema) else node.this
    name = table_name(target, schema, "CREATE")
    if name in schema.by_name and node.args.get("exists"):
        return Definition((), schema)
    if not types.is_name(name) or name.lower().startswith("sqlite_"):
        raise Mistake.WRONG_TABLE_NAME(name)
    if any(table.name.lower() == name.lower() for table in schema.tables):
        raise Mistake.TABLE_EXISTS(name)  # as on a server with `lower_case_table_names`
    table = _table(name, node.this.expressions if isinstance(node.this, exp.Schema) else [], schema)
    if not table.columns:
        raise Mistake.NO_COLUMNS()
    return Definition((table.sqlite_ddl,), Schema(schema.name, (*schema.tables, table)))


def _table(name: str, nodes: list[exp.Expr], schema: Schema) -> TableSchema:
    columns: dict[str, ColumnSchema] = {}
    primary: list[tuple[str, ...]] = []
    unique: list[tuple[str, tuple[str, ...]]] = []
    for node in nodes:
        if isinstance(node, exp.ColumnDef):
            column, rules = _column(node, schema)
            if column.name.lower() in columns:
                raise Mistake.DUPLICATE_COLUMN(column.name)
            columns[column.name.lower()] = column
            primary += [(column.name,)] if exp.PrimaryKeyColumnConstraint in rules else []
            unique += [(column.name, (column.name,))] if exp.UniqueColumnConstraint in rules else []
        elif isinstance(node, exp.PrimaryKey):
            primary.append(_key(node))
        elif isinstance(node, exp.UniqueColumnConstraint):
            key = _key(node.this)
            unique.append((node.this.name or key[0], key))
        else:
            raise Misplaced(node.name)
    if len(primary) > 1:
        raise Mistake.MULTIPLE_PRIMARY_KEYS()
    primary_key = primary[0] if primary else ()
    return _checked(TableSchema(name, tuple(columns.values()), primary_key, tuple(unique)))


def _checked(table: TableSchema) -> TableSchema:
    """Returns the table with a primary key that cannot be NULL. Raises: MySQLError (1072)."""
    for name in (part for key in table.keys for part in key):
        if name.lower() not in table.by_name:
            raise Mistake.KEY_COLUMN_MISSING(name)
        kind = table.by_name[name.lower()].type
        if kind.kind is types.Kind.TEXT and (kind.length or 65535) > 768:
            raise Mistake.NOT_SUPPORTED("a key of a TEXT column")
    primary = {name.lower() for name in table.primary_key}
    columns = (
        replace(column, is_nullable=column.is_nullable and column.name.lower() not in primary)
        for column in table.columns
    )
    return replace(table, columns=tuple(columns))


def _key(node: exp.Expr) -> tuple[str, ...]:
    return tuple(name_of(part.find(exp.Identifier)) for part in node.expressions)


def _column(node: exp.Expr, schema: Schema) -> tuple[ColumnSchema, set[type[exp.Expr]]]:
    """Returns a column and the kinds of its rules."""
    kind = node.args.get("kind")
    if kind is None:
        raise Misplaced("")
    declared = kind.sql("mysql").replace(", ", ",")
    column = ColumnSchema(name_of(node.this), declared, types.parse_type(declared))
    if not types.is_name(column.name):
        raise Mistake.WRONG_COLUMN_NAME(column.name)
    rules = [constraint.args["kind"] for constraint in node.args.get("constraints") or []]
    for rule in rules:
        if isinstance(rule, exp.NotNullColumnConstraint):
            column = replace(column, is_nullable=bool(rule.args.get("allow_null")))
        elif isinstance(rule, exp.DefaultColumnConstraint):
            column = replace(column, default=_default(rule.this, column, schema))
    return column, set(map(type, rules))


def _default(node: exp.Expr, column: ColumnSchema, schema: Schema) -> str | None:
    if isinstance(node, exp.Null):
        return None
    if not isinstance(node, exp.Literal | exp.Neg | exp.Boolean):
        raise Mistake.NOT_SUPPORTED("DEFAULT of an expression")
    try:
        value = compile_expression(node, Scope(schema))
        return store(value._replace(literal=value.literal or value.sql), column)
    except MySQLError:
        raise Mistake.BAD_DEFAULT(column.name) from None


def compile_drop(node: exp.Expr, schema: Schema) -> Definition:
    """Translates DROP TABLE. Raises: MySQLError (1051)."""
    if node.args["kind"] != "TABLE":
        raise Mistake.NOT_SUPPORTED(f"DROP {node.args['kind']}")
    names = [table_name(table, schema, "DROP") for table in node.args["tables"]]
    unknown = [f"{schema.name}.{name}" for name in names if name not in schema.by_name]
    if unknown and not node.args.get("exists"):
        raise Mistake.UNKNOWN_TABLE(",".join(unknown))
    known = dict.fromkeys(name for name in names if name in schema.by_name)
    for name in known:
        schema = schema.without(name)
    return Definition(tuple(f"DROP TABLE {quote_name(name)}" for name in known), schema)


def compile_truncate(node: exp.Expr, schema: Schema) -> Definition:
    """Translates TRUNCATE TABLE. Raises: MySQLError (1146)."""
    table = find_table(node.expressions[0], Scope(schema))
    return Definition((f"DELETE FROM {quote_name(table.name)}",), schema)


def _query(names: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Query:
    columns = [OutputColumn(name, types.TEXT, False) for name in names]
    lines = (
        f"({', '.join('NULL' if cell is None else quote_text(cell) for cell in row)})"
        for row in rows
    )
    values = ", ".join(lines)
    empty = f"SELECT {', '.join('NULL' for _ in names)} WHERE 0"
    return Query(f"VALUES {values}" if values else empty, columns)


def _key_of(column: ColumnSchema, table: TableSchema) -> str:
    if column.name in table.primary_key:
        return "PRI"
    if any(key == (column.name,) for _, key in table.unique_keys):
        return "UNI"
    is_first = any(key[0] == column.name for _, key in table.unique_keys)
    return "MUL" if is_first else ""


def _declared(column: ColumnSchema) -> str:
    declared = column.declared.lower()
    for name, written in _SYNONYMS.items():
        if re.fullmatch(rf"{name}(\(.*)?", declared):
            declared = declared.replace(name, written, 1)
    if declared == "decimal":
        return "decimal(10,0)"
    return "char(1)" if declared == "char" else declared


def describe(table: TableSchema, pattern: str = "%") -> Query:
    """Answers DESCRIBE and SHOW COLUMNS."""
    rows = [
        (
            column.name,
            _declared(column),
            "YES" if column.is_nullable else "NO",
            _key_of(column, table),
            None if column.default is None else column.default.strip("'"),
            "",
        )
        for column in table.columns
        if like(column.name, pattern, "\\")
    ]
    return _query(("Field", "Type", "Null", "Key", "Default", "Extra"), rows)


def show(node: exp.Expr, schema: Schema) -> Query:
    """Answers SHOW. Raises: MySQLError (1146, 1235)."""
    kind = node.name.upper()
    pattern = node.args["like"].name if node.args.get("like") else "%"
    if kind == "TABLES":
        names = sorted(t.name for t in schema.tables if like(t.name, pattern, "\\"))
        if node.args.get("full"):
            return _query(("Tables", "Table_type"), [(name, "BASE TABLE") for name in names])
        return _query(("Tables",), [(name,) for name in names])
    if kind in ("DATABASES", "SCHEMAS"):
        databases = ("information_schema", schema.name)
        return _query(("Database",), [(d,) for d in sorted(databases) if like(d, pattern, "\\")])
    if kind in ("COLUMNS", "FIELDS") and not node.args.get("full"):
        return describe(schema.table(name_of(node.args.get("target"))), pattern)
    raise Mistake.NOT_SUPPORTED(f"SHOW {kind}")
