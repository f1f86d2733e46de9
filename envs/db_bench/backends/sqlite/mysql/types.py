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
DIVISION_SCALE = 4
_MAX_NAME_CHARS = 64

Value: TypeAlias = int | float | str | bytes | Decimal | date | datetime | timedelta | None
"""What mysql-connector returns for a value."""
Row: TypeAlias = tuple[Value, ...]


class Kind(StrEnum):
    """What a value is. `FLOAT` is single precision; `UNKNOWN` takes SQLite's own type."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    FLOAT = "float"
    DOUBLE = "double"
    TEXT = "text"
    DATE = "date"
    DATETIME = "datetime"
    TIME = "time"
    BLOB = "blob"
    NULL = "null"
    UNKNOWN = "unknown"


NUMBERS = frozenset({Kind.INTEGER, Kind.DECIMAL, Kind.FLOAT, Kind.DOUBLE})
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
BLOB = SqlType(Kind.BLOB)
NULL = SqlType(Kind.NULL)
UNKNOWN = SqlType(Kind.UNKNOWN)

_INTEGER_BITS = {
    **dict.fromkeys(("TINYINT", "BOOL", "BOOLEAN"), 8),
    **dict.fromkeys(("SMALLINT", "YEAR"), 16),
    **dict.fromkeys(("INT", "INTEGER"), 32),
    **dict.fromkeys(("BIGINT", "BIT", "SERIAL"), 64),
    "MEDIUMINT": 24,
}
_OTHER_TYPES = {
    "FLOAT": SqlType(Kind.FLOAT),
    **dict.fromkeys(("DOUBLE", "REAL", "DOUBLE PRECISION"), DOUBLE),
    "CHAR": SqlType(Kind.TEXT, length=1, is_padded=True),
    **dict.fromkeys(("ENUM", "SET", "JSON", "LONGTEXT", "MEDIUMTEXT"), TEXT),
    "TEXT": SqlType(Kind.TEXT, length=65535),
    "TINYTEXT": SqlType(Kind.TEXT, length=255),
    "DATE": DATE,
    **dict.fromkeys(("DATETIME", "TIMESTAMP"), DATETIME),
    "TIME": TIME,
    **dict.fromkeys(("BLOB", "TINYBLOB", "MEDIUMBLOB", "LONGBLOB", "BINARY", "VARBINARY"), BLOB),
}
_MAX_KEPT_CHARS = 100
_OBJECT_BYTES = 500
_CHAR_BYTES = 4
_TYPE = re.compile(
    r"\s*([A-Z_]+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?", re.ASCII | re.IGNORECASE
)


def parse_type(declared: str) -> SqlType:
    """Returns the type that a declaration such as `DECIMAL(10,2) UNSIGNED` means.

    Raises: MySQLError (1064) for one that MySQL does not know.
    """
    return _kept_type(declared) if len(declared) <= _MAX_KEPT_CHARS else _parse_type(declared)


def _parse_type(declared: str) -> SqlType:
    match = _TYPE.match(declared)
    name = match[1].upper() if match else ""
    size = int(match[2]) if match and match[2] else None
    is_unsigned = "UNSIGNED" in declared.upper()
    if name in _INTEGER_BITS:
        return SqlType(Kind.INTEGER, length=_INTEGER_BITS[name], is_unsigned=is_unsigned)
    if name in ("DECIMAL", "NUMERIC", "DEC", "FIXED"):
        scale = int(match[3]) if match and match[3] else 0
        return SqlType(Kind.DECIMAL, scale, 10 if size is None else size, is_unsigned)
    if name == "VARCHAR" and size is not None:
        return SqlType(Kind.TEXT, length=size)
    if name not in _OTHER_TYPES:
        raise Mistake.SYNTAX(declared, 1)
    known = _OTHER_TYPES[name]
    if size is not None and name in ("CHAR", "TEXT"):
        return replace(known, length=size)
    return known


_kept_type = lru_cache(maxsize=512)(_parse_type)

_AFFINITIES = {
    Kind.INTEGER: "INTEGER",
    **dict.fromkeys((Kind.DECIMAL, Kind.FLOAT, Kind.DOUBLE), "REAL"),
    **dict.fromkeys((Kind.TEXT, *TEMPORALS), "TEXT COLLATE NOCASE"),
    Kind.BLOB: "BLOB",
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
    """A column. `default` is a SQLite expression; `declared` the MySQL type as written."""

    name: str
    declared: str
    type: SqlType
    is_nullable: bool = True
    default: str | None = None
    is_auto_increment: bool = False

    @property
    def definition(self) -> str:
        """Returns the column's definition for SQLite's CREATE TABLE."""
        parts = [quote_name(self.name), _AFFINITIES[self.type.kind]]
        if not self.is_nullable:
            parts.append("NOT NULL")
        if self.default is not None:
            parts.append(f"DEFAULT ({self.default})")
        return " ".join(parts)


@dataclass(frozen=True, eq=False)
class TableSchema:
    """A table, equal only to itself. `unique_keys`: (name, columns); the primary key is apart."""

    name: str
    columns: tuple[ColumnSchema, ...]
    primary_key: tuple[str, ...] = ()
    unique_keys: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @cached_property
    def by_name(self) -> dict[str, ColumnSchema]:
        """The columns by name in lower case (MySQL's column names have no case)."""
        return {column.name.lower(): column for column in self.columns}

    def column(self, name: str, clause: str) -> ColumnSchema:
        """Returns a column. Raises: MySQLError (1054) that names `clause`."""
        if name.lower() not in self.by_name:
            raise Mistake.UNKNOWN_COLUMN(name, clause)
        return self.by_name[name.lower()]

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
        num_chars = sum(len(c.name) + len(c.declared) + len(c.default or "") for c in self.columns)
        return _OBJECT_BYTES * (1 + len(self.columns)) + 3 * _CHAR_BYTES * num_chars

    @cached_property
    def sqlite_ddl(self) -> str:
        """The CREATE TABLE statement for SQLite."""
        definitions = [column.definition for column in self.columns]
        keys = [key for _, key in self.unique_keys]
        only = self.by_name[self.primary_key[0].lower()] if len(self.primary_key) == 1 else None
        if only is not None and only.type.kind is Kind.INTEGER:
            index = self.columns.index(only)
            definitions[index] = f"{quote_name(only.name)} INTEGER PRIMARY KEY" + (
                " AUTOINCREMENT" if only.is_auto_increment else ""
            )
        elif self.primary_key:
            definitions.append(f"PRIMARY KEY ({', '.join(map(quote_name, self.primary_key))})")
        definitions += [f"UNIQUE ({', '.join(map(quote_name, key))})" for key in keys]
        return f"CREATE TABLE {quote_name(self.name)} ({', '.join(definitions)})"


@lru_cache(maxsize=1024)
def table_schema(name: str, columns: tuple[tuple[str, str], ...]) -> TableSchema:
    """Returns the schema of a task's table. Raises: MySQLError for a type MySQL lacks."""
    schemas = (ColumnSchema(column, text, parse_type(text)) for column, text in columns)
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

    def with_table(self, table: TableSchema) -> "Schema":
        """Returns this schema with `table` in it, in place of one of that name."""
        return Schema(self.name, (*self.without(table.name).tables, table))

    def without(self, name: str) -> "Schema":
        """Returns this schema without a table."""
        return Schema(self.name, tuple(table for table in self.tables if table.name != name))


def merge_types(types: Iterable[SqlType]) -> SqlType:
    """Returns the type that CASE, COALESCE or UNION gives to values of these types.

    >>> merge_types([INTEGER, SqlType(Kind.DECIMAL, 2)]).scale
    2
    """
    known = [t for t in types if t.kind is not Kind.NULL]
    if not known:
        return NULL
    kinds = {t.kind for t in known}
    if len(kinds) == 1:
        first = known[0]
        if first.kind is Kind.DOUBLE:
            return DOUBLE
        scale = max(t.scale for t in known)
        return replace(first, scale=scale, is_exact=all(t.is_exact for t in known))
    if Kind.UNKNOWN in kinds:
        return UNKNOWN
    if kinds <= NUMBERS:
        if kinds & {Kind.FLOAT, Kind.DOUBLE}:
            return DOUBLE
        scale = max(t.scale for t in known)
        return SqlType(Kind.DECIMAL, scale, is_exact=all(t.is_exact for t in known))
    if kinds == {Kind.DATE, Kind.DATETIME}:
        return DATETIME
    return TEXT
