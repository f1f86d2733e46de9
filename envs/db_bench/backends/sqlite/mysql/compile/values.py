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
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.rows import NUMBER, stored_value
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import Kind, SqlType

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
    """Returns a value as MySQL uses it in arithmetic."""
    kind = value.type.kind
    if value.type.is_partial and kind is not Kind.INTEGER:
        raise Mistake.NOT_SUPPORTED("ENUM, SET and FLOAT(5,2) as a number")
    if kind is Kind.TEXT:
        literal = value.literal
        if literal is not None and (NUMBER.fullmatch(literal) or not STRICT.get()):
            number = NUMBER.match(literal)
            return Fragment(number[1] if number else "0", types.DOUBLE)
        if STRICT.get():
            return Fragment(f"my_number({value.sql})", types.DOUBLE)
        return Fragment(f"CAST({value.sql} AS REAL)", types.DOUBLE)
    if kind in types.TEMPORALS:
        raise Mistake.NOT_SUPPORTED(f"a {kind} as a number")
    return value


def to_double(value: Fragment) -> Fragment:
    """Returns a number beside a double, with which SQLite compares large integers exactly."""
    if value.type.kind is not Kind.INTEGER or (value.type.length or 64) <= 53:
        return value
    return Fragment(f"my_double({value.sql})", types.DOUBLE)


def rounded(value: Fragment) -> Fragment:
    """Returns a decimal with its type's digits, of which a quotient has more behind them.

    A comparison uses the digits that are shown, and so does what is kept in a table between.
    """
    kind = value.type
    if kind.kind is not Kind.DECIMAL or kind.is_exact:
        return value
    return Fragment(f"round({value.sql}, {kind.scale})", replace(kind, is_exact=True))


def to_text(value: Fragment) -> Fragment:
    """Returns a value as MySQL prints it."""
    kind = value.type.kind
    if value.type.is_partial and kind in types.FLOATS | types.TEMPORALS:
        raise Mistake.NOT_SUPPORTED("FLOAT(5,2) and DATETIME(3) as a text")
    if kind is Kind.DECIMAL:
        return Fragment(f"my_decimal_text({value.sql}, {value.type.scale})", types.TEXT)
    if value.type == types.ROUNDED:
        raise Mistake.NOT_SUPPORTED("a rounded floating-point number as a text")
    if kind in types.FLOATS:
        return Fragment(
            f"my_float_text({value.sql}, {6 if kind is Kind.FLOAT else 17})", types.TEXT
        )
    if kind is Kind.INTEGER:
        return Fragment(f"CAST({value.sql} AS TEXT)", types.TEXT)
    return value._replace(type=types.TEXT) if kind in types.TEMPORALS else value


def to_temporal(value: Fragment, kind: Kind) -> Fragment:
    """Returns a value as a DATE, DATETIME or TIME to compare with. Raises: MySQLError (1525)."""
    if value.type.kind is kind or value.type.kind is Kind.NULL:
        return value
    if value.literal is not None:
        text = normalize(value.literal, kind)
        if text is None:
            raise Mistake.BAD_LITERAL(kind.upper(), value.literal)
        if kind is Kind.DATE and normalize(value.literal, Kind.DATETIME) != f"{text} 00:00:00":
            raise Mistake.NOT_SUPPORTED("a comparison of a date with a date and time")
        return Fragment(types.quote_text(text), SqlType(kind), literal=text)
    if Kind.TIME in (kind, value.type.kind) or (STRICT.get() and value.type.kind is Kind.TEXT):
        raise Mistake.NOT_SUPPORTED(f"{value.type.kind} as {kind}")
    if value.type.kind is Kind.DATE:
        return Fragment(f"({value.sql} || ' 00:00:00')", types.DATETIME)
    return Fragment(f"my_temporal({value.sql}, '{kind}')", SqlType(kind))


def convert(value: Fragment, target: SqlType) -> Fragment:
    """Returns a value of a CASE, UNION or the like as the type that they have together."""
    kind = value.type.kind
    if target.kind is kind or Kind.NULL in (kind, target.kind):
        return value
    if target.kind is Kind.TEXT:
        return to_text(value)
    if target.kind in types.TEMPORALS:
        return to_temporal(value, target.kind)
    number = to_number(value)
    return Fragment((to_double(number) if target.kind in types.FLOATS else number).sql, target)


