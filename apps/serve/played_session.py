"""`PlayedSession`: what a session answers to OpenEnv's messages.

The library's own endpoint serves the same messages, and a test holds the two side by side. For each
of them it reads the signature of the environment's method and changes threads, which took more time
than all else that the server did.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from agentpeft.apps.serve.openenv_types import (
    CallToolAction,
    JsonRpcErrorCode,
    JsonRpcRequest,
    JsonRpcResponse,
    ListToolsAction,
    Observation,
    TextAction,
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
from agentpeft.apps.serve.patient_threads import PatientThreads
from agentpeft.apps.serve.session import ServedEnvironment, ServedError, TextSession

T = TypeVar("T")

_MAX_ERROR_CHARS = 500
MAX_INVALID_CHARS = 4000


class PlayedSession:
    """A session, whose environment is called in threads, one call at a time."""

    def __init__(self, served: ServedEnvironment, threads: Mapping[bool, PatientThreads]) -> None:
        """`threads` are those of steps that compute, and of those that wait (True)."""
        self._session, self._threads = TextSession(served), threads
        self._turn, self._at_work = asyncio.Lock(), threading.Lock()
        self.has_ended = False
        """Whether the connection is to be closed; a session that is held may have another one."""

    async def close(self) -> None:
        """Frees the environment, when a step that is going on has ended."""
        async with self._turn:
            await self._call(self._session.close)

    async def _call(self, function: Callable[[], T]) -> T:
        def call_alone() -> T:
            with self._at_work:  # one that nobody waits for any more may be going on
                return function()

        return await self._threads[self._session.has_waiting_steps].run(call_alone)

    async def answer(self, said: str | None) -> str | None:
        """Returns the answer to a message; None where it needs none."""
        try:
            message = json.loads("null" if said is None else said)
        except (ValueError, RecursionError) as error:
            return tell(WSErrorCode.INVALID_JSON, f"Invalid JSON: {error}")
        if not isinstance(message, dict):
            self.has_ended = True
            return tell(WSErrorCode.SESSION_ERROR, "a message is a JSON object, sent as text")
        try:
            return await self._carry_out(message)
        except ValidationError as error:
            return _tell_invalid(error)
        except (ServedError, ValueError, RuntimeError) as error:  # these: no text, no thread
            return tell(WSErrorCode.EXECUTION_ERROR, str(error))

    async def _carry_out(self, message: dict[str, Any]) -> str | None:
        match message.get("type", ""):
            case "reset":
                options = WSResetMessage(**message).data
                is_episode = "env_kwargs" not in options and "task_id" not in options
                reset = partial(self._session.reset, **options)
                return _show(await self._play(reset, is_episode))
            case "step":
                return _show(await self._step(WSStepMessage(**message).data))
            case "state":
                WSStateMessage(**message)
                state = WSStateResponse(data=self._session.state.model_dump())
                return str(state.model_dump_json())
            case "close":
                WSCloseMessage(**message)
                self.has_ended = True
                return None
            case "mcp":
                request = read_request(WSMCPMessage(**message).data)
                answer = await self.answer_request(request) if request else NO_REQUEST
                return json.dumps({"type": "mcp", "data": answer})
            case kind:
                return tell(WSErrorCode.UNKNOWN_TYPE, f"Unknown message type: {kind}")

    async def _step(self, data: Mapping[str, Any]) -> Observation:
        """Plays a text, or a call of a tool, or lists the tools.

        Where there are none, both are refused as other actions, by which clients know.
        """
        match data.get("type") if self._session.has_tools else None:
            case "list_tools":
                ListToolsAction.model_validate(data)
                return self._session.list_tools()
            case "call_tool":
                call = CallToolAction.model_validate(data)
                return await self._play(partial(self._session.call_tool, call), is_episode=True)
        action = TextAction.model_validate(data)
        is_episode = "ask" not in action.metadata
        return await self._play(partial(self._session.step, action), is_episode)

    async def answer_request(self, request: JsonRpcRequest) -> dict[str, Any]:
        """Returns the answer to `tools/list` or `tools/call`, in JSON-RPC."""
        try:
            match request.method if self._session.has_tools else None:
                case "tools/list":
                    return accept(request.id, {"tools": self._list_tools()})
                case "tools/call":
                    name, arguments = request.params.get("name"), request.params.get("arguments")
                    arguments = {} if arguments is None else arguments
                    call = CallToolAction(tool_name=name, arguments=arguments)
                    play = partial(self._session.call_tool, call)
                    text = (await self._play(play, is_episode=True)).result
                    content = [{"type": "text", "text": text}]
                    return accept(request.id, {"content": content, "data": text, "isError": False})
        except ValidationError:
            text = "tools/call takes a name, and arguments by name"
            return refuse(request.id, JsonRpcErrorCode.INVALID_PARAMS, text)
        except (ServedError, ValueError, RuntimeError) as error:
            return refuse(request.id, JsonRpcErrorCode.SERVER_ERROR, str(error))
        methods = "there are tools/list and tools/call"
        if not self._session.has_tools:
            methods = "this server has no tools (serve --tools): play over the WebSocket, /ws"
        text = f"no method {request.method}; {methods}"
        return refuse(request.id, JsonRpcErrorCode.METHOD_NOT_FOUND, text)

    def _list_tools(self) -> list[dict[str, Any]]:
        """Returns the environment's tools as MCP tells of them."""
        return [
            {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
            for tool in self._session.list_tools().tools
        ]

    async def _play(self, play: Callable[[], T], is_episode: bool) -> T:
        """Returns what the environment answers.

        `is_episode`: whether it is asked for no more than an episode of its own tasks, of which it
        may say that it takes no time; then it is played here and now.
        """
        async with self._turn:
            if is_episode and self._session.has_quick_steps:
                return play()
            return await self._call(play)


def read_request(said: object) -> JsonRpcRequest | None:
    """Returns a request in JSON-RPC; None of what is none."""
    try:
        return JsonRpcRequest.model_validate(said)
    except ValidationError:
        return None


def accept(request_id: str | int | None, result: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to a request, in JSON-RPC."""
    answer: dict[str, Any] = JsonRpcResponse.success(result, request_id).model_dump()
    return answer


def cut(text: str) -> str:
    """Returns a text of an error, which may repeat what the client sent, at no great length."""
    return text if len(text) <= _MAX_ERROR_CHARS else f"{text[:_MAX_ERROR_CHARS]}…"


def refuse(request_id: str | int | None, code: JsonRpcErrorCode, text: str) -> dict[str, Any]:
    """Returns why a request is not answered, in JSON-RPC."""
    error = JsonRpcResponse.error_response(code, cut(text), request_id=request_id)
    answer: dict[str, Any] = error.model_dump()
    return answer


NO_REQUEST = refuse(None, JsonRpcErrorCode.INVALID_REQUEST, "no request in JSON-RPC 2.0")
"""The answer to what is no request."""


def _show(observation: Observation) -> str:
    response = WSObservationResponse(data=serialize_observation(observation))
    return str(response.model_dump_json())


def tell(code: WSErrorCode, text: str) -> str:
    """Returns the message of an error."""
    return json.dumps({"type": "error", "data": {"message": cut(text), "code": code}})


def _tell_invalid(error: ValidationError) -> str:
    """Returns the message of an error, with what was sent where that is short enough."""
    data = {"message": "Invalid message", "code": WSErrorCode.VALIDATION_ERROR}
    for repeats_input in (True, False):
        errors = error.errors(include_input=repeats_input)
        try:
            text = str(WSErrorResponse(data={**data, "errors": errors}).model_dump_json())
        except PydanticSerializationError:  # half of a character, which cannot be repeated as it is
            continue
        if len(text) <= MAX_INVALID_CHARS:
            return text
    return tell(WSErrorCode.VALIDATION_ERROR, str(error))  # a field's name is too long itself
