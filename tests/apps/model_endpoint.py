"""An OpenAI-style endpoint over a model in this process, served rightly or wrongly."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel

LoadModel = Callable[[Path], torch.nn.Module]


def load_base(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder)


@dataclass
class Endpoint:
    """What is served: models by name; those but the first say that it is their base.

    `noise` is added to log-probabilities, as rounding does. `samples_with` is the model that
    generates, where it is not the one that scores.
    """

    models: dict[str, torch.nn.Module]
    noise: float = 0.0
    samples_with: str | None = None
    numbers_tokens: bool = True
    gives_echo: bool = True
    gives_nan: bool = False
    key: str | None = None
    url: str = ""
    asked: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def list_models(self) -> dict[str, object]:
        base = next(iter(self.models))
        rows = [{"id": name} | ({"parent": base} if name != base else {}) for name in self.models]
        return {"data": rows}

    @torch.no_grad()
    def complete(self, body: dict) -> dict[str, object]:
        self.asked.append(body["model"])
        ids = list(body["prompt"])
        model, samples = self.models[body["model"]], self.models[self.samples_with or body["model"]]
        chooser = torch.Generator().manual_seed(body.get("seed", 0))
        new: list[int] = []
        for _ in range(body["max_tokens"]):
            logits = samples(torch.tensor([ids + new])).logits[0, -1].float()
            new.append(int(torch.multinomial(logits.softmax(-1), 1, generator=chooser)))
        told = samples if self.samples_with else model
        sampled = self.logprobs(told, ids + new)[-len(new) :]
        scored = self.logprobs(model, ids) if body.get("echo") else []
        shown = [None, *scored] if body.get("echo") and self.gives_echo else []
        tokens = [f"token_id:{i}" if self.numbers_tokens else chr(97 + i % 26) for i in new]
        return {"choices": [{"logprobs": {"token_logprobs": [*shown, *sampled], "tokens": tokens}}]}

    def logprobs(self, model: torch.nn.Module, ids: list[int]) -> list[float]:
        logprobs = model(torch.tensor([ids])).logits[0, :-1].float().log_softmax(-1)
        given = logprobs[range(len(ids) - 1), ids[1:]]
        if self.gives_nan:
            given = given * torch.nan
        return (given + self.noise * torch.randn(len(given))).tolist()


@contextmanager
def served(endpoint: Endpoint) -> Iterator[Endpoint]:
    """Serves it on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(endpoint.list_models())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with endpoint.lock:
                if endpoint.key and self.headers["Authorization"] != f"Bearer {endpoint.key}":
                    self.send_error(401)
                elif self.path.endswith("/completions"):
                    self._answer(endpoint.complete(body))
                elif self.path.endswith("/load_lora_adapter"):
                    base = load_base(Path(body["lora_path"]).parent / "base")
                    endpoint.models[body["lora_name"]] = PeftModel.from_pretrained(
                        base, body["lora_path"]
                    )
                    self._answer({})
                else:
                    del endpoint.models[body["lora_name"]]
                    self._answer({})

        def _answer(self, value: object) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(value).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
