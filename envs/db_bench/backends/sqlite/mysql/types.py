"""Column and expression types, and the schema that statements are translated against."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
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
    """A type. `length` is bits of an integer, digits of a decimal, most characters of a text.

    `scale`: decimals. `is_exact` False: SQLite's value has more decimals than `scale` (AVG, `/`).
    `is_padded`: a CHAR, which loses the spaces at its end.
    """

    kind: Kind
    scale: int = 0
    length: int | None = None
    is_unsigned: bool = False
    is_exact: bool = True
    is_padded: bool = False


INTEGER = SqlType(Kind.INTEGER, length=64)
DOUBLE = SqlType(Kind.DOUBLE)
TEXT = SqlType(Kind.TEXT)
DATE = SqlType(Kind.DATE)
DATETIME = SqlType(Kind.DATETIME)
TIME = SqlType(Kind.TIME)
NULL = SqlType(Kind.NULL)

_INTEGER_BITS = {
    **dict.fromkeys(("TINYINT", "BOOL", "BOOLEAN"), 8),
    "SMALLINT": 16,
    "MEDIUMINT": 24,
    **dict.fromkeys(("INT", "INTEGER"), 32),
    "BIGINT": 64,
}
_DECIMALS = ("DECIMAL", "NUMERIC", "DEC", "FIXED")
_SIZED_TEXTS = ("CHAR", "VARCHAR")
_OTHER_TYPES = {
    "FLOAT": SqlType(Kind.FLOAT),
    "DOUBLE": DOUBLE,
    "TINYTEXT": SqlType(Kind.TEXT, length=255),
    "TEXT": SqlType(Kind.TEXT, length=65535),
    **dict.fromkeys(("MEDIUMTEXT", "LONGTEXT"), TEXT),
    "DATE": DATE,
    **dict.fromkeys(("DATETIME", "TIMESTAMP"), DATETIME),
    "TIME": TIME,
}
REFUSED_TYPES = {
    "YEAR": SqlType(Kind.INTEGER, length=16),
    **dict.fromkeys(("BIT", "SERIAL"), INTEGER),
    **dict.fromkeys(("ENUM", "SET", "JSON", "BINARY", "VARBINARY"), TEXT),
    **dict.fromkeys(("BLOB", "TINYBLOB", "MEDIUMBLOB", "LONGBLOB"), TEXT),
    "REAL": DOUBLE,
}
"""Types of MySQL whose ways are not emulated. A task's column is held as the type beside it."""
TYPE_NAMES = frozenset(
    {*_INTEGER_BITS, *_DECIMALS, *_SIZED_TEXTS, *_OTHER_TYPES, *REFUSED_TYPES}
    | {"NATIONAL", "NCHAR", "NVARCHAR", "LONG", "GEOMETRY", "POINT", "LINESTRING", "POLYGON"}
)
_MAX_KEPT_CHARS = 100
_OBJECT_BYTES = 500
_CHAR_BYTES = 4
_TYPE = re.compile(
    r"\s*([A-Z]+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*(UNSIGNED)?\s*(.*)",
    re.ASCII | re.IGNORECASE | re.DOTALL,
)


def parse_type(declared: str, is_task: bool = False) -> SqlType:
    """Returns the type that a declaration such as `DECIMAL(10,2) UNSIGNED` means.

    `is_task`: a task's column, which is held as the nearest type where this one is not emulated.
    Raises: MySQLError (1064, 1235) for one that MySQL does not know, or that is not emulated.
    """
    is_short = len(declared) <= _MAX_KEPT_CHARS
    return _kept_type(declared, is_task) if is_short else _parse_type(declared, is_task)


def _parse_type(declared: str, is_task: bool) -> SqlType:
    match = _TYPE.match(declared)
    if match is None or match[1].upper() not in TYPE_NAMES:
        raise Mistake.SYNTAX(declared, 1)
    name, is_unsigned = match[1].upper(), match[4] is not None
    sizes = [int(size) for size in match.groups()[1:3] if size]
    refused = _refuse(name, sizes, is_unsigned, match[5])
    if refused and not is_task:
        raise Mistake.NOT_SUPPORTED(refused)
    if name in _INTEGER_BITS:
        return SqlType(Kind.INTEGER, length=_INTEGER_BITS[name], is_unsigned=is_unsigned)
    if name in _DECIMALS:
        digits, scale = (*sizes, 0)[:2] if sizes else (10, 0)
        return SqlType(Kind.DECIMAL, scale, digits, is_unsigned)
    if name in _SIZED_TEXTS:
        if name == "VARCHAR" and not sizes:
            raise Mistake.SYNTAX(declared, 1)
        return SqlType(Kind.TEXT, length=(*sizes, 1)[0], is_padded=name == "CHAR")
    known = _OTHER_TYPES.get(name) or REFUSED_TYPES.get(name)
    if known is None:
        raise Mistake.NOT_SUPPORTED(name)
    return replace(known, length=sizes[0]) if sizes and name == "TEXT" else known


