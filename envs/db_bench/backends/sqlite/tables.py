"""How a task's tables get into SQLite: checked and converted as MySQL does, or from an image."""

import sqlite3
import threading
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from functools import lru_cache
from math import isfinite
from typing import Any

from agentpeft.envs.core.errors import DataError
from agentpeft.envs.db_bench.backends.protocol import Column, Table, Value
from agentpeft.envs.db_bench.backends.sqlite.connection import GuardedConnection
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.rows import stored_value
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    ColumnSchema,
    Kind,
    SQLiteValue,
    SqlType,
    TableSchema,
    is_name,
    quote_name,
    table_schema,
)

_MAX_IMAGES = 512
_MAX_IMAGE_BYTES = 64 * 1024


class TableImages:
    """Databases as bytes, by the identity of the tables that they hold; thread-safe.

    Only what is opened a second time gets an image: most tasks of a generator come once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[int, ...], tuple[Sequence[Table], bytes]] = {}

    def find(self, tables: Sequence[Table]) -> bytes:
        """Returns the image of exactly these objects, nothing if there is none."""
        kept = self._kept.get(tuple(map(id, tables)))
        return kept[1] if kept else b""

    def keep(self, tables: Sequence[Table], connection: GuardedConnection) -> None:
        """Takes the image of a fresh database if its tables were here before."""
        key = tuple(map(id, tables))
        image = connection.image() if key in self._kept else b""
        if len(image) > _MAX_IMAGE_BYTES:
            return
        with self._lock:
            while len(self._kept) >= _MAX_IMAGES:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = (tuple(tables), image)  # as it holds the objects, their ids stay


def fill(connection: GuardedConnection, tables: Sequence[Table]) -> None:
    """Creates tables; closes the connection where that fails. Raises: DataError."""
    for table in tables:
        schema = check_schema(table.name, table.columns)
        columns = schema.columns
        marks = ", ".join("?" * len(columns))
        insert = f"INSERT INTO {quote_name(table.name)} VALUES ({marks})"  # noqa: S608
        try:
            values = list(zip(*table.rows, strict=True)) or [()] * len(columns)
            stored = [_stored(*pair) for pair in zip(columns, values, strict=True)]
            connection.fill(schema.sqlite_ddl, insert, list(zip(*stored, strict=True)))
        except (MySQLError, sqlite3.Error, ValueError) as error:
            connection.close()
            raise DataError(f"table {table.name!r} cannot be made: {error}") from None


@lru_cache(maxsize=1024)
def check_schema(name: str, columns: tuple[Column, ...]) -> TableSchema:
    """Returns how a table is stored. Raises: DataError for what MySQL would not create."""
    names = [column.name for column in columns]
    for kind, identifier in [("table", name), *(("column", column) for column in names)]:
        if not is_name(identifier):
            raise DataError(f"table {name!r}: incorrect {kind} name {identifier!r}")
    if not names:
        raise DataError(f"table {name!r}: a table must have at least one column")
    if len({column.lower() for column in names}) < len(names):
        raise DataError(f"table {name!r}: duplicate column name among {names}")
    try:
        return table_schema(name, columns)
    except MySQLError as error:
        raise DataError(f"table {name!r}: {error}") from None


def _stored(column: ColumnSchema, values: Sequence[Value]) -> Sequence[SQLiteValue]:
    """Returns what a column stores for values. Raises: MySQLError."""
    plain = _plain_values(column.type, values)
    if plain is not None:
        return plain
    return [
        stored_value(value, column.type, column.name, row)
        for row, value in enumerate(values, start=1)
    ]


_PLAIN_TYPES: dict[Kind, set[type]] = {
    Kind.TEXT: {str},
    Kind.INTEGER: {int},
    Kind.DECIMAL: {Decimal},
    Kind.DATE: {date},
    Kind.FLOAT: {float},
    Kind.DOUBLE: {float},
}
_MAX_QUARTERS = 1 << 20
"""Multiples of a quarter up to this many are the same in single precision."""


def _plain_values(sql_type: SqlType, values: Sequence[Value]) -> Sequence[SQLiteValue] | None:
    """Returns a column's stored form where it needs no check, as in most; quickly, else None."""
    kind = sql_type.kind
    if not values or set(map(type, values)) != _PLAIN_TYPES.get(kind):
        return None
    plain: Any = values
    if kind is Kind.TEXT:
        return plain if max(map(len, plain)) <= (sql_type.length or 255) else None
    if kind is Kind.INTEGER:
        high = 1 << ((sql_type.length or 64) - 1)
        return plain if min(plain) >= 0 and max(plain) < high else None
    if kind is Kind.DECIMAL:
        scale = sql_type.scale
        limit = 10.0 ** (min(sql_type.length or 10, 15) - scale)
        numbers = list(map(float, plain))
        is_plain = all(0 <= number < limit and round(number, scale) == number for number in numbers)
        return numbers if is_plain else None
    if kind is Kind.DATE:
        return [value.isoformat() for value in plain]
    if kind is Kind.DOUBLE:
        return plain if all(map(isfinite, plain)) else None
    quarters = [4 * number for number in plain]
    is_plain = all(number.is_integer() and abs(number) < _MAX_QUARTERS for number in quarters)
    return plain if is_plain else None
