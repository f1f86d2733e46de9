"""A small OpenAI-compatible server: the tiny model through our own engine, in vLLM's shapes."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, ClassVar

import numpy as np

from agentpeft.policies.engines.transformers.engine import EngineSettings, TransformersEngine
from agentpeft.policies.messages import GenerationRequest, StopReason
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.rollout.chat import ChatFormat

MAX_CONTEXT = 200


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "TinyServer"

    def do_GET(self) -> None:
        models = [{"id": "tiny", "object": "model", "created": 0, "owned_by": "tests"}]
        self._answer(200, {"object": "list", "data": models})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if self.server.num_busy > 0:
            self.server.num_busy -= 1
            self._answer(429, {"error": {"message": "busy", "type": "rate_limit"}})
            return
        self._answer(*self.server.complete(body))

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: object) -> None:
        del args


class TinyServer(ThreadingHTTPServer):
    """`bodies` are the requests so far; the next `num_busy` are answered with 429."""

    daemon_threads = True
    numbers: ClassVar[Iterator[int]] = count()

    def __init__(self, base: PolicyBase) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[dict[str, Any]] = []
        self.num_busy = 0
        self._tokenizer, self._chat = base.tokenizer, ChatFormat(base.tokenizer)
        own = EngineSettings(needs_adapter=False)
        self.engine = TransformersEngine(base.model, self._chat.stop_token_ids, own)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def complete(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        ids = self._tokenizer.apply_chat_template(
            body["messages"], add_generation_prompt=True, return_dict=False
        )
        if len(ids) > MAX_CONTEXT:
            message = f"This model's maximum context length is {MAX_CONTEXT} tokens"
            return 400, {"error": {"message": message, "type": "BadRequestError", "code": 400}}
        done = asyncio.run(self._generate(np.array(ids), body))
        reason = "stop" if done.stop_reason is StopReason.STOP_TOKEN else "length"
        message = {"role": "assistant", "content": self._chat.decode(done.token_ids)}
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(done.token_ids)}
        return 200, {
            "id": "1", "object": "chat.completion", "created": 0, "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": usage | {"total_tokens": len(ids) + len(done.token_ids)},
        }  # fmt: skip

    async def _generate(self, ids: Any, body: dict[str, Any]) -> Any:
        session = f"request-{next(self.numbers)}"
        self.engine.update_sessions([session])
        try:
            return await self.engine.generate(
                GenerationRequest(
                    session, ids, (body["seed"],), body["temperature"], body["max_tokens"]
                )
            )
        finally:
            self.engine.update_sessions(closed=[session])


@contextmanager
def serve(base: PolicyBase) -> Iterator[TinyServer]:
    """Yields a server of the base model, alone."""
    server = TinyServer(base)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        server.engine.close()
