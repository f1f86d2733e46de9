"""Runs the application until a signal, and closes what sessions have left."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from agentpeft.apps.drivers.tool_episode import tool_kwargs
from agentpeft.apps.lab.playing.beside import OtherPlayer
from agentpeft.apps.serve.application import make_application
from agentpeft.apps.serve.gate import Limits
from agentpeft.apps.serve.metrics import ServerMetrics
from agentpeft.apps.serve.session import ServedEnvironment
from agentpeft.envs.registration import get_env_name
from agentpeft.policies.process_upkeep import present_objects_set_apart

logger = logging.getLogger(__name__)
_PING_S = 20.0
_BACKLOG = 2048


@dataclass(frozen=True)
class Options:
    """What a server is started with; see `apps/serve/serve.py`."""

    environments: Sequence[tuple[str, dict[str, Any]]]
    has_tools: bool
    tokens: tuple[str, ...]
    tls: tuple[Path, Path] | None
    has_oracle: bool
    policy: OtherPlayer | None
    client_kwargs: frozenset[str]
    limits: Limits
    end_s: int


class _Server(uvicorn.Server):
    """Says when it can be reached."""

    def __init__(self, config: uvicorn.Config, tell: Callable[[], None]) -> None:
        super().__init__(config)
        self._tell = tell

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._tell()


def run(
    options: Options, listener: socket.socket, tell: Callable[[str, Sequence[str]], None]
) -> None:
    """Serves on a bound socket until SIGTERM or Ctrl-C.

    `tell` gets the server's address and the ids that it serves, once it takes connections. Raises:
    SettingsError, DataError or EnvFault if an environment cannot be made; OSError if another
    process listens there.
    """
    metrics = ServerMetrics()
    served = [
        ServedEnvironment(
            env_id=env_id,
            kwargs=tool_kwargs(env_id, kwargs) if options.has_tools else kwargs,
            has_tools=options.has_tools,
            client_kwargs=options.client_kwargs,
            has_oracle=options.has_oracle,
            policy=options.policy,
            metrics=metrics,
            max_message_bytes=options.limits.max_message_bytes,
            name=get_env_name(env_id),
        )
        for env_id, kwargs in options.environments
    ]
    for one in served:
        one.close(one.make({}))  # wrong arguments are told now, not to the first client
    application = make_application(served, options.limits, options.tokens, metrics)
    host, port = listener.getsockname()[:2]
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    url = f"{'https' if options.tls else 'http'}://{place}"
    server = _Server(_configure(options, application), lambda: tell(url, [s.name for s in served]))
    logging.getLogger("uvicorn.error").addFilter(_is_mistake)
    try:
        listener.listen(_BACKLOG)  # fails where another process came first since it was bound
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from error
    with _outliving_signals(server):
        try:
            # To its end alone, or libraries tell at theirs of what nobody has collected
            with present_objects_set_apart():
                server.run(sockets=[listener])
        finally:
            for one in served:
                one.close_all()
            if any(one.working for one in served):  # Python would wait for their threads
                logger.warning("a step does not end: the server ends without it")
                os._exit(0)


@contextmanager
def _outliving_signals(server: uvicorn.Server) -> Iterator[None]:
    """Keeps a stop from ending the process before environments are closed.

    The server has handlers of its own while it runs; once it has stopped it raises the signal anew.
    """
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: _stop(server)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _stop(server: uvicorn.Server) -> None:
    server.should_exit = True


def _is_mistake(record: logging.LogRecord) -> bool:
    """Leaves out what uvicorn logs of sessions that are refused, or under way at the end."""
    error = record.exc_info[1] if record.exc_info else None
    is_refusal = "without completing handshake" in record.getMessage()
    return not (is_refusal or isinstance(error, asyncio.CancelledError))


def _configure(options: Options, application: Any) -> uvicorn.Config:
    limits = options.limits
    cert, key = options.tls or (None, None)
    return uvicorn.Config(
        application,
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # an address that a client may choose limits nothing
        server_header=False,
        ssl_certfile=cert,
        ssl_keyfile=key,
        ws_max_size=limits.max_message_bytes,
        ws_per_message_deflate=False,
        ws_ping_interval=min(_PING_S, limits.idle_s),
        ws_ping_timeout=min(_PING_S, limits.idle_s),
        timeout_keep_alive=30,
        timeout_graceful_shutdown=options.end_s,
    )
