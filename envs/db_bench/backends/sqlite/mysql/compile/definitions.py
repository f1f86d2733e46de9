"""CREATE, ALTER and DROP TABLE: the new schema and the SQLite statements that lead to it."""

import re
from dataclasses import dataclass, replace

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.coercion import store
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.expressions import compile_expression
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.from_clause import table_name
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import (
    Fragment,
    OutputColumn,
    Scope,
    StatementState,
    name_of,
    with_names,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake, MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    INTERNAL,
    TEXT,
    ColumnSchema,
    Kind,
    Schema,
    SqlType,
    TableSchema,
    is_name,
    parse_type,
    quote_name,
    quote_text,
)

_NOW = ("NOW", "CURRENT_TIMESTAMP", "LOCALTIME", "LOCALTIMESTAMP")
_FIRST_OF_ENUM = re.compile(r"\s*ENUM\s*\(\s*'((?:[^']|'')*)'", re.IGNORECASE)

_DECLARED = {
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
    Kind.DATE: "date",
    Kind.DATETIME: "datetime",
    Kind.TIME: "time",
    Kind.BLOB: "blob",
}


@dataclass(frozen=True)
class Definition:
    """What a change of the schema does: SQLite's statements, and the schema after them."""

    sql: tuple[str, ...]
    schema: Schema


def compile_create(node: exp.Expr, state: StatementState) -> Definition:
    """Translates CREATE TABLE. Raises: MySQLError."""
    if node.args["kind"] == "INDEX" and not node.args.get("unique"):
        return Definition((), state.schema)
    if node.args["kind"] != "TABLE":
        raise Mistake.COMMAND_DENIED(f"CREATE {node.args['kind']}", name_of(node.this.this))
    target = node.this.this if isinstance(node.this, exp.Schema) else node.this
    name = table_name(target, state.schema, "CREATE")
    if name in state.schema.by_name and node.args.get("exists"):
        return Definition((), state.schema)
    check_new_name(name, state.schema)
    table = _table(name, node.this.expressions if isinstance(node.this, exp.Schema) else [], state)
    if node.expression is None:
        if not table.columns:
            raise Mistake.NO_COLUMNS()
        return Definition((table.sqlite_ddl,), state.schema.with_table(table))
    query = state.compile_query(node.expression, Scope(state), True)
    columns = tuple(_made(column) for column in query.columns)
    table = TableSchema(name, columns)
    values = ", ".join(map(_copied, columns))
    rows = with_names(query.sql, (column.name for column in columns))
    copy = f"INSERT INTO {quote_name(name)} SELECT {values} FROM {rows}"
    return Definition((table.sqlite_ddl, copy), state.schema.with_table(table))


def _made(column: OutputColumn) -> ColumnSchema:
    """Returns the column that CREATE TABLE … AS makes of a query's."""
    kind = TEXT if column.type.kind in (Kind.NULL, Kind.UNKNOWN) else column.type
    return ColumnSchema(column.name, declared_type(kind), kind)


def _copied(column: ColumnSchema) -> str:
    """Returns the SQL of a query's value as the column that CREATE TABLE … AS makes of it."""
    name = quote_name(column.name)
    if column.type.kind is Kind.INTEGER:
        return f"my_bigint({name})"
    if column.type.kind in (Kind.DECIMAL, Kind.DATE, Kind.DATETIME, Kind.TIME):
        return store(Fragment(name, column.type), column)
    return name


def declared_type(kind: SqlType) -> str:
    """Returns a MySQL declaration for a type."""
    if kind.kind is Kind.INTEGER:
        return "int" if kind.length == 32 else "bigint"
    if kind.kind is Kind.DECIMAL:
        return f"decimal(65,{kind.scale})"
    return _DECLARED.get(kind.kind, f"varchar({kind.length})" if kind.length else "text")


def check_new_name(name: str, schema: Schema, kept: str = "") -> None:
    """Checks the name of a table to be made, where table `kept` goes. Raises: MySQLError.

    As on a server with `lower_case_table_names`, no two names differ only in case.
    """
    if not is_name(name) or name.lower().startswith("sqlite_"):
        raise Mistake.WRONG_TABLE_NAME(name)
    if any(t.name.lower() == name.lower() for t in schema.tables if t.name != kept):
        raise Mistake.TABLE_EXISTS(name)


def _table(name: str, nodes: list[exp.Expr], state: StatementState) -> TableSchema:
    columns: dict[str, ColumnSchema] = {}
    primary: list[tuple[str, ...]] = []
    unique: list[tuple[str, tuple[str, ...]]] = []
    for node in nodes:
        if isinstance(node, exp.ColumnDef):
            column, is_primary, is_unique = _column(node, state)
            if column.name.lower() in columns:
                raise Mistake.DUPLICATE_COLUMN(column.name)
            columns[column.name.lower()] = column
            primary += [(column.name,)] if is_primary else []
            unique += [(column.name, (column.name,))] if is_unique else []
            continue
        inner = node.expressions[0] if isinstance(node, exp.Constraint) else node
        if isinstance(inner, exp.PrimaryKey):
            primary.append(_key(inner))
        elif isinstance(inner, exp.UniqueColumnConstraint):
            key = _key(inner.this)
            unique.append((inner.this.name or key[0], key))
    if len(primary) > 1:
        raise Mistake.MULTIPLE_PRIMARY_KEYS()
    primary_key = primary[0] if primary else ()
    return _checked(TableSchema(name, tuple(columns.values()), primary_key, tuple(unique)))


