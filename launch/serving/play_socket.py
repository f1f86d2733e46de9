"""The WebSocket of a session, in OpenEnv's messages: `PlaySocket`.

The library's own endpoint serves the same messages, and a test holds the two side by side. For each
of them it reads the signature of the environment's method and changes threads, which took more time
than all else that the server did.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError
from starlette.websockets import WebSocket

from agentpeft.launch.serving.openenv_types import (
    TextAction,
    TextObservation,
    WSCloseMessage,
    WSErrorCode,
    WSErrorResponse,
    WSMCPMessage,
    WSObservationResponse,
    WSResetMessage,
    WSStateMessage,
    WSStateResponse,
    WSStepMessage,
    serialize_observation,
)
from agentpeft.launch.serving.session import ServedEnvironment, ServedError, TextSession
from agentpeft.launch.serving.turns import Turns

NO_TOOLS = {"code": -32601, "message": "no tools: play over the WebSocket, /ws"}
"""What MCP's requests are told, in its own form."""


class PlaySocket:
    """Plays the sessions of one environment id, each on a WebSocket of its own."""

    def __init__(self, served: ServedEnvironment) -> None:
        """A session is made for each connection."""
        self._served = served
        self._turns = {waits: Turns.of_steps(that_wait=waits) for waits in (False, True)}

    async def play(self, websocket: WebSocket) -> None:
        """Plays a session until its client leaves, and frees what it holds."""
        await websocket.accept()
        if "session_id" in websocket.query_params:  # the library's, for connections to its /mcp
            await websocket.send_text(_tell(WSErrorCode.SESSION_ERROR, "no session has an id here"))
            await websocket.close()
            return
        session = _Session(TextSession(self._served), self._turns)
        try:
            while (message := await websocket.receive())["type"] == "websocket.receive":
                answer = await session.answer(message.get("text"))
                if answer is not None:
                    await websocket.send_text(answer)
                if session.has_ended:
                    await websocket.close()
                    break
                await asyncio.sleep(0)  # others come between messages that are here already
        finally:
            await session.close()  # until then it holds its place among the sessions


class _Session:
    """A session and the thread in which its environment may take its time."""

    def __init__(self, session: TextSession, turns: Mapping[bool, Turns]) -> None:
        """`turns` are those of steps that compute, and of those that wait (True)."""
        self._session, self._turns = session, turns
        self._thread = ThreadPoolExecutor(1)
        self.has_ended = False

    async def close(self) -> None:
        """Frees the environment, when a step that is going on has ended."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._session.close)
        self._thread.shutdown(wait=False)

    async def answer(self, said: str | None) -> str | None:
        """Returns the answer to a message; None where it needs none."""
        try:
            message = json.loads("null" if said is None else said)
        except (ValueError, RecursionError) as error:
            return _tell(WSErrorCode.INVALID_JSON, f"Invalid JSON: {error}")
        if not isinstance(message, dict):
            self.has_ended = True
            return _tell(WSErrorCode.SESSION_ERROR, "a message is a JSON object, sent as text")
        try:
            return await self._carry_out(message)
        except ValidationError as error:
            return _tell_invalid(error)
        except (ServedError, ValueError, RuntimeError) as error:  # these: no text, no thread
            return _tell(WSErrorCode.EXECUTION_ERROR, str(error))

    async def _carry_out(self, message: dict[str, Any]) -> str | None:
        match message.get("type", ""):
            case "reset":
                options = WSResetMessage(**message).data
                is_episode = "env_kwargs" not in options and "task_id" not in options
                return await self._play(partial(self._session.reset, **options), is_episode)
            case "step":
                action = TextAction.model_validate(WSStepMessage(**message).data)
                is_episode = "ask" not in action.metadata
                return await self._play(partial(self._session.step, action), is_episode)
            case "state":
                WSStateMessage(**message)
                state = WSStateResponse(data=self._session.state.model_dump())
                return str(state.model_dump_json())
            case "close":
                WSCloseMessage(**message)
                self.has_ended = True
                return None
            case "mcp":
                number = WSMCPMessage(**message).data.get("id")
                data = {"jsonrpc": "2.0", "id": number, "error": NO_TOOLS}
                return json.dumps({"type": "mcp", "data": data})
            case kind:
                return _tell(WSErrorCode.UNKNOWN_TYPE, f"Unknown message type: {kind}")

    async def _play(self, play: Callable[[], TextObservation], is_episode: bool) -> str:
        """Returns what the environment answers.

        `is_episode`: whether it is asked for no more than an episode of its own tasks, of which it
        may say that it takes no time; then it is played here and now.
        """
        if is_episode and self._session.has_quick_steps:
            observation = play()
        else:
            async with self._turns[self._session.has_waiting_steps].take():
                loop = asyncio.get_running_loop()
                observation = await loop.run_in_executor(self._thread, play)
        response = WSObservationResponse(data=serialize_observation(observation))
        return str(response.model_dump_json())


def _tell(code: WSErrorCode, text: str) -> str:
    return json.dumps({"type": "error", "data": {"message": text, "code": code}})


def _tell_invalid(error: ValidationError, repeats_input: bool = True) -> str:
    errors = error.errors(include_input=repeats_input)
    data = {"message": "Invalid message", "code": WSErrorCode.VALIDATION_ERROR, "errors": errors}
    try:
        return str(WSErrorResponse(data=data).model_dump_json())
    except PydanticSerializationError:  # half of a character, which cannot be repeated as it is
        return _tell_invalid(error, repeats_input=False)