def _refuse(name: str, sizes: list[int], is_unsigned: bool, rest: str) -> str:
    """Returns what of a declaration is not emulated, "" if all is."""
    if name in REFUSED_TYPES or rest:
        return f"{name} {rest}".strip()
    if sizes and name in ("FLOAT", "DOUBLE", "TIME", "DATETIME", "TIMESTAMP"):
        return f"{name} with digits"
    if name in _DECIMALS and sizes and sizes[0] > MAX_EXACT_DIGITS:
        return f"DECIMAL of more than {MAX_EXACT_DIGITS} digits"
    return "UNSIGNED" if is_unsigned else ""


_kept_type = lru_cache(maxsize=512)(_parse_type)

_AFFINITIES = {
    Kind.INTEGER: "INTEGER",
    **dict.fromkeys((Kind.DECIMAL, Kind.FLOAT, Kind.DOUBLE), "REAL"),
    **dict.fromkeys((Kind.TEXT, *TEMPORALS), "TEXT COLLATE NOCASE"),
}


INTERNAL = "\U000f0000"
"""Begins the names that this package makes: no name in MySQL has a character above U+FFFF."""


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
    """A column; `declared` is the MySQL type as written."""

    name: str
    declared: str
    type: SqlType
    is_nullable: bool = True

    @property
    def definition(self) -> str:
        """Returns the column's definition for SQLite's CREATE TABLE."""
        nullability = "" if self.is_nullable else " NOT NULL"
        return f"{quote_name(self.name)} {_AFFINITIES[self.type.kind]}{nullability}"


@dataclass(frozen=True, eq=False)
class TableSchema:
    """A table, equal only to itself."""

    name: str
    columns: tuple[ColumnSchema, ...]
    primary_key: tuple[str, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, ColumnSchema]:
        """The columns by name in lower case (MySQL's column names have no case)."""
        return {column.name.lower(): column for column in self.columns}

    @cached_property
    def row_id(self) -> str:
        """SQLite's name of the row's number: one that is no column's. Raises: MySQLError."""
        for name in ("rowid", "_rowid_", "oid"):
            if name not in self.by_name:
                return name
        raise Mistake.NOT_SUPPORTED("columns rowid, _rowid_ and oid in one table")

    @cached_property
    def num_bytes(self) -> int:
        """About the memory that it takes, with its definition and sources of it."""
        num_chars = sum(len(c.name) + len(c.declared) for c in self.columns)
        return _OBJECT_BYTES * (1 + len(self.columns)) + 3 * _CHAR_BYTES * num_chars

    @cached_property
    def sqlite_ddl(self) -> str:
        """The CREATE TABLE statement for SQLite."""
        definitions = [column.definition for column in self.columns]
        if self.primary_key:  # no PRIMARY KEY, which would be the row's number itself
            definitions.append(f"UNIQUE ({', '.join(map(quote_name, self.primary_key))})")
        return f"CREATE TABLE {quote_name(self.name)} ({', '.join(definitions)})"


@lru_cache(maxsize=1024)
def table_schema(name: str, columns: tuple[tuple[str, str], ...]) -> TableSchema:
    """Returns the schema of a task's table. Raises: MySQLError for a type MySQL lacks."""
    schemas = (
        ColumnSchema(column, text, parse_type(text, is_task=True)) for column, text in columns
    )
    return TableSchema(name, tuple(schemas))


@dataclass(frozen=True)
class Schema:
    """A database: its name and its tables. Hashable, cheaply."""

    name: str
    tables: tuple[TableSchema, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.name, self.tables)))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def num_bytes(self) -> int:
        """About the memory that it takes."""
        return _OBJECT_BYTES + sum(table.num_bytes for table in self.tables)

    @cached_property
    def by_name(self) -> dict[str, TableSchema]:
        """The tables by name (case matters, as on Linux)."""
        return {table.name: table for table in self.tables}

    def table(self, name: str) -> TableSchema:
        """Returns a table. Raises: MySQLError (1146)."""
        if name not in self.by_name:
            raise Mistake.NO_TABLE(self.name, name)
        return self.by_name[name]


def merge_types(types: Iterable[SqlType]) -> SqlType:
    """Returns the type that CASE, COALESCE or UNION gives to values of these types.

    >>> merge_types([INTEGER, SqlType(Kind.DECIMAL, 2)]).scale
    2
    """
    known = [t for t in types if t.kind is not Kind.NULL]
    if not known:
        return NULL
    kinds = {t.kind for t in known}
    scale = max(t.scale for t in known)
    if kinds & FLOATS and kinds <= NUMBERS:
        return known[0] if kinds == {Kind.FLOAT} else DOUBLE
    if len(kinds) == 1:
        return replace(known[0], scale=scale, is_exact=all(t.is_exact for t in known))
    if kinds <= NUMBERS:
        return SqlType(Kind.DECIMAL, scale, is_exact=all(t.is_exact for t in known))
    return DATETIME if kinds == {Kind.DATE, Kind.DATETIME} else TEXT
