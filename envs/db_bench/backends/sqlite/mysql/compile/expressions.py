"""The table of expression handlers; each module of expressions adds its own to it.

A handler compiles its operands, asks their types, and writes SQLite's text with a type of its own.
What it writes is in parentheses where precedence could matter: texts are put together as they are.
"""

from collections.abc import Callable
from typing import TypeAlias

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.coercion import collated, to_number
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import Fragment, Query, Scope
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake

Handler: TypeAlias = Callable[[exp.Expr, Scope], Fragment]
_HANDLERS: dict[type[exp.Expr], Handler] = {}
_MAX_CHARS = 256 * 1024


def handles(*kinds: type[exp.Expr]) -> Callable[[Handler], Handler]:
    """Registers a function as the handler of these kinds of nodes."""

    def register(handler: Handler) -> Handler:
        _HANDLERS.update(dict.fromkeys(kinds, handler))
        return handler

    return register


def compile_expression(node: exp.Expr, scope: Scope) -> Fragment:
    """Returns an expression as SQLite text with its type. Raises: MySQLError."""
    handler = _HANDLERS.get(type(node))
    if handler is None:
        if isinstance(node, exp.Star):
            raise Misplaced("*")
        if isinstance(node, exp.Tuple):
            raise Mistake.OPERAND(1)
        raise Mistake.NOT_SUPPORTED(type(node).__name__.upper())
    mark = len(scope.bare)
    fragment = handler(node, scope)
    check_size(len(fragment.sql))
    if scope.group_sql and fragment.sql in scope.group_sql:
        del scope.bare[mark:]  # it is a GROUP BY expression: its columns are not bare
    return fragment


def check_size(num_chars: int) -> None:
    """Refuses an expression that grows out of bounds: one that is copied doubles at each level.

    Raises: MySQLError (1436).
    """
    if num_chars > _MAX_CHARS:
        raise Mistake.STACK()


def compile_condition(node: exp.Expr, scope: Scope) -> str:
    """Returns an expression as a condition: a text counts as the number that it begins with."""
    return to_number(compile_expression(node, scope)).sql


def compile_order(order: exp.Expr | None, scope: Scope) -> str:
    """Returns an ORDER BY clause whose terms are expressions, not positions; "" for none."""
    if order is None:
        return ""
    terms = (
        collated(compile_expression(term.this, scope)) + direction(term)
        for term in order.expressions
    )
    return f" ORDER BY {', '.join(terms)}"


def direction(term: exp.Expr) -> str:
    """Returns what follows a term of ORDER BY."""
    return " DESC" if term.args.get("desc") else ""


def compile_subquery(node: exp.Expr, scope: Scope, num_columns: int | None) -> Query:
    """Translates a subquery. Raises: MySQLError (1241)."""
    while isinstance(node, exp.Subquery) and not node.args.get("limit"):  # parentheses
        node = node.this
    query = scope.statement.compile_query(node, scope, False)
    if num_columns is not None and len(query.columns) != num_columns:
        raise Mistake.OPERAND(num_columns)
    return query
