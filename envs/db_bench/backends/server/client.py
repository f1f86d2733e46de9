"""One connection to a MySQL-protocol server: the only module that imports mysql-connector.

The connector's pure Python protocol is used: its C extension does not load on every system, and
for small results a statement costs 0.1 ms either way.
"""

import math
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeAlias, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from mysql.connector import Error, MySQLConnection
from mysql.connector.conversion import MySQLConverter
from mysql.connector.errors import InterfaceError, ReadTimeoutError
from mysql.connector.network import MySQLSocket, NetworkBrokerPlain
from mysql.connector.types import DescriptionType

from agentpeft.envs.core.errors import SettingsError
from agentpeft.envs.db_bench.backends.protocol import Row, Value

_LOST_ERRNOS = {1053, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2002, 2003, 2006, 2013, 2055}
_AUTHENTICATION_ERRNOS = {-1, 2012, 2026, 2059, 2061, 3159}
_MAX_RESULT_BYTES = 4 * 2**20
_VALUE_BYTES = 16
"""Cost of a value besides its text: Python makes less than a million short ones a second."""
_BUFFER_BYTES = 64 * 1024
_HEADER_BYTES = 4
_LARGEST_PACKET = 0xFFFFFF
_SOCKET = "unix_socket"
_INTERRUPTED = 1317
_READ_TIMEOUT = 3024

RawRow: TypeAlias = tuple[bytes, ...]  # with None for NULL: the connector types it so


class ServerError(Exception):
    """An error of the server; `text` is as `1146 (42S02): Table 'x' doesn't exist`."""

    def __init__(self, errno: int, text: str) -> None:
        super().__init__(text)
        self.errno = errno
        self.text = text


class ConnectionLostError(ServerError):
    """The connection is gone, or was never made; the server may live or not."""


class DeadlineError(ConnectionLostError):
    """The answer did not arrive by the deadline; the connection can no longer be used."""


@dataclass(frozen=True)
class ResultLimits:
    """Limits of a result. `deadline_s`: when the connection is given up, by `time.monotonic`.

    `max_bytes` counts the values' texts and 16 bytes for each value.
    """

    max_rows: float = math.inf
    max_bytes: float = _MAX_RESULT_BYTES
    deadline_s: float = math.inf


@dataclass(frozen=True)
class Address:
    """A server's address and account; `unix_socket` None is TCP."""

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


class _Packets(NetworkBrokerPlain):
    """Reads packets through a buffer, and gives up at a deadline even if data keeps coming."""

    def __init__(self) -> None:
        super().__init__()
        self.deadline_s = math.inf
        self._data = b""
        self._position = 0

    def recv(self, sock: socket.socket, address: str) -> bytearray:  # noqa: ARG002 (the base's)
        """Returns the next packet with its header."""
        size = int.from_bytes(self._peek(sock, _HEADER_BYTES)[: _HEADER_BYTES - 1], "little")
        packet = self._peek(sock, _HEADER_BYTES + size)
        self._position += len(packet)
        self._pktnr = packet[_HEADER_BYTES - 1]
        return bytearray(packet)

    def skip_rows(self, sock: socket.socket) -> None:
        """Discards packets up to the one that ends the rows, without decoding them."""
        continues = False
        while True:
            # A packet's header is 3 bytes of size and a number. Rows end with an error (0xFF) or
            # with 0xFE in a short packet; one of the largest size is continued in the next.
            data, position, end = self._data, self._position, len(self._data) - _HEADER_BYTES
            while position < end:  # the packets in the buffer, a million a second
                size = int.from_bytes(data[position : position + _HEADER_BYTES - 1], "little")
                first = data[position + _HEADER_BYTES]
                is_end = size and (first == 0xFF or (first == 0xFE and size < 7))
                if is_end and not continues:  # an error, or the end
                    self._position = position
                    return
                continues = size == _LARGEST_PACKET
                position += _HEADER_BYTES + size
            self._data, self._position = data[position:], max(position - len(data), 0)
            self._data += self._receive(sock)

    def _peek(self, sock: socket.socket, size: int) -> bytes:
        """Returns the next `size` bytes, which stay in the buffer."""
        missing = self._position + size - len(self._data)
        if missing > 0:
            chunks = [self._data[self._position :]]
            while missing > 0:
                chunks.append(self._receive(sock))
                missing -= len(chunks[-1])
            self._data, self._position = b"".join(chunks), 0
        return self._data[self._position : self._position + size]

    def _receive(self, sock: socket.socket) -> bytes:
        if self.deadline_s < math.inf:
            sock.settimeout(max(self.deadline_s - time.monotonic(), 1e-6))
        try:
            chunk = sock.recv(_BUFFER_BYTES)
        except TimeoutError:
            raise ReadTimeoutError(errno=_READ_TIMEOUT) from None
        if self.deadline_s < time.monotonic():
            raise ReadTimeoutError(errno=_READ_TIMEOUT)
        if not chunk:
            raise InterfaceError(errno=2013)
        return chunk


class _Connection(MySQLConnection):
    """Sends no settings after the login: the caller sends those that it needs."""

    def __init__(self, **settings: str | int | bool | None) -> None:
        self.packets = _Packets()
        super().__init__(**settings)

    def skip_rows(self) -> None:
        """Discards the remaining rows, but not the packet that ends them."""
        if self._socket and self._socket.sock:
            self.packets.skip_rows(self._socket.sock)

    def _get_connection(self) -> MySQLSocket:
        made = super()._get_connection()
        made._netbroker = self.packets
        return made

    def _post_connection(self) -> None:
        pass