def _checked(table: TableSchema) -> TableSchema:
    """Returns the table with a primary key that cannot be NULL. Raises: MySQLError (1072, 1075)."""
    parts = [part for _, key in table.unique_keys for part in key]
    for name in (*table.primary_key, *parts):
        if name.lower() not in table.by_name:
            raise Mistake.KEY_COLUMN_MISSING(name)
    primary = {name.lower() for name in table.primary_key}
    if any(c.is_auto_increment and c.name.lower() not in primary for c in table.columns):
        raise Mistake.WRONG_AUTO_KEY()
    columns = (
        replace(column, is_nullable=column.is_nullable and column.name.lower() not in primary)
        for column in table.columns
    )
    return replace(table, columns=tuple(columns))


def _key(node: exp.Expr) -> tuple[str, ...]:
    return tuple(name_of(part.find(exp.Identifier)) for part in node.expressions)


def _column(node: exp.Expr, state: StatementState) -> tuple[ColumnSchema, bool, bool]:
    """Returns (column, whether it is the primary key, whether it is unique)."""
    kind = node.args.get("kind")
    if kind is None:
        raise Misplaced("")
    declared = kind.sql("mysql").replace(", ", ",")
    column = ColumnSchema(name_of(node.this), declared, parse_type(declared))
    if not is_name(column.name):
        raise Mistake.WRONG_COLUMN_NAME(column.name)
    is_primary = is_unique = False
    for constraint in node.args.get("constraints") or []:
        rule = constraint.args["kind"]
        if isinstance(rule, exp.ComputedColumnConstraint | exp.GeneratedAsIdentityColumnConstraint):
            raise Mistake.NOT_SUPPORTED("GENERATED COLUMN")
        if isinstance(rule, exp.NotNullColumnConstraint):
            column = replace(column, is_nullable=bool(rule.args.get("allow_null")))
        elif isinstance(rule, exp.AutoIncrementColumnConstraint):
            column = replace(column, is_auto_increment=True)
        elif isinstance(rule, exp.DefaultColumnConstraint):
            column = replace(column, default=_default(rule.this, column, state))
        is_primary |= isinstance(rule, exp.PrimaryKeyColumnConstraint)
        is_unique |= isinstance(rule, exp.UniqueColumnConstraint)
    return column, is_primary, is_unique


def _default(node: exp.Expr, column: ColumnSchema, state: StatementState) -> str | None:
    if isinstance(node, exp.Null):
        return None
    if _is_now(node):
        if column.type.kind is not Kind.DATETIME:
            raise Mistake.BAD_DEFAULT(column.name)
        return "CURRENT_TIMESTAMP"
    try:
        return store(compile_expression(node, Scope(state)), column)
    except MySQLError:
        raise Mistake.BAD_DEFAULT(column.name) from None


def _is_now(node: exp.Expr) -> bool:
    """Returns whether a default is the time of the write, and not an expression with it."""
    is_call = isinstance(node, exp.Anonymous) and name_of(node).upper() in _NOW
    return is_call or isinstance(node, exp.CurrentTimestamp | exp.Localtime | exp.Localtimestamp)


def compile_drop(node: exp.Expr, schema: Schema) -> Definition:
    """Translates DROP TABLE. Raises: MySQLError (1051)."""
    if node.args["kind"] != "TABLE":
        raise Mistake.COMMAND_DENIED("DROP", name_of(node.args["tables"][0].this))
    names = [table_name(table, schema, "DROP") for table in node.args["tables"]]
    unknown = [f"{schema.name}.{name}" for name in names if name not in schema.by_name]
    if unknown and not node.args.get("exists"):
        raise Mistake.UNKNOWN_TABLE(",".join(unknown))
    known = [name for name in names if name in schema.by_name]
    for name in known:
        schema = schema.without(name)
    return Definition(tuple(f"DROP TABLE {quote_name(name)}" for name in known), schema)


def compile_alter(node: exp.Expr, state: StatementState) -> Definition:
    """Translates ALTER TABLE: the table is built anew. Raises: MySQLError."""
    schema = state.schema
    name = table_name(node.this, schema, "ALTER")
    table = schema.table(name)
    origins: dict[str, str | None] = {column.name: column.name for column in table.columns}
    for action in node.args["actions"]:
        if isinstance(action, exp.AlterRename):
            new_name = name_of(action.this.this)
            check_new_name(new_name, schema, name)
            table = replace(table, name=new_name)
        else:
            table = _altered(table, action, origins, state)
    if not table.columns:
        raise Mistake.CANT_DROP_ALL()
    changed = schema.without(name).with_table(table)
    return Definition(_rebuild(name, schema.by_name[name], table, origins), changed)


