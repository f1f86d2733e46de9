"""`Gate`: who may come in, how many, and how much each may ask. An ASGI application around another.

It keeps what OpenEnv's server library leaves open: tokens, a limit of sessions that holds, an end
for sessions that fall silent (the library's own one takes the environment away and leaves the
connection), sizes and rates.

It does not keep a session from holding its place while its environment works: a step ends when the
environment says so. Nor does it tell clients apart that share an address.
"""

import asyncio
import hmac
import ipaddress
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from starlette.datastructures import Headers, QueryParams
from starlette.responses import PlainTextResponse
from starlette.websockets import WebSocket

from agentpeft.apps.serve.held_sessions import HeldSessions, NoPlaceError, SessionPlaces
from agentpeft.apps.serve.many import ManySessions
from agentpeft.apps.serve.metrics import ServerMetrics

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

SUBPROTOCOL = "agentpeft"
"""What a browser names beside its token, as it cannot set a header: `agentpeft, TOKEN`."""
_OPEN_PATHS = {"/", "/health"}
"""What needs no token: a page without secrets, and what a load balancer asks."""
_PLAYING = ("/reset", "/step")
"""Requests that have an environment made, for as long as they last, as a session has."""
_MANY = "/many"
"""The path of connections that many sessions share."""
_IDLE_CODE = 4408
_MAX_CLIENTS = 10_000


@dataclass(frozen=True)
class Limits:
    """What one server grants.

    `max_messages_per_s` is of one address, over all its sessions; None is no limit. A session whose
    client sends nothing for `idle_s`, or does not read for as long, is closed.
    """

    max_sessions: int = 256
    idle_s: float = 900.0
    max_message_bytes: int = 2**20
    max_messages_per_s: float | None = None


@dataclass(frozen=True)
class _Refusal:
    """Why a request does not come in; `status` is HTTP's."""

    status: int
    reason: str
    text: str


class _Allowance:
    """What one address may still send now: a second's worth at most."""

    def __init__(self, per_s: float) -> None:
        self._per_s = self._left = per_s
        self._seen_s = time.monotonic()

    def take(self) -> float:
        """Takes one message; returns the seconds after which it may be looked at."""
        now_s = time.monotonic()
        burst = max(1.0, self._per_s)
        self._left = min(burst, self._left + (now_s - self._seen_s) * self._per_s) - 1.0
        self._seen_s = now_s
        return max(0.0, -self._left / self._per_s)


class Gate:
    """Lets requests through to `application` within limits."""

    def __init__(
        self,
        application: Application,
        limits: Limits,
        tokens: tuple[str, ...],
        metrics: ServerMetrics,
        places: SessionPlaces,
        held: HeldSessions,
    ) -> None:
        """Without `tokens` everyone may come in; else one of them is needed.

        Sessions of `held` have their places already, for as long as they are held.
        """
        self._application, self._limits, self._metrics = application, limits, metrics
        self._tokens = [token.encode() for token in tokens]
        self._places, self._held = places, held
        self._num_shared = 0
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers one request, or plays one session from its begin to its end."""
        if scope["type"] == "websocket" and scope["path"].endswith(_MANY):
            await self._serve_many(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._serve_session(scope, receive, send)
        elif scope["type"] == "http":
            await self._serve_request(scope, receive, send)
        else:
            await self._application(scope, receive, send)

    async def _serve_request(self, scope: Message, receive: Receive, send: Send) -> None:
        refusal = self._find_refusal(scope)
        if refusal is not None:
            await self._to_response(refusal)(scope, receive, send)
        elif scope["path"].endswith(_PLAYING):
            with self._places.taken():  # before its body, so that many at once are counted
                await self._answer(scope, receive, send)
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        body = await self._read_body(receive)
        if body is None:
            limit = self._limits.max_message_bytes
            refusal = _Refusal(413, "size", f"the body has more than {limit} bytes")
            await self._to_response(refusal)(scope, receive, send)
            return
        bodies = iter([{"type": "http.request", "body": body}])

        async def receive_body() -> Message:
            return next(bodies, None) or await receive()

        await self._application(scope, receive_body, send)

    async def _serve_many(self, scope: Message, receive: Receive, send: Send) -> None:
        """Plays the sessions of a connection that many share; each session counts."""
        if await self._is_refused(scope, receive, send):
            return
        path = scope["path"].removesuffix(_MANY) + "/ws"

        async def serve_one(receive: Receive, send: Send) -> None:
            own = {**scope, "path": path, "raw_path": path.encode(), "query_string": b""}
            await self._serve_session(own, receive, send)

        many = ManySessions(serve_one, self._limits.max_sessions)
        connection = _Connection(receive, send, self._limits.idle_s, self._metrics, many.is_used)
        await connection.receive()
        await connection.send({"type": "websocket.accept"})
        self._num_shared += 1
        try:
            await many.serve(connection.receive, connection.send)
        finally:
            self._num_shared -= 1

    async def _is_refused(self, scope: Message, receive: Receive, send: Send) -> bool:
        """Returns whether a WebSocket may not come in, and says so."""
        refusal = self._find_refusal(scope)
        if refusal is not None:
            response = self._to_response(refusal)
            await WebSocket(scope, receive, send).send_denial_response(response)
        return refusal is not None

    async def _serve_session(self, scope: Message, receive: Receive, send: Send) -> None:
        if await self._is_refused(scope, receive, send):
            return
        session_id = _session_id_of(scope)
        is_used = partial(self._held.is_used, session_id)  # it may be silent, where requests come
        connection = _Connection(receive, send, self._limits.idle_s, self._metrics, is_used)
        connection.subprotocol = SUBPROTOCOL if SUBPROTOCOL in _subprotocols(scope) else None

        async def receive_in_turn() -> Message:
            message = await connection.receive()
            wait_s = self._wait_s(scope)
            if wait_s > 0 and message["type"] == "websocket.receive":
                self._metrics.refused.labels("rate").inc()
                await asyncio.sleep(wait_s)
            return message

        with nullcontext() if self._held.is_open(session_id) else self._places.taken():
            await self._application(scope, receive_in_turn, connection.send)

    def _find_refusal(self, scope: Message) -> _Refusal | None:
        if self._wait_s(scope) > 0:  # before all else: whoever guesses tokens is slow at it
            return _Refusal(429, "rate", "too many requests: slow down")
        headers = Headers(scope=scope)
        origin, host = headers.get("origin"), headers.get("host", "")
        if origin is not None and origin.partition("://")[2] != host:
            return _Refusal(403, "origin", "a page of another site may not use this server")
        if not self._tokens and not _is_local(host):  # a name that was made to mean this machine
            return _Refusal(403, "host", "without tokens this server is called localhost alone")
        if scope["path"] in _OPEN_PATHS and scope["type"] == "http":
            return None
        if self._tokens and not self._is_known(_token_of(scope, headers)):
            return _Refusal(401, "token", "no or a wrong token: send Authorization: Bearer TOKEN")
        plays = scope["type"] == "websocket" or scope["path"].endswith(_PLAYING)
        if plays and not self._held.is_open(_session_id_of(scope)):
            num_shared = self._num_shared if scope["path"].endswith(_MANY) else 0
            try:
                self._places.check(num_shared)
            except NoPlaceError as error:
                return _Refusal(503, "sessions", str(error))
        return None

    def _is_known(self, token: str) -> bool:
        """Returns whether a token is one of ours, in a time that tells nothing of them."""
        given = token.encode("utf-8", "replace")
        matches = [hmac.compare_digest(given, own) for own in self._tokens]
        return True in matches

    def _wait_s(self, scope: Message) -> float:
        """Takes one message of a client's allowance; returns how long that message has to wait."""
        if self._limits.max_messages_per_s is None:
            return 0.0
        address = (scope.get("client") or ("",))[0]
        allowance = self._allowances.get(address)
        if allowance is None:
            allowance = self._allowances[address] = _Allowance(self._limits.max_messages_per_s)
        self._allowances.move_to_end(address)
        if len(self._allowances) > _MAX_CLIENTS:
            self._allowances.popitem(last=False)
        return allowance.take()

    async def _read_body(self, receive: Receive) -> bytes | None:
        """Returns a request's body; None where it is too large."""
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self._limits.max_message_bytes:
                return None
            if not message.get("more_body"):
                return bytes(body)

    def _to_response(self, refusal: _Refusal) -> PlainTextResponse:
        self._metrics.refused.labels(refusal.reason).inc()
        headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}
        return PlainTextResponse(refusal.text + "\n", refusal.status, headers.get(refusal.status))