class MySQLClient:
    """A connection. Not thread-safe. Every method raises ServerError or ConnectionLostError.

    `columns` are the column names of the last result.
    """

    def __init__(self, address: Address, read_timeout_s: int, database: str | None = None) -> None:
        """Connects, without TLS on this machine if the server permits.

        Raises: DeadlineError where something accepts the connection and says nothing.
        """
        settings: dict[str, str | int | bool | None] = {
            **vars(address),
            "database": database,
            "charset": "utf8mb4",
            "collation": "utf8mb4_general_ci",
            "connection_timeout": 10,
            "read_timeout": read_timeout_s,
        }
        try:
            with _translated_errors():
                self._connection = _connect(settings, address.is_local)
        except ServerError as error:
            if error.errno == _READ_TIMEOUT:
                raise DeadlineError(2013, _LOST) from None
            raise
        self._converter = MySQLConverter("utf8mb4", use_unicode=True)
        self._is_closed = False
        self.columns: tuple[str, ...] = ()
        self.connection_id = cast(int, self._connection.connection_id)

    @property
    def is_in_transaction(self) -> bool:
        """True if the server said so at the end of the last statement."""
        return self._connection.in_transaction

    def query(self, sql: str, timeout_s: float = math.inf) -> list[Row]:
        """Runs statements of ours and returns all rows of the last one.

        Raises: DeadlineError after `timeout_s`, where the connection is closed.
        """
        limits = ResultLimits(max_bytes=math.inf, deadline_s=time.monotonic() + timeout_s)
        return self.run(sql, limits, lambda: None)[0]

    def run(
        self, sql: str, limits: ResultLimits, stop_query: Callable[[], None]
    ) -> tuple[list[Row], bool]:
        """Runs statements separated by `;` and returns the last one's rows, and if they were cut.

        The server splits them, and stops at the first error. A result over the limits is cut:
        `stop_query` is called (from another connection), what is under way is thrown away, and
        nothing after it runs; where the deadline passes meanwhile, the connection is closed.
        Raises: DeadlineError where there is no result at the deadline; it is closed then too.
        """
        rows: list[Row] = []
        with _translated_errors(), self._until(limits.deadline_s):
            for packet in self._connection.cmd_query_iter(sql.encode("utf-8", "replace")):
                rows = []
                if "columns" not in packet:
                    continue
                raw_rows, is_cut = self._fetch(limits)
                rows = self._to_python(raw_rows, packet["columns"])
                if is_cut:
                    stop_query()
                    self._drain()
                    return rows, True
        return rows, False

    @property
    def is_closed(self) -> bool:
        """True once `close` was called, or a flood made it necessary."""
        return self._is_closed

    def close(self) -> None:
        """Drops the connection; never raises."""
        self._is_closed = True
        with suppress(Error, OSError):
            self._connection.close()

    def _give_up(self) -> None:
        """Closes without saying goodbye: the server may have stopped reading."""
        self._is_closed = True
        self._connection.shutdown()

    @contextmanager
    def _until(self, deadline_s: float) -> Iterator[None]:
        packets = self._connection.packets
        before, packets.deadline_s = packets.deadline_s, min(deadline_s, packets.deadline_s)
        try:
            yield
        except ReadTimeoutError:
            self._give_up()
            raise
        finally:
            packets.deadline_s = before

    def _fetch(self, limits: ResultLimits) -> tuple[list[RawRow], bool]:
        rows: list[RawRow] = []
        num_bytes = 0
        while True:
            chunk, end = self._connection.get_rows(count=1, raw=True)
            if end is not None:
                return rows, False
            if len(rows) >= limits.max_rows or num_bytes > limits.max_bytes:
                return rows, True
            row = cast(RawRow, chunk[0])
            rows.append(row)
            num_bytes += sum(_VALUE_BYTES + len(value or b"") for value in row)

    def _drain(self) -> None:
        """Discards the rest of the answer, so that the next statement can be sent."""
        try:
            self._connection.skip_rows()
            self._connection.get_rows(raw=True)
        except ReadTimeoutError:
            self._give_up()
            return
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
            return [tuple(None if v is None else _to_text(v) for v in row) for row in rows]
        return [tuple(map(_plain_value, row)) for row in converted]


_LOST = "2013 (HY000): Lost connection to MySQL server during query"
_PLAIN_TYPES = (str, int, float, type(None))


def _to_text(value: bytes | bytearray) -> str | bytes:
    """Decodes UTF-8; returns the bytes themselves where they are not, so that none look equal."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return bytes(value)


def _plain_value(value: object) -> Value:
    """Returns text for the connector's bytearrays and sets, anything else as it is."""
    if isinstance(value, _PLAIN_TYPES):
        return value
    if isinstance(value, bytearray):
        return _to_text(value)
    if isinstance(value, set):
        return ",".join(sorted(value))
    return cast(Value, value)


def _connect(settings: Mapping[str, str | int | bool | None], is_local: bool) -> _Connection:
    if is_local:
        try:
            return _Connection(**settings, ssl_disabled=True)
        except Error as error:
            if error.errno not in _AUTHENTICATION_ERRNOS:
                raise
    return _Connection(**settings)


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Translates the connector's exceptions; a broken protocol state is a lost connection."""
    try:
        yield
    except Error as error:
        errno, text = error.errno or -1, str(error)
        if isinstance(error, ReadTimeoutError):
            raise DeadlineError(2013, _LOST) from None
        if errno in _LOST_ERRNOS or errno < 1000:
            raise ConnectionLostError(errno, text) from None
        raise ServerError(errno, text) from None
    except (OSError, ValueError, LookupError) as error:
        raise ConnectionLostError(2013, f"{_LOST} ({error})") from None
