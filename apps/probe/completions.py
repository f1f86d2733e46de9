"""What an OpenAI-style endpoint says of given tokens, by `/v1/completions` with `echo`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from agentpeft.policies.engines.endpoint_address import KEY_VARIABLE, read_key
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import Floats, Ids

_NUMBERED = re.compile(r"token_id:([0-9]{1,9})")


class CannotTellError(EngineError):
    """The endpoint does not say what a verdict needs."""


@dataclass(frozen=True)
class Completions:
    """One model of an endpoint, such as `http://localhost:8000/v1`."""

    url: str
    model: str
    timeout_s: float

    def score(self, ids: Ids) -> Floats:
        """Returns the log-probability (T - 1,) of each token but the first, at temperature 1.

        Raises: EngineError; CannotTellError if the endpoint gives none of a prompt's tokens.
        """
        logprobs, _ = self._ask(ids, max_tokens=1, temperature=0.0, echo=True)
        if len(logprobs) not in (len(ids), len(ids) + 1) or logprobs[0] is not None:
            raise CannotTellError("it gives no log-probabilities of a prompt's tokens (echo)")
        return self._to_numbers(logprobs[1 : len(ids)])

    def sample(self, ids: Ids, num_tokens: int, seed: int) -> tuple[Ids, Floats]:
        """Returns up to `num_tokens` sampled tokens (N,) and the log-probabilities (N,) given.

        Raises: EngineError; CannotTellError if the endpoint does not name the tokens by number.
        """
        logprobs, names = self._ask(
            ids, max_tokens=num_tokens, temperature=1.0, seed=seed, return_tokens_as_token_ids=True
        )
        tokens = names if isinstance(names, list) else []
        numbers = [int(match[1]) for match in map(_NUMBERED.fullmatch, map(str, tokens)) if match]
        if len(logprobs) != len(numbers):
            raise CannotTellError("it does not name sampled tokens by their number")
        return np.array(numbers, np.int64), self._to_numbers(logprobs)

    def _to_numbers(self, values: list[Any]) -> Floats:
        """Raises: CannotTellError where one is no finite number."""
        if not all(isinstance(value, float | int) and abs(value) < 1e6 for value in values):
            raise CannotTellError(f"model {self.model!r} gives log-probabilities that are none")
        return np.array(values, np.float32)

    def _ask(self, ids: Ids, **options: object) -> tuple[list[Any], object]:
        """Returns the log-probabilities of the one choice, and the names of its tokens."""
        body = {"model": self.model, "prompt": ids.tolist(), "logprobs": 1, **options}
        answer = ask(f"{self.url}/completions", self.timeout_s, body)
        match answer:
            case {"choices": [{"logprobs": {"token_logprobs": list(logprobs), **others}}]}:
                return logprobs, others.get("tokens")
        raise CannotTellError(f"it gives no log-probabilities (logprobs): {answer!r:.200}")


def find_models(url: str, timeout_s: float) -> dict[str, str]:
    """Returns the endpoint's models, with the base of those that are adapters, else "".

    Raises: EngineError.
    """
    answer = ask(f"{url}/models", timeout_s)
    try:
        return {str(model["id"]): str(model.get("parent") or "") for model in answer["data"]}
    except (KeyError, TypeError, AttributeError):
        raise EngineError(f"{url}/models: no list of models: {answer!r:.200}") from None


def ask(url: str, timeout_s: float, body: Mapping[str, object] | None = None) -> Any:
    """Returns the JSON that a URL answers, or the text; a `body` is posted.

    Raises: SettingsError where the key is none; EngineError where nothing answers;
    CannotTellError where that refuses.
    """
    key = read_key()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    method = "GET" if body is None else "POST"
    try:
        answer = httpx.request(method, url, json=body, headers=headers, timeout=timeout_s)
    except httpx.HTTPError as error:
        raise EngineError(f"{url} does not answer: {error}. Is the server running?") from None
    if not answer.is_success:
        status, text = answer.status_code, " ".join(answer.text.split())
        hint = f" (the key is taken from {KEY_VARIABLE})" if status in (401, 403) else ""
        kind = CannotTellError if status in (400, 404, 405, 422, 501) else EngineError
        raise kind(f"{url} answers {status}: {text:.300}{hint}")
    try:
        return answer.json()
    except (ValueError, RecursionError):
        return answer.text