def _rebuild(
    name: str, old: TableSchema, new: TableSchema, origins: dict[str, str | None]
) -> tuple[str, ...]:
    work = f"{INTERNAL}{new.name}"
    values = {}
    for column in new.columns:
        origin = origins.get(column.name)
        if origin is not None:
            before = old.by_name[origin.lower()]
            value = Fragment(quote_name(before.name), before.type, True)
            is_same = before.type == column.type
            values[column.name] = value.sql if is_same else store(value, column)
        elif not (column.is_nullable or column.is_auto_increment or column.default is not None):
            values[column.name] = _implicit(column)
    names = ", ".join(map(quote_name, values)) or quote_name(new.columns[0].name)
    return (
        replace(new, name=work).sqlite_ddl,
        f"INSERT INTO {quote_name(work)} ({names}) "
        f"SELECT {', '.join(values.values()) or 'NULL'} FROM {quote_name(name)}",
        f"DROP TABLE {quote_name(name)}",
        f"ALTER TABLE {quote_name(work)} RENAME TO {quote_name(new.name)}",
    )


def _implicit(column: ColumnSchema) -> str:
    """Returns the SQL of what rows get in a new column that is NOT NULL and has no default.

    Of a date that would be zero, which a strict MySQL refuses where there is a row.
    """
    if column.type.kind in (Kind.DATE, Kind.DATETIME):
        zero = "0000-00-00" if column.type.kind is Kind.DATE else "0000-00-00 00:00:00"
        return store(Fragment(quote_text(zero), TEXT), column)
    if column.type.kind is Kind.TIME:
        return "'00:00:00'"
    if column.type.kind is Kind.BLOB:
        return "x''"
    if column.type.kind is not Kind.TEXT:
        return "0"
    first = _FIRST_OF_ENUM.match(column.declared)
    return f"'{first[1]}'" if first else "''"


def _altered(
    table: TableSchema,
    action: exp.Expr,
    origins: dict[str, str | None],
    state: StatementState,
) -> TableSchema:
    """Returns the table after one action; `origins` maps its columns to those before."""
    if isinstance(action, exp.ColumnDef):
        return _with_column(table, action, origins, state)
    if isinstance(action, exp.Drop):
        name = name_of(action.args["tables"][0].this)
        if name.lower() not in table.by_name:
            raise Mistake.CANT_DROP(name)
        column = table.by_name[name.lower()]
        origins.pop(column.name, None)
        rest = tuple(other for other in table.columns if other is not column)
        keys = tuple(part for part in table.primary_key if part != column.name)
        unique = tuple(key for key in table.unique_keys if column.name not in key[1])
        return TableSchema(table.name, rest, keys, unique)
    if isinstance(action, exp.RenameColumn):
        old = table.column(name_of(action.this.this), table.name)
        return _replaced(table, old, replace(old, name=name_of(action.args["to"].this)), origins)
    if isinstance(action, exp.ModifyColumn):
        old_name = action.args.get("rename_from") or action.this.this
        old = table.column(name_of(old_name), table.name)
        column, _, _ = _column(action.this, state)
        changed = _replaced(table, old, column, origins)
        return _placed(changed, column, action.this.args.get("position"))
    raise Mistake.NOT_SUPPORTED(f"ALTER TABLE {action.sql('mysql')}")


def _replaced(
    table: TableSchema, old: ColumnSchema, new: ColumnSchema, origins: dict[str, str | None]
) -> TableSchema:
    if new.name.lower() != old.name.lower() and new.name.lower() in table.by_name:
        raise Mistake.DUPLICATE_COLUMN(new.name)
    origins[new.name] = origins.pop(old.name)

    def renamed(key: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new.name if part == old.name else part for part in key)

    return TableSchema(
        table.name,
        tuple(new if column is old else column for column in table.columns),
        renamed(table.primary_key),
        tuple((name, renamed(key)) for name, key in table.unique_keys),
    )


def _with_column(
    table: TableSchema,
    node: exp.Expr,
    origins: dict[str, str | None],
    state: StatementState,
) -> TableSchema:
    column, is_primary, is_unique = _column(node, state)
    if column.name.lower() in table.by_name:
        raise Mistake.DUPLICATE_COLUMN(column.name)
    origins[column.name] = None
    primary = (column.name,) if is_primary else table.primary_key
    unique = (*table.unique_keys, *([(column.name, (column.name,))] if is_unique else []))
    changed = TableSchema(table.name, (*table.columns, column), primary, unique)
    return _placed(changed, column, node.args.get("position"))


def _placed(table: TableSchema, column: ColumnSchema, position: exp.Expr | None) -> TableSchema:
    """Returns the table with a column of it FIRST or AFTER another; as it is without either."""
    if position is None:
        return table
    others = [other for other in table.columns if other is not column]
    place = 0
    if position.this is not None:
        after = table.column(name_of(position.this.this), table.name)
        if after is column:
            raise Mistake.UNKNOWN_COLUMN(column.name, table.name)
        place = others.index(after) + 1
    return replace(table, columns=(*others[:place], column, *others[place:]))
