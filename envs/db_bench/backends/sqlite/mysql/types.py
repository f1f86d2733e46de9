"""Column and expression types, and the schema that statements are translated against."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import TypeAlias

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake

MAX_SCALE = 30
MAX_EXACT_DIGITS = 15
"""SQLite holds decimals as doubles, which tell so many digits apart."""
DIVISION_SCALE = 4
_MAX_NAME_CHARS = 64

Value: TypeAlias = int | float | str | bytes | Decimal | date | datetime | timedelta | None
"""What mysql-connector returns for a value."""
Row: TypeAlias = tuple[Value, ...]
SQLiteValue: TypeAlias = int | float | str | bytes | None
Function: TypeAlias = Callable[..., SQLiteValue]
"""A function that SQLite calls."""


class Kind(StrEnum):
    """What a value is. `FLOAT` is single precision."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    FLOAT = "float"
    DOUBLE = "double"
    TEXT = "text"
    DATE = "date"
    DATETIME = "datetime"
    TIME = "time"
    NULL = "null"


NUMBERS = frozenset({Kind.INTEGER, Kind.DECIMAL, Kind.FLOAT, Kind.DOUBLE})
FLOATS = frozenset({Kind.FLOAT, Kind.DOUBLE})
TEMPORALS = frozenset({Kind.DATE, Kind.DATETIME, Kind.TIME})


@dataclass(frozen=True, slots=True)
class SqlType:
    """A type. `length`: bits of an integer or a TIMESTAMP, digits of a decimal, most characters.

    `scale`: decimals. `is_exact` False: SQLite's value has more than these (AVG, `/`).
    `is_padded`: a CHAR, which loses the spaces at its end. `is_partial`: a task's ENUM, SET, YEAR,
    FLOAT(5,2) or DATETIME(3), which is read and compared. `is_opaque`: no statement may name it.
    """

    kind: Kind
    scale: int = 0
    length: int | None = None
    is_unsigned: bool = False
    is_exact: bool = True
    is_padded: bool = False
    is_partial: bool = False
    is_opaque: bool = False


INTEGER = SqlType(Kind.INTEGER, length=64)
DOUBLE = SqlType(Kind.DOUBLE)
ROUNDED = SqlType(Kind.DOUBLE, is_exact=False)
"""Of a floating-point number that ROUND gives: it fixes how many decimals are shown."""
TEXT = SqlType(Kind.TEXT)
DATE = SqlType(Kind.DATE)
DATETIME = SqlType(Kind.DATETIME)
NULL = SqlType(Kind.NULL)

_TYPES = {
    **dict.fromkeys(("TINYINT", "BOOL", "BOOLEAN"), SqlType(Kind.INTEGER, length=8)),
    "SMALLINT": SqlType(Kind.INTEGER, length=16),
    "MEDIUMINT": SqlType(Kind.INTEGER, length=24),
    **dict.fromkeys(("INT", "INTEGER"), SqlType(Kind.INTEGER, length=32)),
    "BIGINT": INTEGER,
    **dict.fromkeys(("DECIMAL", "NUMERIC", "DEC", "FIXED"), SqlType(Kind.DECIMAL, length=10)),
    "FLOAT": SqlType(Kind.FLOAT),
    **dict.fromkeys(("DOUBLE", "REAL"), DOUBLE),
    "CHAR": SqlType(Kind.TEXT, length=1, is_padded=True),
    "VARCHAR": TEXT,
    "TINYTEXT": SqlType(Kind.TEXT, length=255),
    "TEXT": SqlType(Kind.TEXT, length=65535),
    **dict.fromkeys(("MEDIUMTEXT", "LONGTEXT"), TEXT),
    "DATE": DATE,
    "DATETIME": DATETIME,
    "TIMESTAMP": SqlType(Kind.DATETIME, length=32),
    "TIME": SqlType(Kind.TIME),
}
_OTHERS = {
    "YEAR": SqlType(Kind.INTEGER, length=16, is_partial=True),
    **dict.fromkeys(("ENUM", "SET"), SqlType(Kind.TEXT, is_partial=True)),
    **dict.fromkeys(("BIT", "SERIAL"), SqlType(Kind.INTEGER, length=64, is_opaque=True)),
    **dict.fromkeys(
        ("JSON", "BINARY", "VARBINARY", "BLOB", "TINYBLOB", "MEDIUMBLOB", "LONGBLOB"),
        SqlType(Kind.TEXT, is_opaque=True),
    ),
}
"""Types of MySQL that are not done. A task's column is held as the type beside it."""
TYPE_NAMES = frozenset(_TYPES)
_MOST = {"CHAR": 255, "VARCHAR": 16383}
"""The most characters of a text."""
_TYPE = re.compile(
    r"\s*([A-Z]+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*(UNSIGNED)?(.*)",
    re.ASCII | re.IGNORECASE | re.DOTALL,
)

_OPAQUE = re.compile("ZEROFILL|BINARY|_BIN|_CS|_AS_", re.IGNORECASE)
"""What makes a task's column opaque, such as a collation that tells case or accents apart."""


