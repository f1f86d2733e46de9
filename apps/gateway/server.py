"""The gateway's HTTP server: who may ask, how much, and which answer goes where.

It is in the event loop of an env runner's episodes. A key opens one episode alone, and only while
that is under way. It does not keep a program from working against the machine that it runs on.
"""

import asyncio
import json
import socket
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from agentpeft.apps.gateway import wire
from agentpeft.apps.gateway.open_episode import FindChat, OpenEpisode
from agentpeft.apps.gateway.program import HOST
from agentpeft.apps.gateway.wire import Json, Refused
from agentpeft.apps.training_tool.mcp_tools import describe_tool
from agentpeft.envs.tools.tool_table import ToolCall

_MAX_BODY_BYTES = 4 << 20
_MAX_CONNECTIONS = 4096
_RPC_NO_METHOD = -32601
_EVENTS = "text/event-stream"


class GatewayServer:
    """Serves the episodes that are in `episodes`, by their keys."""

    def __init__(self, find_chat: FindChat) -> None:
        """Begins to serve. `find_chat` returns how the model reads and writes a request.

        Raises: OSError.
        """
        self.episodes: dict[str, OpenEpisode] = {}
        self._find_chat = find_chat
        self._socket = socket.create_server((HOST, 0), backlog=2048)
        # Connections inherit it; asyncio does not set it, and an answer would wait 40 ms otherwise
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.url = f"http://{HOST}:{self._socket.getsockname()[1]}"
        routes = [
            Route("/v1/models", self._list_models),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/messages", self._anthropic, methods=["POST"]),
            Route("/env", self._show),
            Route("/env/step", self._step, methods=["POST"]),
            Route("/env/call", self._call, methods=["POST"]),
            Route("/env/reward", self._reward, methods=["POST"]),
            Route("/env/mcp", self._mcp, methods=["POST"]),
        ]
        handlers: Any = {Refused: _refuse, RecursionError: _refuse_depth}
        self._server = uvicorn.Server(
            uvicorn.Config(
                Starlette(routes=routes, exception_handlers=handlers),
                log_config=None,
                log_level="critical",
                access_log=False,
                lifespan="off",
                limit_concurrency=_MAX_CONNECTIONS,
                timeout_graceful_shutdown=1,
            )
        )
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def close(self) -> None:
        """Ends the server."""
        self._server.should_exit = True
        await self._task
        self._socket.close()

    def tell(self, episode: OpenEpisode) -> dict[str, str]:
        """Serves an episode from now on, and returns what its program is told."""
        self.episodes[episode.key] = episode
        return {
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_KEY": episode.key,
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": episode.key,
            "ANTHROPIC_AUTH_TOKEN": episode.key,  # the user's own would be shown in its place
            "AGENTPEFT_ENV_URL": f"{self.url}/env",
        }

    def _find_episode(self, request: Request) -> OpenEpisode:
        """Returns the episode of the key that a request shows. Raises: Refused."""
        _, _, token = request.headers.get("authorization", "").partition(" ")
        episode = self.episodes.get(token.strip() or request.headers.get("x-api-key", ""))
        if episode is None:
            text = "no or a wrong key: an episode's key is valid while its program runs"
            raise Refused(401, text, "authentication_error")
        return episode

    async def _open(self, request: Request) -> tuple[OpenEpisode, Json]:
        """Returns the episode and the body of a request. Raises: Refused."""
        episode = self._find_episode(request)
        body = bytearray()
        async for block in request.stream():  # to its end, or the client would never read why
            body += block[: _MAX_BODY_BYTES + 1 - len(body)]
            if episode.stopped.done():
                raise Refused(409, "the episode is over")
        if len(body) > _MAX_BODY_BYTES:
            raise Refused(413, f"a request may have {_MAX_BODY_BYTES} bytes")
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            raise Refused(400, "the body must be JSON") from None
        if not isinstance(value, dict):
            raise Refused(400, "the body must be a JSON object")
        return episode, value

    async def _list_models(self, request: Request) -> Response:
        self._find_episode(request)
        model = {"id": wire.MODEL, "object": "model", "created": 0, "owned_by": "agentpeft"}
        return _json({"object": "list", "data": [model]})

    async def _chat(self, request: Request) -> Response:
        episode, body = await self._open(request)
        asked = wire.read_chat(body)
        completion = await episode.answer(asked, self._find_chat, request.is_disconnected)
        if body.get("stream") is True:
            return StreamingResponse(wire.stream_chat(completion), media_type=_EVENTS)
        return _json(completion)

    async def _anthropic(self, request: Request) -> Response:
        episode, body = await self._open(request)
        asked = wire.read_anthropic(body)
        completion = await episode.answer(asked, self._find_chat, request.is_disconnected)
        if body.get("stream") is True:
            return StreamingResponse(wire.stream_anthropic(completion), media_type=_EVENTS)
        return _json(wire.to_anthropic(completion))

    async def _show(self, request: Request) -> Response:
        episode = self._find_episode(request)
        return _json({"tools": episode.tools.to_openai(), "is_over": episode.is_over})

    async def _step(self, request: Request) -> Response:
        episode, body = await self._open(request)
        action = body.get("action")
        if not isinstance(action, str):
            raise Refused(400, f"action must be text, got {action!r:.60}")
        result = await episode.step(action)
        return _json({"observation": result.observation, "is_over": result.is_last})

    async def _call(self, request: Request) -> Response:
        episode, body = await self._open(request)
        said = await episode.call_tool(ToolCall(body.get("name"), body.get("arguments", {})))
        return _json({"observation": said, "is_over": episode.is_over})

    async def _reward(self, request: Request) -> Response:
        episode, body = await self._open(request)
        episode.post_reward(body.get("reward"))
        return _json({"is_over": True})

    async def _mcp(self, request: Request) -> Response:
        """Answers a message of MCP's streamable HTTP: the environment's tools."""
        episode, body = await self._open(request)
        if body.get("id") is None:  # a notification
            return Response(status_code=202)
        params = body.get("params")
        params = params if isinstance(params, dict) else {}
        answer: Json = {"jsonrpc": "2.0", "id": body["id"]}
        match body.get("method"):
            case "initialize":
                answer["result"] = {
                    "protocolVersion": params.get("protocolVersion"),
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "agentpeft", "version": "1"},
                }
            case "ping":
                answer["result"] = {}
            case "tools/list":
                tools = [describe_tool(t.name, t.description, t.schema) for t in episode.tools]
                answer["result"] = {"tools": tools}
            case "tools/call":
                call = ToolCall(params.get("name"), params.get("arguments") or {})
                try:
                    said, is_error = await episode.call_tool(call), False
                except Refused as refusal:
                    said, is_error = refusal.message, True
                content = [{"type": "text", "text": said}]
                answer["result"] = {"content": content, "isError": is_error}
            case method:
                answer["error"] = {"code": _RPC_NO_METHOD, "message": f"no method {method!r:.60}"}
        return _json(answer)


def _json(value: Json, status: int = 200) -> Response:
    # In ASCII: half a surrogate pair, which a model may write too, has no UTF-8
    return Response(json.dumps(value), status, media_type="application/json")


async def _refuse(_: Request, refusal: Refused) -> Response:
    error = {"message": refusal.message, "type": refusal.kind, "code": refusal.kind}
    return _json({"type": "error", "error": error}, refusal.status)


async def _refuse_depth(request: Request, _: Exception) -> Response:
    return await _refuse(request, Refused(400, "the body is nested too deeply"))
