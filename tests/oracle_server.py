"""A server of OpenAI's API whose model is the oracle: it calls the tools that solve its prompt."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agentpeft.apps.drivers.tool_episode import tool_kwargs
from agentpeft.envs.tools.tool_table import ToolCall
from agentpeft.policies.rollout.environments import EnvPool

Calls = dict[str, list[ToolCall]]
"""What solves each prompt."""


def oracle_calls(env_id: str, num_tasks: int, **kwargs: Any) -> tuple[Calls, list[str]]:
    """Returns the calls for the first tasks of seed 0, and what no model may see of these tasks."""
    pool = EnvPool(env_id, tool_kwargs(env_id, kwargs), (0,))
    calls, secrets = {}, []
    for position in range(num_tasks):
        task = pool.task_at(position)
        env, prompt = pool.begin(position, task)
        oracle = env.unwrapped.oracle_actions(task)
        calls[prompt] = list(map(env.unwrapped.get_tools().find_call, oracle))
        secrets += [task.task_id, "skills"]
        pool.give_back(env)
    pool.close()
    return calls, secrets


def next_call(calls: Calls, texts: list[str], num_said: int) -> ToolCall:
    """Returns the oracle's call after `num_said` turns of the conversation that has these texts."""
    (prompt,) = [text for text in texts if text in calls]
    return calls[prompt][num_said]


class OracleServer(ThreadingHTTPServer):
    """`bodies` are the requests so far, as text."""

    daemon_threads = True

    def __init__(self, calls: Calls) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.calls, self.bodies = calls, list[str]()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: OracleServer

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.bodies.append(text)
        messages = json.loads(text)["messages"]
        num_said = sum(each["role"] == "assistant" for each in messages)
        texts = [each["content"] for each in messages if isinstance(each.get("content"), str)]
        call = next_call(self.server.calls, texts, num_said)
        function = {"name": call.name, "arguments": json.dumps(call.arguments)}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"call-{num_said}", "type": "function", "function": function}],
        }
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": "chat-1", "object": "chat.completion", "created": 0, "model": "oracle"}
        body = json.dumps({**head, "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        del args


@contextmanager
def oracle_server(calls: Calls) -> Iterator[OracleServer]:
    """Yields a running server."""
    with OracleServer(calls) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