class _Connection:
    """A WebSocket that is closed where its client falls silent or stops reading."""

    def __init__(
        self,
        receive: Receive,
        send: Send,
        idle_s: float,
        metrics: ServerMetrics,
        is_used: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_used`: whether it may be silent, since sessions on it have limits of their own."""
        self._receive, self._send, self._idle_s = receive, send, idle_s
        self._metrics, self._is_used = metrics, is_used
        self._is_closed = False
        self.subprotocol: str | None = None

    async def receive(self) -> Message:
        """Returns the client's next message; after `idle_s` without one, that it has gone."""
        if self._is_closed:
            return {"type": "websocket.disconnect", "code": _IDLE_CODE}
        while True:
            try:
                async with asyncio.timeout(self._idle_s):
                    return await self._receive()
            except TimeoutError:
                if not self._is_used():
                    break
        self._metrics.refused.labels("idle").inc()
        reason = f"no message for {self._idle_s:g} s"
        await self.send({"type": "websocket.close", "code": _IDLE_CODE, "reason": reason})
        return {"type": "websocket.disconnect", "code": _IDLE_CODE}

    async def send(self, message: Message) -> None:
        """Sends a message; one who has left, or reads nothing for `idle_s`, is told no more.

        That is not raised: who sends asks for the next message then, and hears that there is no
        client.
        """
        if self._is_closed:
            return
        if message["type"] == "websocket.accept" and self.subprotocol:
            message = {**message, "subprotocol": self.subprotocol}
        self._is_closed = message["type"] == "websocket.close"
        try:
            async with asyncio.timeout(self._idle_s):
                await self._send(message)
        except TimeoutError:
            self._metrics.refused.labels("slow").inc()
            self._is_closed = True
        except OSError:
            self._is_closed = True


def _subprotocols(scope: Message) -> list[str]:
    subprotocols: list[str] = scope.get("subprotocols") or []
    return subprotocols


def _session_id_of(scope: Message) -> str:
    """Returns the id of the held session that a WebSocket comes for, "" if it has its own."""
    if scope["type"] != "websocket" or scope["path"].endswith(_MANY):
        return ""
    return QueryParams(scope.get("query_string", b"")).get("session_id", "")


def _is_local(host: str) -> bool:
    """Returns whether a Host header names this machine itself; where there is none it may."""
    name = host.rpartition(":")[0] if re.search(r":\d*$", host) else host
    try:
        return name in ("", "localhost") or ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _token_of(scope: Message, headers: Headers) -> str:
    """Returns the token that a request brings, "" without one."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return token.strip()
    offered = _subprotocols(scope)
    return offered[1] if len(offered) == 2 and offered[0] == SUBPROTOCOL else ""
