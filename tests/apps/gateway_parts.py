"""Programs that play through the gateway: functions on a server, and what they send."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from typing import Any

import httpx

Play = Callable[["Program"], str | None]


class Program:
    """What a program is told, and a client with its key."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.variables, self.task = variables, variables["AGENTPEFT_TASK"]
        self.key, self.env = variables["OPENAI_API_KEY"], variables["AGENTPEFT_ENV_URL"]
        self.url = variables["OPENAI_BASE_URL"]
        headers = {"Authorization": f"Bearer {self.key}"}
        self.client = httpx.Client(headers=headers, timeout=60)

    def ask(self, *messages: Any, **options: Any) -> httpx.Response:
        """Asks for a turn; texts are the user's and the model's in turn."""
        roles = cycle(("user", "assistant"))
        told = [
            {"role": next(roles), "content": message} if isinstance(message, str) else message
            for message in messages
        ]
        body = {"model": "policy", "messages": told, **options}
        return self.client.post(f"{self.url}/chat/completions", json=body)

    def say(self, *messages: Any, **options: Any) -> str:
        """Returns the text of a turn."""
        answer = self.ask(*messages, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["message"]["content"]

    def step(self, action: str) -> dict[str, Any]:
        """Acts in the environment."""
        answer = self.client.post(f"{self.env}/step", json={"action": action})
        assert answer.status_code == 200, answer.text
        return answer.json()


def play_turns(program: Program) -> None:
    """Plays as our own loop does: every turn is an action."""
    messages = [program.task]
    while True:
        messages.append(program.say(*messages))
        result = program.step(messages[-1])
        if result["is_over"]:
            return
        messages.append(result["observation"])


@contextmanager
def pool_of(play: Play) -> Iterator[str]:
    """Serves programs: each request plays one; what goes wrong in one is answered 500.

    Yields the URL. An `int` that it returns is the status of its answer.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            variables = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, said = 200, ""
            program = Program(variables)
            try:
                answer = play(program)
                status, said = (answer, "") if isinstance(answer, int) else (200, answer or "")
            except (AssertionError, httpx.HTTPError, KeyError):
                status = 500
            program.client.close()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(said.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/play"
    finally:
        server.shutdown()
        server.server_close()
