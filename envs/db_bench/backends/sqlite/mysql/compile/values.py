"""Values in SQLite's text: MySQL's conversions between types, and the table of handlers.

A handler compiles its operands, asks their types, and writes SQLite's text with a type of its own.
What it writes is in parentheses where precedence could matter: texts are put together as they are.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from decimal import Decimal
from typing import Any, TypeAlias

from agentpeft.envs.db_bench.backends.sqlite.mysql import types
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import Fragment, Scope
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.nodes import Expression, Operator
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.dates import normalize
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.functions import NUMBER
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.rows import stored_value
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Kind

Handler: TypeAlias = Callable[[Any, Scope], Fragment]
MAX_CHARS = 256 * 1024
_HANDLERS: dict[type | str, Handler] = {}
STRICT: ContextVar[bool] = ContextVar("STRICT", default=False)
"""Whether the statement changes tables: then a text that is no number is an error (1292).

A context variable, since conversions are called from everywhere, mostly without a scope.
"""


def handles(*kinds: type | str) -> Callable[[Handler], Handler]:
    """Registers a function as the handler of these types of nodes, or these operators."""

    def register(handler: Handler) -> Handler:
        _HANDLERS.update(dict.fromkeys(kinds, handler))
        return handler

    return register


def compile_expression(node: Expression, scope: Scope) -> Fragment:
    """Returns an expression as SQLite text with its type. Raises: MySQLError."""
    mark = len(scope.bare)
    kind = node.operator if isinstance(node, Operator) else type(node)
    fragment = _HANDLERS[kind](node, scope)
    if len(fragment.sql) > MAX_CHARS:  # AVG copies its argument: nested ones double at each level
        raise Mistake.STACK()
    if scope.group_sql and fragment.sql in scope.group_sql:
        del scope.bare[mark:]  # it is a GROUP BY expression: its columns are not bare
    return fragment


def compile_condition(node: Expression, scope: Scope) -> str:
    """Returns an expression as a condition: a text counts as the number that it begins with."""
    return to_number(compile_expression(node, scope)).sql


def to_number(value: Fragment) -> Fragment:
    """Returns a value as MySQL uses it in arithmetic. Raises: MySQLError (1235)."""
    kind = value.type.kind
    if kind in types.TEMPORALS or value.type.is_fixed:
        raise Mistake.NOT_SUPPORTED("a date as a number, or a calculation with ROUND of a DOUBLE")
    if kind is not Kind.TEXT:
        return value
    literal = value.literal
    if literal is not None and (NUMBER.fullmatch(literal) or not STRICT.get()):
        number = NUMBER.match(literal)
        return Fragment(number[1] if number else "0", types.DOUBLE)
    if STRICT.get():
        return Fragment(f"my_number({value.sql})", types.DOUBLE)
    return Fragment(f"CAST({value.sql} AS REAL)", types.DOUBLE)


def kept(value: Fragment) -> Fragment:
    """Returns a decimal with its type's digits, of which a quotient has more behind them.

    A comparison uses the digits that are shown, and so does what is kept in a table between.
    """
    kind = value.type
    if kind.is_exact:
        return value
    return Fragment(f"round({value.sql}, {kind.scale})", replace(kind, is_exact=True))


def to_text(value: Fragment) -> Fragment:
    """Returns a value as MySQL prints it. Raises: MySQLError (1235)."""
    kind = value.type.kind
    if value.type.is_fixed:
        raise Mistake.NOT_SUPPORTED("a text made of ROUND of a DOUBLE")
    if kind is Kind.DECIMAL:
        return Fragment(f"my_decimal_text({value.sql}, {value.type.scale})", types.TEXT)
    if kind in types.FLOATS:
        return Fragment(f"my_float_text({value.sql}, {int(kind is Kind.FLOAT)})", types.TEXT)
    if kind is Kind.INTEGER:
        return Fragment(f"CAST({value.sql} AS TEXT)", types.TEXT)
    return value._replace(type=types.TEXT) if kind in types.TEMPORALS else value


def collated(value: Fragment) -> str:
    """Returns a value's SQL so that comparing it ignores case where it is a text."""
    if value.type.kind is not Kind.TEXT or value.is_collated:
        return value.sql
    return f"{value.sql} COLLATE NOCASE"


def align(values: Sequence[Fragment]) -> list[str]:
    """Returns the SQL of values that are compared with each other, in a common type."""
    kinds = {value.type.kind for value in values} - {Kind.NULL}
    if kinds <= {Kind.TEXT}:
        return [collated(values[0]), *(value.sql for value in values[1:])]
    if kinds <= types.NUMBERS | {Kind.TEXT}:
        return [to_number(value).sql for value in values]
    temporals = kinds & types.TEMPORALS
    if len(temporals) > 1 or not kinds <= temporals | {Kind.TEXT}:
        raise Mistake.NOT_SUPPORTED("a comparison of a date with another type")
    return [_to_temporal(value, *temporals) for value in values]


def _to_temporal(value: Fragment, kind: Kind) -> str:
    """Returns a literal as a DATE, DATETIME or TIME. Raises: MySQLError (1235, 1525)."""
    if value.type.kind in (kind, Kind.NULL):
        return value.sql
    if value.literal is None:
        raise Mistake.NOT_SUPPORTED("a comparison of a date with a text")
    text = normalize(value.literal, kind)
    if text is None:
        raise Mistake.BAD_LITERAL(kind.upper(), value.literal)
    if kind is Kind.DATE and normalize(value.literal, Kind.DATETIME) != f"{text} 00:00:00":
        raise Mistake.NOT_SUPPORTED("a comparison of a date with a date and time")
    return types.quote_text(text)


def choose(tests: Sequence[str], values: Sequence[Fragment]) -> Fragment:
    """Returns a CASE over tests; `values` has one more, for when none holds."""
    kind = types.merge_types(value.type for value in values)
    branches = " ".join(
        f"WHEN {test} THEN {value.sql}" for test, value in zip(tests, values[:-1], strict=True)
    )
    return Fragment(f"(CASE {branches} ELSE {values[-1].sql} END)", kind)


def store(value: Fragment, column: types.ColumnSchema, row: int = 1) -> str:
    """Returns a value's SQL as the column stores it. Raises: MySQLError for bad literals."""
    if value.type.kind is Kind.NULL:
        return "NULL"
    if column.type.kind is Kind.INTEGER and value.type.kind in types.FLOATS:
        value = Fragment(f"my_round({value.sql}, 0, 0)", value.type)  # halves to even numbers
    if column.type.kind in types.NUMBERS and value.type.kind in types.TEMPORALS:
        raise Mistake.NOT_SUPPORTED("a date as a number")
    if value.literal is not None:
        return _sqlite_literal(stored_value(_python_value(value), column.type, column.name, row))
    if column.type.kind is Kind.TEXT:
        value = to_text(value)
    declared, name = map(types.quote_text, (column.declared, column.name))
    return f"my_store({value.sql}, {declared}, {name}, {row})"


def _sqlite_literal(value: types.SQLiteValue) -> str:
    return types.quote_text(value) if isinstance(value, str) else repr(value)


def _python_value(value: Fragment) -> int | float | str | Decimal:
    text = value.literal or ""
    if value.type.kind is Kind.INTEGER:
        return int(text)
    if value.type.kind is Kind.DECIMAL:
        return Decimal(text)
    return float(text) if value.type.kind is Kind.DOUBLE else text
