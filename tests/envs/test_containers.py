"""A docker daemon that goes away in the middle of a request: an `EnvFault`, for both its users."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from agentpeft.envs import EnvFault
from agentpeft.envs.db_bench.backends.docker import DockerDatabase
from agentpeft.envs.os_interaction.sandboxes.sandbox import make_sandbox


class Ending(BaseHTTPRequestHandler):
    """A daemon that has every image, and hangs up on whoever wants a container."""

    def do_GET(self) -> None:
        is_list = "containers/json" in self.path
        text = json.dumps([] if is_list else {"ApiVersion": "1.44", "Id": "sha256:0"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self) -> None:
        self.close_connection = True

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(autouse=True)
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = HTTPServer(("127.0.0.1", 0), Ending)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_address[1]}")
    yield
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "play",
    [
        lambda: DockerDatabase("mysql:8.4"),
        lambda: make_sandbox("docker", image="debian:12").reset(),
    ],
)
def test_a_daemon_that_ends_is_the_environments_fault(play: Callable[[], object]) -> None:
    with pytest.raises(EnvFault, match="cannot make a container") as error:
        play()
    assert "\n" not in str(error.value)
