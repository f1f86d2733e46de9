"""Values on their way into columns: INSERT's rows and UPDATE's assignments."""

from collections.abc import Sequence
from decimal import Decimal

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.errors import Misplaced, Mistake, MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.expressions.coercion import to_text
from agentpeft.envs.db_bench.backends.sqlite.mysql.expressions.compiler import compile_expression
from agentpeft.envs.db_bench.backends.sqlite.mysql.expressions.scopes import (
    Fragment,
    Scope,
    name_of,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.rows import SQLiteValue
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.storage import stored_value
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    ColumnSchema,
    Kind,
    TableSchema,
    quote_text,
)


def sqlite_literal(value: SQLiteValue) -> str:
    """Returns a value as a SQLite literal."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return quote_text(value) if isinstance(value, str) else repr(value)


def store(value: Fragment, column: ColumnSchema, row: int = 1, is_lenient: bool = False) -> str:
    """Returns a value's SQL as the column stores it. Raises: MySQLError for bad literals."""
    if value.type.kind is Kind.NULL:
        if not column.is_nullable and not column.is_auto_increment:
            raise Mistake.NULL_COLUMN(column.name)
        return "NULL"
    if column.type.kind is Kind.INTEGER and value.type.kind in (Kind.FLOAT, Kind.DOUBLE):
        value = Fragment(f"my_round({value.sql}, 0, 0)", value.type)  # halves to even numbers
    if value.literal is not None:
        stored = stored_value(
            _python_value(value), column.type, column.name, row, is_lenient=is_lenient
        )
        if column.is_auto_increment and stored == 0:
            return "NULL"
        return sqlite_literal(stored)
    if column.type.kind is Kind.TEXT:
        value = to_text(value)
    return (
        f"my_store({value.sql}, {quote_text(column.declared)}, {quote_text(column.name)}, "
        f"{row}, {int(is_lenient)})"
    )


def _python_value(value: Fragment) -> int | float | str | Decimal:
    text = value.literal or ""
    if value.type.kind is Kind.INTEGER:
        return int(text)
    if value.type.kind is Kind.DECIMAL:
        return Decimal(text)
    return float(text) if value.type.kind is Kind.DOUBLE else text


def stored(node: exp.Expr, column: ColumnSchema, row: int, scope: Scope, is_lenient: bool) -> str:
    """Returns the SQL of a value of INSERT or SET, DEFAULT among them."""
    if isinstance(node, exp.Var | exp.Column) and node.sql().upper() == "DEFAULT":
        if column.default is None and not column.is_nullable and not column.is_auto_increment:
            raise Mistake.NO_DEFAULT(column.name)
        return column.default or "NULL"
    value = compile_expression(node, scope)
    try:
        return store(value, column, row, is_lenient)
    except MySQLError:  # is one only where there is a row to change
        return store(value._replace(literal=None), column, row, is_lenient)


def assignments(
    nodes: Sequence[exp.Expr], scope: Scope, tables: dict[str, TableSchema]
) -> list[tuple[str, ColumnSchema, str]]:
    """Returns (alias, column, SQL of the value) of SET; later ones see the values before them."""
    found: dict[tuple[str, str], tuple[str, ColumnSchema, str]] = {}
    scope.clause = "field list"
    for node in nodes:
        if not isinstance(node, exp.EQ) or not isinstance(node.this, exp.Column):
            raise Misplaced(node.sql("mysql"))
        name, table = name_of(node.this.this), name_of(node.this.args.get("table"))
        given, scope.select_list = scope.select_list, {}
        fragment = scope.find_column(name, table)
        scope.select_list = given
        alias = next(
            source.alias for source in scope.sources if fragment in source.fragments.values()
        )
        if alias not in tables:
            raise Mistake.NOT_UPDATABLE(alias)
        column = tables[alias].by_name[name.lower()]
        value = stored(node.expression, column, 1, scope, False)
        found[alias, name.lower()] = (alias, column, value)
        scope.select_list[name.lower()] = Fragment(f"({value})", column.type, True)
    scope.select_list = {}
    return list(found.values())