def collated(value: Fragment) -> str:
    """Returns a value's SQL so that comparing it ignores case where it is a text."""
    if value.type.kind is not Kind.TEXT or value.is_collated:
        return value.sql
    return f"{value.sql} COLLATE NOCASE"


def ordered(value: Fragment) -> str:
    """Returns a value's SQL so that a text sorts as in MySQL. Raises: MySQLError (1235)."""
    if value.type.kind is not Kind.TEXT:
        return value.sql
    if value.type.is_partial:
        raise Mistake.NOT_SUPPORTED("the order of ENUM and SET")
    return f"{value.sql} COLLATE SORTED"


def align(values: Sequence[Fragment], *, is_order: bool = False) -> list[str]:
    """Returns the SQL of values that are compared with each other, in a common type.

    `is_order`: whether one is less is asked, not whether they are equal.
    """
    kinds = {value.type.kind for value in values} - {Kind.NULL}
    has_year = any(value.type.is_partial for value in values) and Kind.INTEGER in kinds
    if has_year and any(len(value.literal or "0000") < 4 for value in values):
        raise Mistake.NOT_SUPPORTED("a comparison of a YEAR with two digits")
    if kinds <= types.NUMBERS:
        if kinds & types.FLOATS:
            values = [to_double(value) for value in values]
        return [value.sql for value in values]
    if kinds <= {Kind.TEXT}:
        first = ordered(values[0]) if is_order else collated(values[0])
        return [first, *(value.sql for value in values[1:])]
    if kinds & types.NUMBERS:
        return [to_number(value).sql for value in values]
    if any(value.type.kind is Kind.TEXT and value.literal is None for value in values):
        raise Mistake.NOT_SUPPORTED("a comparison of a date with a text")
    kind = next(kind for kind in (Kind.DATETIME, Kind.DATE, Kind.TIME) if kind in kinds)
    return [to_temporal(value, kind).sql for value in values]


def choose(tests: Sequence[str], values: Sequence[Fragment]) -> Fragment:
    """Returns a CASE over tests; `values` has one more, for when none holds."""
    kind = types.merge_types(value.type for value in values)
    *chosen, default = [convert(value, kind).sql for value in values]
    branches = " ".join(
        f"WHEN {test} THEN {value}" for test, value in zip(tests, chosen, strict=True)
    )
    return Fragment(f"(CASE {branches} ELSE {default} END)", kind)


_INEXACT = frozenset({Kind.TEXT, *types.FLOATS})


def store(value: Fragment, column: types.ColumnSchema, row: int = 1) -> str:
    """Returns a value's SQL as the column stores it. Raises: MySQLError for bad literals."""
    if value.type.kind is Kind.NULL:
        return "NULL"
    if column.type.is_opaque or (column.type.is_partial and column.type.kind in _INEXACT):
        raise Mistake.NOT_SUPPORTED(f"a value for the type {column.declared:.40}")
    if column.type.kind is Kind.INTEGER and value.type.kind in types.FLOATS:
        value = Fragment(f"my_round({value.sql}, 0, 0)", value.type)  # halves to even numbers
    if column.type.kind in types.NUMBERS and value.type.kind in types.TEMPORALS:
        value = to_number(value)
    if value.literal is not None:
        read = {Kind.TEXT: str, Kind.DOUBLE: float}.get(value.type.kind, Decimal)
        stored = stored_value(read(value.literal), column.type, column.name, row)
        return types.quote_text(stored) if isinstance(stored, str) else repr(stored)
    is_inexact = value.type.kind is Kind.DECIMAL and not value.type.is_exact
    if column.type.kind is Kind.TEXT:
        if is_inexact or value.type.kind is Kind.FLOAT:
            raise Mistake.NOT_SUPPORTED("a FLOAT or a quotient in a column of text")
        value = to_text(value)
    elif is_inexact and column.type.kind in _INEXACT and not value.sql.startswith("my_quotient("):
        raise Mistake.NOT_SUPPORTED("a quotient or an average in a column of floats")
    declared, name = map(types.quote_text, (column.declared, column.name))
    return f"my_store({value.sql}, {declared}, {name}, {row})"
