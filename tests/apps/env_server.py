"""A real server of environments in a process of its own, and raw clients of it."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.request import Request, urlopen

from websockets.sync.client import ClientConnection, connect

ROOT = Path(__file__).parents[2]
SERVE = [sys.executable, "-m", "agentpeft.launch.cli", "serve"]
TOKEN = "good-token"


@dataclass(frozen=True)
class EnvServer:
    """A server that runs; `port` is its own."""

    url: str
    process: subprocess.Popen[str]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def get(self, path: str, token: str | None = TOKEN) -> str:
        """Returns what a path answers."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with urlopen(Request(f"{self.url}/{path}", headers=headers)) as answer:
            return answer.read().decode()

    def metric(self, name: str) -> float:
        """Returns the sum of a metric over its labels."""
        lines = (line.rpartition(" ") for line in self.get("metrics").splitlines())
        return sum(float(value) for key, _, value in lines if key.partition("{")[0] == name)


@contextmanager
def env_server(
    *words: str, token: str | None = TOKEN, errors: IO[str] | None = None
) -> Iterator[EnvServer]:
    """Yields a server with these arguments; it is stopped at the end, if it still runs.

    `errors` is where its standard error goes (None: to the test's).
    """
    command = [*SERVE, *words]
    command += ["--port", "0"] if "--port" not in words else []
    command += ["--token", token] if token else []
    environ = {key: value for key, value in os.environ.items() if key != "AGENTPEFT_TOKEN"}
    environ["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, Path(__file__).parent)))
    ends: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": errors}
    with subprocess.Popen(command, text=True, env=environ, **ends) as process:
        try:
            assert process.stdout is not None
            yield EnvServer(json.loads(process.stdout.readline())["url"], process)
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def session(
    server: EnvServer,
    env_id: str = "",
    *,
    token: str | None = TOKEN,
    address: str = "127.0.0.1",
    **options: object,
) -> Iterator[ClientConnection]:
    """Yields a bare WebSocket, which comes from an address of this machine."""
    path = f"/{env_id}/ws" if env_id else "/ws"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    headers |= options.pop("headers", {})  # type: ignore[arg-type]
    options.setdefault("close_timeout", 0.5)
    sock = socket.create_connection(("127.0.0.1", server.port), source_address=(address, 0))
    url = f"ws://127.0.0.1:{server.port}{path}"
    with connect(url, sock=sock, additional_headers=headers, **options) as websocket:
        yield websocket


def ask(websocket: ClientConnection, kind: str, **data: object) -> dict[str, object]:
    """Returns the answer to one message of OpenEnv's protocol."""
    message = {"type": kind} if kind == "state" else {"type": kind, "data": data}
    websocket.send(json.dumps(message))
    return json.loads(websocket.recv(20))
