"""MySQL's conversions between numbers, texts and dates: in expressions, and into columns."""

from collections.abc import Sequence
from contextvars import ContextVar
from decimal import Decimal

from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import Fragment
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.number_functions import NUMBER
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.rows import SQLiteValue
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.storage import stored_value
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.temporal import normalize, parse_datetime
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    BLOB,
    DATETIME,
    DOUBLE,
    INTEGER,
    NUMBERS,
    TEMPORALS,
    TEXT,
    ColumnSchema,
    Kind,
    SqlType,
    merge_types,
    quote_text,
)

_DATES = frozenset({Kind.DATE, Kind.DATETIME})
STRICT: ContextVar[bool] = ContextVar("STRICT", default=False)
"""Whether the statement changes tables: then a text that is no number is an error (1292).

A context variable, since conversions are called from everywhere, mostly without a scope.
"""


def to_number(value: Fragment) -> Fragment:
    """Returns a value as MySQL uses it in arithmetic."""
    kind = value.type.kind
    if kind is Kind.TEXT or kind is Kind.BLOB:
        literal = value.literal
        if literal is not None and (NUMBER.fullmatch(literal) or not STRICT.get()):
            number = NUMBER.match(literal)
            return Fragment(number[1] if number else "0", DOUBLE)
        if STRICT.get():
            return Fragment(f"my_number({value.sql})", DOUBLE)
        return Fragment(f"CAST({value.sql} AS REAL)", DOUBLE)
    if kind in TEMPORALS:
        return Fragment(f"my_temporal_number({value.sql})", INTEGER)
    return value


def to_text(value: Fragment) -> Fragment:
    """Returns a value as MySQL prints it."""
    kind = value.type.kind
    if kind is Kind.DECIMAL or (kind is Kind.DOUBLE and value.type.scale):
        return Fragment(f"my_decimal_text({value.sql}, {value.type.scale})", TEXT)
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return Fragment(f"my_float_text({value.sql}, {int(kind is Kind.FLOAT)})", TEXT)
    if kind in (Kind.INTEGER, Kind.UNKNOWN):
        return Fragment(f"CAST({value.sql} AS TEXT)", TEXT)
    return value._replace(type=TEXT) if kind in TEMPORALS else value


def to_temporal(value: Fragment, kind: Kind) -> Fragment:
    """Returns a value as a DATE, DATETIME or TIME to compare with. Raises: MySQLError (1525)."""
    if value.type.kind is kind or value.type.kind is Kind.NULL:
        return value
    if value.literal is not None:
        text = normalize(value.literal, kind)
        if text is None:
            raise Mistake.BAD_LITERAL(kind.upper(), value.literal)
        return Fragment(quote_text(text), SqlType(kind), literal=text)
    if value.type.kind is Kind.DATE and kind is Kind.DATETIME:
        return Fragment(f"({value.sql} || ' 00:00:00')", DATETIME)
    return Fragment(f"my_temporal({value.sql}, '{kind}')", SqlType(kind))


def convert(value: Fragment, target: SqlType) -> Fragment:
    """Returns a value of a CASE, UNION or the like as the type that they have together."""
    kind = value.type.kind
    if target.kind is kind or Kind.NULL in (kind, target.kind) or target.kind is Kind.UNKNOWN:
        return value
    if target.kind is Kind.TEXT:
        return to_text(value)
    if target.kind in TEMPORALS:
        return to_temporal(value, target.kind)
    return Fragment(to_number(value).sql, target)


def collated(value: Fragment) -> str:
    """Returns a value's SQL so that comparing it ignores case where it is a text."""
    if value.type.kind is not Kind.TEXT or value.is_collated:
        return value.sql
    return f"{value.sql} COLLATE NOCASE"


def align(values: Sequence[Fragment]) -> list[str]:
    """Returns the SQL of values that are compared with each other, in a common type."""
    kinds = {value.type.kind for value in values} - {Kind.NULL, Kind.UNKNOWN}
    if kinds <= NUMBERS:
        return [value.sql for value in values]
    if kinds <= {Kind.TEXT, Kind.BLOB}:
        if BLOB.kind in kinds:
            return [f"{values[0].sql} COLLATE BINARY", *(value.sql for value in values[1:])]
        if any(value.is_collated for value in values[:1]):
            return [value.sql for value in values]
        return [f"{values[0].sql} COLLATE NOCASE", *(value.sql for value in values[1:])]
    if kinds & NUMBERS and not (kinds & _DATES and all(map(_may_be_date, values))):
        return [to_number(value).sql for value in values]
    return [to_temporal(value, _common_temporal(values, kinds)).sql for value in values]


def _may_be_date(value: Fragment) -> bool:
    """Returns whether a value is no number, or one such as 20220131."""
    if value.type.kind not in NUMBERS:
        return True
    return value.literal is not None and normalize(value.literal, Kind.DATETIME) is not None


def _common_temporal(values: Sequence[Fragment], kinds: set[Kind]) -> Kind:
    if kinds & TEMPORALS == {Kind.TIME}:
        return Kind.TIME
    if Kind.DATETIME in kinds:
        return Kind.DATETIME
    for value in values:
        moment = parse_datetime(value.literal) if value.literal is not None else None
        if (
            value.type.kind is Kind.TEXT
            and moment is not None
            and moment.time() != moment.min.time()
        ):
            return Kind.DATETIME
    return Kind.DATE


def choose(tests: Sequence[str], values: Sequence[Fragment]) -> Fragment:
    """Returns a CASE over tests; `values` has one more, for when none holds."""
    kind = merge_types(value.type for value in values)
    *chosen, default = [convert(value, kind).sql for value in values]
    branches = " ".join(
        f"WHEN {test} THEN {value}" for test, value in zip(tests, chosen, strict=True)
    )
    return Fragment(f"(CASE {branches} ELSE {default} END)", kind)


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