def parse_type(declared: str, is_task: bool = False) -> SqlType:
    """Returns the type that a declaration such as `DECIMAL(10,2) UNSIGNED` means.

    `is_task`: a task's column, which is held as the nearest type where this one is not done.
    Raises: MySQLError (1064, 1235) for one that MySQL does not know, or that is not done.
    """
    match = _TYPE.match(declared)
    name = match[1].upper() if match else ""
    kind = _TYPES.get(name) or (_OTHERS.get(name) if is_task else None)
    if match is None or kind is None or (name == "VARCHAR" and not match[2]):
        raise Mistake.SYNTAX(declared, 1)
    sizes = [int(size) for size in match.groups()[1:3] if size]
    is_sized = name in _MOST or kind.kind in (Kind.INTEGER, Kind.DECIMAL)
    is_long = sizes[:1] > [_MOST.get(name, MAX_EXACT_DIGITS)] or sizes[1:] > sizes[:1]
    if not is_task and ((sizes and not is_sized) or is_long or match[4]):
        raise Mistake.NOT_SUPPORTED(declared)
    is_rounded = bool(sizes[1:] if kind.kind in FLOATS else sizes and kind.kind in TEMPORALS)
    is_partial = kind.is_partial or is_rounded
    is_opaque = kind.is_opaque or _OPAQUE.search(match[5]) is not None
    kind = replace(kind, is_partial=is_partial, is_opaque=is_opaque)
    if kind.kind is Kind.DECIMAL and sizes:
        kind = replace(kind, length=sizes[0], scale=sizes[1] if sizes[1:] else 0)
    elif name in _MOST and sizes:
        kind = replace(kind, length=sizes[0])
    return replace(kind, is_unsigned=True) if match[4] else kind


_AFFINITIES = {
    Kind.INTEGER: "INTEGER",
    **dict.fromkeys((Kind.DECIMAL, Kind.FLOAT, Kind.DOUBLE), "REAL"),
    **dict.fromkeys((Kind.TEXT, *TEMPORALS), "TEXT COLLATE NOCASE"),
}


def is_name(name: str) -> bool:
    """Returns whether MySQL takes this for the name of a table or a column."""
    is_short = 0 < len(name) <= _MAX_NAME_CHARS
    return is_short and not name.endswith(" ") and min(name) > "\0" and max(name) <= "\uffff"


def quote_name(name: str) -> str:
    """Returns an identifier in SQLite's quotes."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Returns a text literal for SQLite (which cannot read a NUL character inside one)."""
    if "\0" in text:
        return f"CAST(x'{text.encode().hex()}' AS TEXT)"
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """A column. `declared`: the MySQL type as written."""

    name: str
    declared: str
    type: SqlType


@dataclass(frozen=True, eq=False)
class TableSchema:
    """A table, equal only to itself."""

    name: str
    columns: tuple[ColumnSchema, ...]

    @cached_property
    def by_name(self) -> dict[str, ColumnSchema]:
        """The columns by name in lower case (MySQL's column names have no case)."""
        return {column.name.lower(): column for column in self.columns}

    @cached_property
    def sqlite_ddl(self) -> str:
        """The CREATE TABLE statement for SQLite."""
        columns = (f"{quote_name(c.name)} {_AFFINITIES[c.type.kind]}" for c in self.columns)
        return f"CREATE TABLE {quote_name(self.name)} ({', '.join(columns)})"


@lru_cache(maxsize=1024)
def table_schema(name: str, columns: tuple[tuple[str, str], ...]) -> TableSchema:
    """Returns the schema of a task's table. Raises: MySQLError for a type MySQL lacks."""
    schemas = (
        ColumnSchema(column, text, parse_type(text, is_task=True)) for column, text in columns
    )
    return TableSchema(name, tuple(schemas))


@dataclass(frozen=True)
class Schema:
    """A database: its name and its tables."""

    name: str
    tables: tuple[TableSchema, ...]

    @cached_property
    def by_name(self) -> dict[str, TableSchema]:
        """The tables by name (case matters, as on Linux)."""
        return {table.name: table for table in self.tables}


def merge_types(types: Iterable[SqlType]) -> SqlType:
    """Returns the type that CASE, COALESCE or UNION gives to values of these types.

    >>> merge_types([INTEGER, SqlType(Kind.DECIMAL, 2)]).scale
    2
    """
    merged = list(types)
    known = [t for t in merged if t.kind is not Kind.NULL]
    if not known:
        return NULL
    if len({t.is_unsigned for t in merged}) > 1:
        raise Mistake.NOT_SUPPORTED("UNSIGNED merged with other types")
    kinds = {t.kind for t in known}
    scale, is_exact = max(t.scale for t in known), all(t.is_exact for t in known)
    if kinds & FLOATS and kinds <= NUMBERS:
        is_rounded = any(t == ROUNDED for t in known)
        return known[0] if kinds == {Kind.FLOAT} else ROUNDED if is_rounded else DOUBLE
    if len(kinds) == 1:
        length = max(t.length or 64 for t in known) if kinds == {Kind.INTEGER} else None
        is_partial = any(t.is_partial for t in known)
        kind = replace(known[0], scale=scale, is_exact=is_exact)
        return replace(kind, length=length, is_partial=is_partial)
    if kinds <= NUMBERS:
        return SqlType(Kind.DECIMAL, scale, is_exact=is_exact)
    return DATETIME if kinds == {Kind.DATE, Kind.DATETIME} else TEXT
