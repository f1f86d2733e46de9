"""One connection to a MySQL-protocol server: the only module that imports mysql-connector.

The connector's pure Python protocol is used: its C extension does not load on every system, and
for small results a statement costs 0.1 ms either way.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeAlias, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from mysql.connector import Error, MySQLConnection
from mysql.connector.conversion import MySQLConverter
from mysql.connector.errors import ReadTimeoutError
from mysql.connector.types import DescriptionType

from agentpeft.envs.db_bench.database import Row, Value
from agentpeft.envs.errors import SettingsError

_LOST_ERRNOS = {1053, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2002, 2003, 2006, 2013, 2055}
_AUTHENTICATION_ERRNOS = {-1, 2012, 2026, 2059, 2061, 3159}
_MAX_RESULT_BYTES = 4 * 2**20
_CHUNK_ROWS = 16
_SOCKET = "unix_socket"
_INTERRUPTED = 1317

RawRow: TypeAlias = tuple[bytes, ...]  # with None for NULL: the connector types it so


class MySQLError(Exception):
    """An error of the server; `text` is as `1146 (42S02): Table 'x' doesn't exist`."""

    def __init__(self, errno: int, text: str) -> None:
        super().__init__(text)
        self.errno = errno
        self.text = text


class ConnectionLostError(MySQLError):
    """The connection is gone, or was never made; the server may live or not."""


@dataclass(frozen=True)
class Address:
    """Where a server is and who logs in. `unix_socket` None is TCP."""

    user: str
    password: str = field(repr=False)
    host: str
    port: int
    unix_socket: str | None = None

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Returns the address in `mysql://user:password@host:port[/][?unix_socket=path]`.

        Raises: SettingsError.
        """
        try:
            parts = urlsplit(url)
            options, port = dict(parse_qsl(parts.query)), parts.port or 3306
        except ValueError as error:
            raise SettingsError(f"not a database URL ({error}): {_URL_SHAPE}") from None
        if parts.scheme != "mysql" or parts.path not in ("", "/") or options.keys() - {_SOCKET}:
            got = f"scheme {parts.scheme!r}, host {parts.hostname!r}, options {sorted(options)}"
            raise SettingsError(f"not a database URL: {_URL_SHAPE} without a path, got {got}")
        user, password = unquote(parts.username or "root"), unquote(parts.password or "")
        host = parts.hostname or "127.0.0.1"
        return cls(user, password, host, port, options.get(_SOCKET))

    def __str__(self) -> str:
        """Returns the URL without the password."""
        socket = f"?unix_socket={self.unix_socket}" if self.unix_socket else ""
        return f"mysql://{self.user}@{self.host}:{self.port}{socket}"

    @property
    def is_local(self) -> bool:
        """True where nothing leaves this machine, so that TLS (20 ms) would protect nothing."""
        return self.unix_socket is not None or self.host in ("127.0.0.1", "::1", "localhost")


_URL_SHAPE = "expected mysql://user:password@host:port or mysql://user@localhost?unix_socket=/path"


class _Connection(MySQLConnection):
    """Sends no settings after the login; those that differ from the server's are the caller's."""

    def _post_connection(self) -> None:
        pass


