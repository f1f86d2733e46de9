"""Many sessions over one WebSocket: `ManySessions`.

A frame is a session's number, a mark and a text. The client begins a session with `N+`, each with a
higher number than the last; `N TEXT` is a message to or from it, `N!REASON` its end.
"""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import Message, Receive, Send

from agentpeft.apps.serve.client.links import split_frame

_MAX_WAITING = 16
"""Messages to a session that it has not taken yet: a client that asks and waits has one."""
_PROTOCOL_ERROR = 1002
_GONE: Message = {"type": "websocket.disconnect", "code": 1001}


class ManySessions:
    """The sessions of one WebSocket."""

    def __init__(
        self, serve_one: Callable[[Receive, Send], Awaitable[None]], max_sessions: int
    ) -> None:
        """`serve_one` plays one session, as if it had a WebSocket of its own."""
        self._serve_one, self._max_sessions = serve_one, max_sessions
        self._sessions: dict[int, _Session] = {}

    def is_used(self) -> bool:
        """Returns whether there is a session."""
        return bool(self._sessions)

    async def serve(self, receive: Receive, send: Send) -> None:
        """Serves what an accepted WebSocket brings until it ends, and the sessions with it."""
        tasks: set[asyncio.Task[None]] = set()
        last = -1
        try:
            while (message := await receive())["type"] != "websocket.disconnect":
                try:
                    number, mark, text = split_frame(message.get("text") or "")
                except ValueError:
                    await send({"type": "websocket.close", "code": _PROTOCOL_ERROR})
                    break
                if mark == "+" and number > last:
                    if len(tasks) > self._max_sessions:  # it has begun more than it may, unread
                        await send({"type": "websocket.close", "code": _PROTOCOL_ERROR})
                        break
                    last = number
                    self._sessions[number] = _Session(number, send)
                    task = asyncio.create_task(self._play(number))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                elif mark != "+" and number in self._sessions:
                    self._sessions[number].take(mark, text)
        finally:
            for session in list(self._sessions.values()):
                session.take("!", "")
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _play(self, number: int) -> None:
        try:
            await self._sessions[number].play(self._serve_one)
        finally:
            del self._sessions[number]


class _Session:
    """One session: what its client has sent, and what it is told."""

    def __init__(self, number: int, send: Send) -> None:
        self._number, self._send = number, send
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._status, self._is_over = 0, False
        self._inbox.put_nowait({"type": "websocket.connect"})

    async def play(self, serve_one: Callable[[Receive, Send], Awaitable[None]]) -> None:
        """Plays the session to its end, of which the client hears."""
        try:
            await serve_one(self._inbox.get, self._answer)
        finally:
            await self._tell("!", "the session has ended")

    def take(self, mark: str, text: str) -> None:
        """Takes a message of the client's, or its leave; one that floods is taken to have left."""
        num_waiting = self._inbox.qsize()
        if num_waiting > _MAX_WAITING:
            return
        is_over = mark == "!" or num_waiting == _MAX_WAITING
        self._inbox.put_nowait(_GONE if is_over else {"type": "websocket.receive", "text": text})

    async def _answer(self, message: Message) -> None:
        match message:
            case {"type": "websocket.send", "text": str() as text}:
                await self._tell(" ", text)
            case {"type": "websocket.close"}:
                await self._tell("!", message.get("reason") or "the server has ended the session")
            case {"type": "websocket.http.response.start", "status": int() as status}:
                self._status = status
            case {"type": "websocket.http.response.body", "body": bytes() as body}:
                await self._tell("!", f"{self._status}: {body.decode()}")

    async def _tell(self, mark: str, text: str) -> None:
        if self._is_over:
            return
        self._is_over = mark == "!"
        await self._send({"type": "websocket.send", "text": f"{self._number}{mark}{text}"})
