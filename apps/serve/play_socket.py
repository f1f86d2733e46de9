"""Where sessions of one environment id are played: `PlaySocket`."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from agentpeft.apps.serve.held_sessions import HeldSessions, NoPlaceError, NoSessionError
from agentpeft.apps.serve.openenv_types import JsonRpcErrorCode, JsonRpcRequest, WSErrorCode
from agentpeft.apps.serve.patient_threads import PatientThreads
from agentpeft.apps.serve.played_session import (
    NO_REQUEST,
    PlayedSession,
    accept,
    read_request,
    refuse,
    tell,
)
from agentpeft.apps.serve.session import ServedEnvironment


class PlaySocket:
    """Plays the sessions of one environment id: on WebSockets, and by MCP's requests.

    Each WebSocket has a session of its own, unless it names one that a request has opened, as
    OpenEnv's client of tools does.
    """

    def __init__(
        self,
        served: ServedEnvironment,
        held: HeldSessions,
        threads: Mapping[bool, PatientThreads],
    ) -> None:
        """`held`: where sessions are that requests have opened; `threads` as `PlayedSession`'s."""
        self._served, self._held, self._threads = served, held, threads

    async def play(self, websocket: WebSocket) -> None:
        """Plays a session until its client leaves."""
        await websocket.accept()
        session_id = websocket.query_params.get("session_id")
        if session_id is None:
            session = PlayedSession(self._served, self._threads)
            try:
                await _talk(websocket, session)
            finally:
                await session.close()  # until then it holds its place among the sessions
            return
        try:
            async with self._held.use(session_id, self._served.name, is_connection=True) as session:
                await _talk(websocket, session)
        except (NoSessionError, NoPlaceError) as error:
            await websocket.send_text(tell(WSErrorCode.SESSION_ERROR, str(error)))
            await websocket.close()

    async def answer(self, request: Request) -> Response:
        """Answers one of MCP's requests; by OpenEnv's own ones sessions are opened and ended."""
        try:
            said = json.loads(await request.body())
        except (ValueError, RecursionError):
            return _to_response(refuse(None, JsonRpcErrorCode.PARSE_ERROR, "no JSON"))
        rpc = read_request(said)
        if rpc is None:
            return _to_response(NO_REQUEST)
        try:
            return _to_response(await self._answer(rpc))
        except (NoSessionError, NoPlaceError) as error:
            return _to_response(refuse(rpc.id, JsonRpcErrorCode.SERVER_ERROR, str(error)))

    async def _answer(self, request: JsonRpcRequest) -> dict[str, Any]:
        """Raises: NoSessionError, NoPlaceError."""
        name, session_id = self._served.name, request.params.get("session_id")
        unheld = PlayedSession(self._served, self._threads)
        match request.method if self._served.has_tools else None:
            case "openenv/session/create":
                return accept(request.id, {"session_id": self._held.open(unheld, name)})
            case "openenv/session/close":
                is_closed = self._held.close(session_id, name)
                result = {"session_id": session_id, "closed": is_closed, "closing": not is_closed}
                return accept(request.id, result)
            case "tools/list" if session_id is None:  # which takes no session
                return await unheld.answer_request(request)
            case "tools/list" | "tools/call":
                async with self._held.use(session_id, name) as session:
                    return await session.answer_request(request)
        return await unheld.answer_request(request)  # which knows no other methods


def _to_response(answer: dict[str, Any]) -> Response:
    """Returns an answer as ASCII, which can hold half of a character that is repeated."""
    return Response(json.dumps(answer), media_type="application/json")


async def _talk(websocket: WebSocket, session: PlayedSession) -> None:
    """Answers messages until the client leaves."""
    session.has_ended = False
    while (message := await websocket.receive())["type"] == "websocket.receive":
        answer = await session.answer(message.get("text"))
        if answer is not None:
            await websocket.send_text(answer)
        if session.has_ended:
            await websocket.close()
            break
        await asyncio.sleep(0)  # others come between messages that are here already
