"""The server's application: each environment at a path of its own, and what is asked of all."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

from fastapi import FastAPI, Request
from fastapi.exception_handlers import (
    http_exception_handler,
    request_validation_exception_handler,
)
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from agentpeft.apps.serve.gate import Application, Gate, Limits
from agentpeft.apps.serve.held_sessions import HeldSessions, SessionPlaces
from agentpeft.apps.serve.metrics import ServerMetrics
from agentpeft.apps.serve.openenv_types import HTTPEnvServer, State, TextAction, TextObservation
from agentpeft.apps.serve.patient_threads import PatientThreads
from agentpeft.apps.serve.play_socket import PlaySocket
from agentpeft.apps.serve.played_session import MAX_INVALID_CHARS, cut
from agentpeft.apps.serve.session import ServedEnvironment, ServedError, TextSession

_PAGE = Path(__file__).parent / "page" / "index.html"
_KEPT_PATHS = {"/reset", "/step", "/state", "/metadata", "/health", "/schema"}
"""What is served of the library's routes. The sessions of its `/mcp` may last for ever."""


def make_application(
    served: Sequence[ServedEnvironment],
    limits: Limits,
    tokens: tuple[str, ...],
    metrics: ServerMetrics,
) -> Application:
    """Returns the server's application: the first environment is at the root, too."""
    places = SessionPlaces(limits.max_sessions, metrics)
    held = HeldSessions(places, limits.idle_s)
    threads = {waits: PatientThreads.of_steps(that_wait=waits) for waits in (False, True)}
    applications = [_make_one(one, limits, PlaySocket(one, held, threads)) for one in served]
    names = [one.name for one in served]

    def list_environments(_: Request) -> Response:
        return JSONResponse({"environments": names})

    def show_metrics(_: Request) -> Response:
        return PlainTextResponse(metrics.to_text(), media_type="text/plain; version=0.0.4")

    routes: list[BaseRoute] = [
        Route("/", lambda _: FileResponse(_PAGE)),
        Route("/metrics", show_metrics),
        Route("/environments", list_environments),
        *(Mount(f"/{one.name}", app) for one, app in zip(served, applications, strict=True)),
        Mount("/", applications[0]),
    ]
    refuse_unknown = WebSocketRoute("/{path:path}", partial(_refuse_unknown, names=names))
    applications[0].router.routes.append(refuse_unknown)
    return Gate(Starlette(routes=routes), limits, tokens, metrics, places, held)


def _make_one(served: ServedEnvironment, limits: Limits, socket: PlaySocket) -> FastAPI:
    """Returns the application of one environment, as OpenEnv's library makes it."""
    app = FastAPI(title=f"AgentPEFT: {served.name}", version="1.0.0")
    server = HTTPEnvServer(
        partial(TextSession, served),
        TextAction,
        TextObservation,
        max_concurrent_envs=limits.max_sessions,
        env_name=served.name,
        state_cls=State,
    )
    own = {route.path for route in app.routes if isinstance(route, Route)}
    server.register_routes(app)
    app.router.routes[:] = [
        route for route in app.routes if getattr(route, "path", "") in _KEPT_PATHS | own
    ]
    app.router.routes += [
        WebSocketRoute("/ws", socket.play),
        Route("/mcp", socket.answer, methods=["POST"]),
    ]
    app.add_exception_handler(ServedError, _tell_error)
    app.add_exception_handler(ValidationError, _tell_error)
    app.add_exception_handler(HTTPException, _tell_shortly)
    app.add_exception_handler(RequestValidationError, _tell_shortly)
    return app


def _tell_error(_: Request, error: Exception) -> Response:
    return JSONResponse({"detail": cut(" ".join(str(error).split()))}, status_code=409)


async def _tell_shortly(request: Request, error: Exception) -> Response:
    """Answers as FastAPI does, which repeats what was sent, unless that is long."""
    answer: Response
    if isinstance(error, RequestValidationError):
        answer = await request_validation_exception_handler(request, error)
    else:
        answer = await http_exception_handler(request, cast(HTTPException, error))
    if len(answer.body) <= MAX_INVALID_CHARS:
        return answer
    text = cut(bytes(answer.body).decode())
    return JSONResponse({"detail": text}, status_code=answer.status_code)


async def _refuse_unknown(websocket: WebSocket, names: Sequence[str]) -> None:
    text = f"no environment at this path; served: {', '.join(names)}\n"
    await websocket.send_denial_response(PlainTextResponse(text, 404))