class MySQLClient:
    """A connection. Not thread-safe. Every method raises MySQLError or ConnectionLostError.

    `columns` are the column names of the last result.
    """

    def __init__(self, address: Address, read_timeout_s: int, database: str | None = None) -> None:
        """Connects, without TLS on this machine if the server permits."""
        settings: dict[str, str | int | bool | None] = {
            **{"user": address.user, "password": address.password, "database": database},
            **{"host": address.host, "port": address.port, "unix_socket": address.unix_socket},
            **{"charset": "utf8mb4", "collation": "utf8mb4_general_ci"},
            **{"connection_timeout": 10, "read_timeout": read_timeout_s},
        }
        with _translated_errors():
            self._connection = _connect(settings, address.is_local)
        self._converter = MySQLConverter("utf8mb4", use_unicode=True)
        self.columns: tuple[str, ...] = ()
        self.connection_id = cast(int, self._connection.connection_id)

    @property
    def is_in_transaction(self) -> bool:
        """True if the server said so at the end of the last statement."""
        return self._connection.in_transaction

    def query(self, sql: str) -> list[Row]:
        """Runs statements of ours and returns all rows of the last one."""
        rows: list[Row] = []
        with _translated_errors():
            for packet in self._connection.cmd_query_iter(sql.encode("utf-8", "replace")):
                rows = []
                if "columns" in packet:
                    raw_rows, _ = self._connection.get_rows(raw=True)
                    rows = self._to_python(cast(list[RawRow], raw_rows), packet["columns"])
        return rows

    def run(
        self, sql: str, max_rows: int, stop_query: Callable[[], None]
    ) -> tuple[list[Row], bool]:
        """Runs statements separated by `;` and returns the last one's rows, and if they were cut.

        The server splits them, and stops at the first error. A result of more than `max_rows` rows
        or 4 MiB is cut: `stop_query` is called (from another connection), what is under way is
        thrown away, and nothing after it runs.
        """
        rows: list[Row] = []
        with _translated_errors():
            for packet in self._connection.cmd_query_iter(sql.encode("utf-8", "replace")):
                rows = []
                if "columns" not in packet:
                    continue
                raw_rows, is_cut = self._fetch(max_rows)
                rows = self._to_python(raw_rows, packet["columns"])
                if is_cut:
                    stop_query()
                    self._drain()
                    return rows, True
        return rows, False

    def close(self) -> None:
        """Drops the connection; never raises."""
        with suppress(Error, OSError):
            self._connection.close()

    def _fetch(self, max_rows: int) -> tuple[list[RawRow], bool]:
        rows: list[RawRow] = []
        num_bytes = 0
        while len(rows) <= max_rows and num_bytes <= _MAX_RESULT_BYTES:
            chunk, end = self._connection.get_rows(count=_CHUNK_ROWS, raw=True)
            chunk = cast(list[RawRow], chunk)
            rows += chunk
            if end is not None:
                return rows[:max_rows], len(rows) > max_rows
            num_bytes += sum(len(value) for row in chunk for value in row if value)
        return rows[:max_rows], True

    def _drain(self) -> None:
        try:
            while self._connection.unread_result:
                self._connection.get_rows(count=_CHUNK_ROWS, raw=True)
        except Error as error:
            if error.errno != _INTERRUPTED:
                raise
        if self._connection.have_next_result:  # the kill came too late to stop the rest
            self.close()

    def _to_python(self, rows: list[RawRow], columns: list[DescriptionType]) -> list[Row]:
        self.columns = tuple(str(column[0]) for column in columns)
        try:
            converted = [self._converter.row_to_python(row, columns) for row in rows]
        except (ValueError, TypeError, LookupError):  # text in a character set the agent chose
            return [
                tuple(None if v is None else v.decode("utf-8", "replace") for v in row)
                for row in rows
            ]
        return [tuple(map(_plain_value, row)) for row in converted]


_LOST = "2013 (HY000): Lost connection to MySQL server during query"
_PLAIN_TYPES = (str, int, float, type(None))


def _plain_value(value: object) -> Value:
    """Returns text for the connector's bytearrays and sets, anything else as it is."""
    if isinstance(value, _PLAIN_TYPES):
        return value
    if isinstance(value, bytearray):
        return value.decode("utf-8", "replace")
    if isinstance(value, set):
        return ",".join(sorted(value))
    return cast(Value, value)


def _connect(settings: Mapping[str, str | int | bool | None], is_local: bool) -> MySQLConnection:
    if is_local:
        try:
            return _Connection(**settings, ssl_disabled=True)
        except Error as error:
            if error.errno not in _AUTHENTICATION_ERRNOS:
                raise
    return _Connection(**settings)


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Turns the connector's exceptions into ours; what leaves it out of step is a lost one."""
    try:
        yield
    except Error as error:
        errno, text = error.errno or -1, str(error)
        if isinstance(error, ReadTimeoutError):
            errno, text = 2013, _LOST
        if errno in _LOST_ERRNOS or errno < 1000:
            raise ConnectionLostError(errno, text) from None
        raise MySQLError(errno, text) from None
    except (OSError, ValueError, LookupError) as error:
        raise ConnectionLostError(2013, f"{_LOST} ({error})") from None
