"""ONLY_FULL_GROUP_BY: which columns may stand outside aggregates."""

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.errors import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.expressions.scopes import (
    BareColumn,
    Scope,
    name_of,
)


def check_full_group_by(
    node: exp.Expr,
    scope: Scope,
    bare: list[tuple[int, BareColumn]],
    constants: set[str],
    clause: str = "SELECT list",
) -> None:
    """Raises: MySQLError (1055, 1140) for a bare column that the groups do not determine.

    `bare`: (number of the expression, column). `constants`: columns that WHERE fixes.
    """
    is_grouped = node.args.get("group") is not None
    if not bare or not (is_grouped or scope.num_aggregates):
        return
    known = scope.group_sql | constants
    for number, column in bare:
        source = column.source
        if source.fragments[column.name.lower()].sql in known or _is_determined(column, known):
            continue
        if is_grouped:
            raise Mistake.FULL_GROUP_BY(number, clause, column.title)
        raise Mistake.MIXED_GROUP(number, column.title)


def _is_determined(column: BareColumn, known: set[str]) -> bool:
    fragments = column.source.fragments
    return any(
        key and all(fragments[name].sql in known for name in key) for key in column.source.keys
    )


def constant_columns(node: exp.Expr, scope: Scope) -> set[str]:
    """Returns the columns (as SQL) that a condition `column = constant` of WHERE fixes."""
    where = node.args.get("where")
    found: set[str] = set()
    pending = [where.this] if where else []
    while pending:
        part = pending.pop()
        if isinstance(part, exp.And):
            pending += [part.this, part.expression]
        elif isinstance(part, exp.Paren):
            pending.append(part.this)
        elif isinstance(part, exp.EQ) and isinstance(part.expression, exp.Literal):
            found |= _sql_of(part.this, scope)
        elif isinstance(part, exp.EQ) and isinstance(part.this, exp.Literal):
            found |= _sql_of(part.expression, scope)
    return found


def _sql_of(column: exp.Expr, scope: Scope) -> set[str]:
    if not isinstance(column, exp.Column):
        return set()
    name, table = name_of(column.this).lower(), name_of(column.args.get("table"))
    return {
        source.fragments[name].sql
        for source in scope.sources
        if name in source.fragments and (not table or source.alias == table)
    }
