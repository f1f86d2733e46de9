"""INSERT and REPLACE."""

from collections.abc import Sequence

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.errors import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.expressions.scopes import (
    Fragment,
    Scope,
    Source,
    StatementState,
    name_of,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.statements.from_clause import (
    find_table,
    table_source,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.statements.stored import (
    assignments,
    store,
    stored,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    INTERNAL,
    ColumnSchema,
    TableSchema,
    quote_name,
)

_NEW_ROW = "new row"


def compile_insert(node: exp.Expr, state: StatementState, is_replace: bool) -> list[str]:
    """Translates INSERT and REPLACE. Raises: MySQLError."""
    scope = Scope(state)
    target = node.this.this if isinstance(node.this, exp.Schema) else node.this
    table = find_table(target, scope)
    columns = _insert_columns(node, table)
    is_lenient = bool(node.args.get("ignore"))
    verb = "INSERT OR REPLACE" if is_replace else "INSERT OR IGNORE" if is_lenient else "INSERT"
    rows = _insert_rows(node.expression, columns, table, scope, is_lenient)
    conflict = _conflict(node, table, state)
    if not columns:
        return [f"{verb} INTO {quote_name(table.name)} DEFAULT VALUES"]
    names = ", ".join(quote_name(column.name) for column in columns)
    return [f"{verb} INTO {quote_name(table.name)} ({names}) {rows}{conflict}"]


def _insert_columns(node: exp.Expr, table: TableSchema) -> list[ColumnSchema]:
    if not isinstance(node.this, exp.Schema):
        return list(table.columns)
    names = [name_of(name) for name in node.this.expressions]
    for name in node.this.expressions:
        if not isinstance(name, exp.Identifier | exp.Column):  # such as a definition: `b AS x`
            raise Mistake.SYNTAX(name.name, 1)
    columns = [_find(name, table) for name in names]
    for number in reversed(range(len(columns))):
        if columns[number] in columns[:number]:
            raise Mistake.FIELD_TWICE(columns[number].name)
    if names:
        _check_defaults(table, columns)
    return columns


def _find(name: str, table: TableSchema) -> ColumnSchema:
    column = table.by_name.get(name.lower())
    if column is None:
        raise Mistake.UNKNOWN_COLUMN(name, "field list")
    return column


def _check_defaults(table: TableSchema, given: Sequence[ColumnSchema]) -> None:
    for column in table.columns:
        has_default = column.is_nullable or column.default is not None or column.is_auto_increment
        if column not in given and not has_default:
            raise Mistake.NO_DEFAULT(column.name)


def _insert_rows(
    node: exp.Expr,
    columns: list[ColumnSchema],
    table: TableSchema,
    scope: Scope,
    is_lenient: bool,
) -> str:
    if not isinstance(node, exp.Values):
        return _insert_query(node, columns, scope, is_lenient)
    rows = []
    for number, row in enumerate(node.expressions, start=1):
        values = row.expressions if isinstance(row, exp.Tuple) else [row]
        if len(values) == 1 and isinstance(values[0], exp.Anonymous) and values[0].name == "ROW":
            values = values[0].expressions
        if not values:
            columns.clear()
            _check_defaults(table, [])
            return ""
        if len(values) != len(columns):
            raise Mistake.COLUMN_COUNT(number)
        cells = (
            stored(value, column, number, scope, is_lenient)
            for value, column in zip(values, columns, strict=True)
        )
        rows.append(f"({', '.join(cells)})")
    return f"VALUES {', '.join(rows)}"


def _insert_query(
    node: exp.Expr, columns: list[ColumnSchema], scope: Scope, is_lenient: bool
) -> str:
    query = scope.statement.compile_query(node, scope, False)
    if len(query.columns) != len(columns):
        raise Mistake.COLUMN_COUNT(1)
    inner = quote_name(f"{INTERNAL}q")
    names = [f'"c{index}"' for index in range(len(columns))]
    values = (
        store(Fragment(name, own.type, own.is_collated), column, 1, is_lenient)
        for name, own, column in zip(names, query.columns, columns, strict=True)
    )
    return (
        f"SELECT {', '.join(values)} FROM (WITH {inner}({', '.join(names)}) AS ({query.sql}) "
        f"SELECT * FROM {inner}) WHERE 1"
    )


def _conflict(node: exp.Expr, table: TableSchema, state: StatementState) -> str:
    conflict = node.args.get("conflict")
    if conflict is None:
        return ""
    scope = Scope(state)
    source = table_source(table, table.name, state.schema.name)
    scope.add(source)
    alias = node.expression.args.get("alias")
    for name in (_NEW_ROW, name_of(alias.this) if alias else ""):
        if name:
            scope.add(_new_row(source, name))
    sets = assignments(conflict.expressions, scope, {table.name: table})
    terms = (f"{quote_name(column.name)} = {value}" for _, column, value in sets)
    return f" ON CONFLICT DO UPDATE SET {', '.join(terms)}"


def _new_row(source: Source, alias: str) -> Source:
    new = Source(alias, source.columns, is_hidden=True)
    new.fragments = {
        name: value._replace(sql=f"excluded.{value.sql.split('.', 1)[1]}")
        for name, value in source.fragments.items()
    }
    return new
