"""The suite's one door to WebSockets: a session with a server, one question at a time."""

import json
import os
import ssl
import weakref
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gymnasium.error import ResetNeeded

from agentpeft.apps.serve.client.links import Links, SharedSession
from agentpeft.envs.core.errors import (
    DataError,
    EnvFault,
    SettingsError,
    UnknownTaskError,
    shown,
)

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

SHARED_PATH = "many"
TOKEN_VARIABLE = "AGENTPEFT_TOKEN"  # noqa: S105 (a variable's name)
_ERRORS: Mapping[str, type[Exception]] = {
    kind.__name__: kind for kind in (DataError, ResetNeeded, SettingsError, UnknownTaskError)
}
_UNKNOWN = f"{HTTPStatus.NOT_FOUND}: "
"""How the end of a shared connection's session begins, where there is no such environment."""
_MAX_MESSAGE_CHARS = 500
_LOCAL = {"127.0.0.1", "::1", "localhost"}
_GOODBYE = json.dumps({"type": "close"})


class RemoteError(RuntimeError):
    """A bug in an environment on the server: it raised what no environment may."""


class ServerGoneError(EnvFault):
    """A session ended before its server answered."""


class Connection:
    """One session of a server. After a fault it stays closed."""

    def __init__(
        self, socket: "ClientConnection | SharedSession", closing: ExitStack, timeout_s: float
    ) -> None:
        """`closing` closes the socket; `timeout_s`: how long the server may take for an answer."""
        self._socket, self._closing, self._timeout_s = socket, closing, timeout_s
        self._is_open = True
        weakref.finalize(self, closing.close).atexit = False  # for who forgets to close

    @classmethod
    def open(
        cls,
        url: str,
        token: str | None,
        ca_file: str | None,
        connect_s: float,
        timeout_s: float,
        links: Links | None = None,
    ) -> "Connection":
        """Returns a new session at `url` (ws:// or wss://), over a connection of `links` if given.

        Raises: EnvFault where there is no server, no room or no right to come in; SettingsError
        where the server has no such environment, or the client's package is missing here.
        """
        connect = partial(_connect, token=token, ca_file=ca_file, connect_s=connect_s)
        if links is not None:
            shared = url.removesuffix("ws") + SHARED_PATH
            try:
                session = links.open(shared, partial(connect, shared))
                closing = ExitStack()
                closing.callback(session.close)
                return cls(session, closing, timeout_s)
            except SettingsError:  # none are shared there, or there is no such environment
                pass
            except OSError as error:
                raise EnvFault(f"{url}: cannot connect: {_describe(error)}") from error
        return cls(*connect(url), timeout_s)

    @property
    def is_open(self) -> bool:
        """True if the session can be asked: nothing failed, and the server has not closed it."""
        return self._is_open and self._socket.close_code is None

    def ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the data of the server's answer to a message of OpenEnv's.

        Raises: EnvFault where none comes; what the server says that it raised.
        """
        from websockets.exceptions import WebSocketException

        try:
            self._socket.send(json.dumps({"type": kind, "data": data}, ensure_ascii=False))
            text = self._socket.recv(self._timeout_s)
        except TimeoutError as error:
            self.close()
            raise EnvFault(f"the server took more than {self._timeout_s:g} s") from error
        except (OSError, WebSocketException) as error:
            self.close()
            if str(error).startswith(_UNKNOWN):
                raise SettingsError(str(error)) from error
            raise ServerGoneError(f"the server is gone: {_describe(error)}") from error
        except BaseException:
            self.close()  # the answer may still come, and would be taken for the next one's
            raise
        return self._read(text)

    def question(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the answer to a question outside of an episode. Raises: as `ask`."""
        data = self.ask("step", {"text": "", "metadata": {**arguments, "ask": name}})
        answer = data.get("metadata")
        if not isinstance(answer, dict):
            raise EnvFault(f"the server does not answer {name!r}")
        return answer

    def close(self) -> None:
        """Ends the session, so that the server frees what it holds; idempotent."""
        from websockets.exceptions import WebSocketException

        if self._is_open:
            self._is_open = False
            with suppress(OSError, WebSocketException):
                self._socket.send(_GOODBYE)
            self._closing.close()

    def _read(self, text: str | bytes) -> dict[str, Any]:
        try:
            answer = json.loads(text)
            kind, data = answer["type"], answer["data"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            self.close()
            raise EnvFault(f"the server answered {text[:60]!r}, no OpenEnv message") from error
        if kind == "observation" and isinstance(data, dict):
            return data
        if kind not in ("observation", "error"):
            self.close()
            raise EnvFault(f"the server answered a message of type {shown(kind)}, no observation")
        message = str(data.get("message")) if isinstance(data, dict) else shown(data)
        message = message[:_MAX_MESSAGE_CHARS]
        name, _, rest = message.partition(": ")
        if name in _ERRORS:
            raise _ERRORS[name](rest)
        if name == EnvFault.__name__:
            raise EnvFault(f"on the server: {rest}")
        raise RemoteError(f"on the server: {message}")


def _connect(
    url: str, token: str | None, ca_file: str | None, connect_s: float
) -> "tuple[ClientConnection, ExitStack]":
    """Returns a new WebSocket and its closing function. Raises: as `Connection.open`."""
    try:
        from websockets.exceptions import InvalidStatus, WebSocketException
        from websockets.sync.client import connect
    except ModuleNotFoundError as error:
        raise SettingsError(f"{error}: pip install 'agentpeft[remote]'") from error
    token = token or os.environ.get(TOKEN_VARIABLE)
    closing = ExitStack()
    connecting = partial(
        connect,
        url,
        additional_headers={"Authorization": f"Bearer {token}"} if token else None,
        ssl=_trust(ca_file) if url.startswith("wss:") else None,
        open_timeout=connect_s,
        close_timeout=1.0,
        compression=None,
        max_size=None,
        proxy=None if urlsplit(url).hostname in _LOCAL else True,
    )
    try:
        return closing.enter_context(connecting()), closing
    except InvalidStatus as error:
        body = (error.response.body or b"").decode("utf-8", "replace")
        text = " ".join(body.split())[:200] or error.response.reason_phrase
        kind = SettingsError if error.response.status_code == HTTPStatus.NOT_FOUND else EnvFault
        raise kind(f"{url}: {error.response.status_code}: {text}") from error
    except (OSError, WebSocketException) as error:
        raise EnvFault(f"{url}: cannot connect: {_describe(error)}") from error
    except (ValueError, ImportError) as error:  # a name or a proxy that nothing can be
        raise SettingsError(f"{url}: cannot connect: {_describe(error)}") from error


def _trust(ca_file: str | None) -> ssl.SSLContext:
    """Returns the TLS context that checks a server's certificate. Raises: SettingsError."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise SettingsError(f"ca_file {ca_file}: no certificates (PEM) to read: {error}") from error


def _describe(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
