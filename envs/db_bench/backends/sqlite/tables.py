"""How a task's tables get into SQLite: checked and converted as MySQL does, or from an image."""

import sqlite3
import threading
from collections.abc import Sequence
from functools import lru_cache

from agentpeft.envs.core.errors import DataError
from agentpeft.envs.db_bench.backends.protocol import Column, Table
from agentpeft.envs.db_bench.backends.sqlite.connection import GuardedConnection
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.rows import stored_value
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
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
            stored = [
                [
                    stored_value(value, column.type, column.name, row)
                    for row, value in enumerate(cells, 1)
                ]
                for column, cells in zip(columns, values, strict=True)
            ]
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
