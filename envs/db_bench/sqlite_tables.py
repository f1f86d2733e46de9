"""How a task's tables get into SQLite: checked and converted as MySQL does, or from an image."""

import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import lru_cache
from math import isfinite

from agentpeft.envs.db_bench.database import Column, Table, Value
from agentpeft.envs.db_bench.mysql.errors import MySQLError
from agentpeft.envs.db_bench.mysql.rows import SQLiteValue
from agentpeft.envs.db_bench.mysql.storage import stored_value
from agentpeft.envs.db_bench.mysql.types import (
    ColumnSchema,
    Kind,
    SqlType,
    TableSchema,
    is_name,
    quote_name,
    table_schema,
)
from agentpeft.envs.db_bench.sqlite_connection import GuardedConnection
from agentpeft.envs.errors import DataError

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
        layout = table_layout(table.name, table.columns)
        columns = layout.schema.columns
        try:
            values = list(zip(*table.rows, strict=True)) or [()] * len(columns)
            stored = [_stored(*pair) for pair in zip(columns, values, strict=True)]
            connection.fill(
                layout.schema.sqlite_ddl, layout.insert, list(zip(*stored, strict=True))
            )
        except (MySQLError, sqlite3.Error, ValueError) as error:
            connection.close()
            raise DataError(f"table {table.name!r} cannot be made: {error}") from None


@dataclass(frozen=True)
class TableLayout:
    """How a table definition is stored."""

    schema: TableSchema
    insert: str


@lru_cache(maxsize=1024)
def table_layout(name: str, columns: tuple[Column, ...]) -> TableLayout:
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
        schema = table_schema(name, columns)
    except MySQLError as error:
        raise DataError(f"table {name!r}: {error}") from None
    marks = ", ".join("?" * len(columns))
    insert = f"INSERT INTO {quote_name(name)} VALUES ({marks})"  # noqa: S608
    return TableLayout(schema, insert)


def _stored(column: ColumnSchema, values: Sequence[Value]) -> Sequence[SQLiteValue]:
    """Returns what a column stores for values. Raises: MySQLError."""
    plain = _plain_values(column.type, values)
    if len(plain) == len(values):
        return plain
    return [
        stored_value(value, column.type, column.name, row)
        for row, value in enumerate(values, start=1)
    ]


def _plain_values(sql_type: SqlType, values: Sequence[Value]) -> Sequence[SQLiteValue]:
    """Returns the values whose stored form needs no check: in most columns all, and fast."""
    if sql_type.kind is Kind.TEXT:
        size = sql_type.length or 255
        return [value for value in values if type(value) is str and len(value) <= size]
    if sql_type.kind is Kind.INTEGER:
        high = 1 << ((sql_type.length or 64) - 1)
        return [value for value in values if type(value) is int and 0 <= value < high]
    if sql_type.kind is Kind.DECIMAL:
        scale = sql_type.scale
        limit = 10.0 ** (min(sql_type.length or 10, 15) - scale)
        numbers = [float(value) for value in values if isinstance(value, float | Decimal)]
        return [value for value in numbers if 0 <= value < limit and round(value, scale) == value]
    if sql_type.kind is Kind.DATE:
        return [value.isoformat() for value in values if type(value) is date]
    if sql_type.kind is Kind.DOUBLE:
        return [value for value in values if type(value) is float and isfinite(value)]
    return ()
