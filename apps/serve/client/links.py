"""One WebSocket for many sessions: `Links`, as the environments of a vector share them.

A frame is a session's number, a mark and a text: `N+` begins a session, `N TEXT` is a message,
`N!REASON` an end. Numbers grow.
"""

import itertools
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

Connect: TypeAlias = Callable[[], "tuple[ClientConnection, ExitStack]"]
_FRAME = re.compile(r"([0-9]{1,9})([ +!])(.*)", re.DOTALL)
_ABNORMAL = 1006
"""The code of a WebSocket that has ended without a goodbye."""
_shared: ContextVar["Links | None"] = ContextVar("links", default=None)


def split_frame(frame: str | bytes) -> tuple[int, str, str]:
    """Returns number, mark and text of a frame. Raises: ValueError."""
    match = _FRAME.fullmatch(frame) if isinstance(frame, str) else None
    if match is None:
        raise ValueError(f"no frame of a session: {frame[:60]!r}")
    return int(match[1]), match[2], match[3]


@contextmanager
def sharing_links() -> Iterator[None]:
    """Lets remote environments made in the block share a connection to each server."""
    token = _shared.set(Links())
    try:
        yield
    finally:
        _shared.reset(token)


class Links:
    """The open connections, one to each address. Each ends with its last session."""

    def __init__(self) -> None:
        self._links: dict[str, _Link] = {}
        self._connecting: dict[str, Future[None]] = {}
        self._lock = threading.Lock()

    @staticmethod
    def shared() -> "Links | None":
        """Returns the links that an environment made now shares with others, if any."""
        return _shared.get()

    def open(self, url: str, connect: Connect) -> "SharedSession":
        """Returns a new session, over a new connection where none is open.

        One thread connects; others wait for it, and share its failure. Raises: as `connect`.
        """
        while True:
            with self._lock:
                link = self._links.get(url)
                session = link and link.open_session()
                if session:
                    return session
                others = self._connecting.get(url)
                if others is None:
                    connecting = self._connecting[url] = Future()
            if others is None:
                return self._connect(url, connect, connecting)
            others.result()

    def _connect(self, url: str, connect: Connect, done: Future[None]) -> "SharedSession":
        """Returns a session over a new connection, for which others wait."""
        try:
            link = _Link(*connect())
            session = link.open_session()
            if session is None:
                raise ConnectionError("the connection has ended at once")
            self._links[url] = link
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._connecting[url]
        return session


class _Link:
    """A connection, whose reader gives each session its messages."""

    def __init__(self, socket: "ClientConnection", closing: ExitStack) -> None:
        """`closing` closes the socket."""
        self._socket, self._closing = socket, closing
        self._numbers = itertools.count()
        self._inboxes: dict[int, SimpleQueue[tuple[str, str]]] = {}
        self._lock = threading.RLock()  # a session may be collected while another one is opened
        self._is_open = True
        threading.Thread(target=self._read, daemon=True).start()

    def open_session(self) -> "SharedSession | None":
        """Begins a session; None where the connection has ended."""
        with self._lock:
            if not self._is_open:
                return None
            number, inbox = next(self._numbers), SimpleQueue[tuple[str, str]]()
            session = SharedSession(self, number, inbox)
            self._inboxes[number] = inbox
            with suppress(OSError):  # then the reader has ended, too, and says so
                self.send(f"{number}+")
            return session if self._is_open else None

    def close_session(self, number: int) -> None:
        """Ends a session, and the connection with the last one."""
        with self._lock:
            self._inboxes.pop(number, None)
            is_last = not self._inboxes
            self._is_open = self._is_open and not is_last
        if is_last:
            self._closing.close()
        else:
            with suppress(OSError):
                self.send(f"{number}!")

    def send(self, frame: str) -> None:
        """Sends a frame. Raises: OSError where the connection has ended."""
        from websockets.exceptions import WebSocketException

        try:
            self._socket.send(frame)
        except WebSocketException as error:
            raise ConnectionError(str(error)) from error

    def _read(self) -> None:
        from websockets.exceptions import WebSocketException

        end = "the connection has ended"
        try:
            for frame in self._socket:
                number, mark, text = split_frame(frame)
                if inbox := self._inboxes.get(number):
                    inbox.put((mark, text))
        except (OSError, WebSocketException, ValueError) as error:
            end = str(error)
        with self._lock:
            self._is_open = False
            for inbox in self._inboxes.values():
                inbox.put(("!", end))
        self._closing.close()


class SharedSession:
    """One session of a connection, with the WebSocket methods that its user calls."""

    def __init__(self, link: _Link, number: int, inbox: SimpleQueue[tuple[str, str]]) -> None:
        self._link, self._number, self._inbox = link, number, inbox
        self._end: str | None = None

    @property
    def close_code(self) -> int | None:
        """None while the session lasts."""
        if self._end is None and not self._inbox.empty():  # nobody has asked: it is an end
            self._end = self._inbox.get()[1]
        return None if self._end is None else _ABNORMAL

    def send(self, text: str) -> None:
        """Sends a message. Raises: OSError."""
        if self.close_code is not None:
            raise ConnectionError(self._end)
        self._link.send(f"{self._number} {text}")

    def recv(self, timeout: float) -> str:
        """Returns the next message. Raises: TimeoutError after so many seconds, OSError."""
        try:
            mark, text = self._inbox.get(timeout=timeout)
        except Empty:
            raise TimeoutError from None
        if mark == "!":
            self._end = text or "the server has ended the session"
            raise ConnectionError(self._end)
        return text

    def close(self) -> None:
        """Ends the session."""
        self._end = self._end or "closed"
        self._link.close_session(self._number)
