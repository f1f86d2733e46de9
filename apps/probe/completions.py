"""What an OpenAI-style endpoint says of given tokens, by `/v1/completions` with `echo`."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from agentpeft.envs import SettingsError
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import Floats, Ids

KEY_VARIABLE = "OPENAI_API_KEY"
_NUMBERED = re.compile(r"token_id:([0-9]{1,9})")
_MOST = 1e6


class CannotTellError(Exception):
    """The endpoint does not say what a verdict needs."""


class RefusedError(EngineError):
    """The endpoint answers, and refuses what it was asked."""


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
        told = self._ask(ids, max_tokens=1, temperature=0.0, echo=True)["token_logprobs"]
        given = told[1 : len(ids)]
        if len(told) not in (len(ids), len(ids) + 1) or told[0] is not None:
            raise CannotTellError(
                "it gives no log-probabilities of exactly the tokens of a prompt (echo, logprobs)"
            )
        return self._to_numbers(given)

    def sample(self, ids: Ids, num_tokens: int, seed: int) -> tuple[Ids, Floats]:
        """Returns up to `num_tokens` sampled tokens (N,) and the log-probabilities (N,) given.

        Raises: EngineError; CannotTellError if the endpoint does not name the tokens by number.
        """
        told = self._ask(
            ids, max_tokens=num_tokens, temperature=1.0, seed=seed, return_tokens_as_token_ids=True
        )
        names, logprobs = told.get("tokens"), told["token_logprobs"]
        numbers = [_NUMBERED.fullmatch(str(n)) for n in (names if isinstance(names, list) else ())]
        if None in numbers or len(logprobs) != len(numbers):
            raise CannotTellError("it does not name sampled tokens by their number")
        ids = np.array([int(number[1]) for number in numbers if number], np.int64)
        return ids, self._to_numbers(logprobs)

    def _to_numbers(self, values: list[Any]) -> Floats:
        """Raises: CannotTellError where one is no finite number."""
        if not all(isinstance(value, float | int) and abs(value) < _MOST for value in values):
            raise CannotTellError(f"model {self.model!r} gives log-probabilities that are none")
        return np.array(values, np.float32)

    def _ask(self, ids: Ids, **options: object) -> dict[str, Any]:
        """Returns the `logprobs` of the answer's one choice."""
        body = {"model": self.model, "prompt": ids.tolist(), "logprobs": 1, **options}
        try:
            answer = ask(f"{self.url}/completions", self.timeout_s, body)
        except RefusedError as error:
            raise CannotTellError(str(error)) from None
        try:
            (choice,) = answer["choices"]
            logprobs = choice["logprobs"]
        except (KeyError, TypeError, ValueError):
            raise EngineError(f"{self.url}/completions: no completion: {answer!r:.200}") from None
        if not isinstance(logprobs, dict) or not isinstance(logprobs.get("token_logprobs"), list):
            raise CannotTellError("it gives no log-probabilities (logprobs)")
        return logprobs


def find_models(url: str, timeout_s: float) -> dict[str, str | None]:
    """Returns the endpoint's models, with the base of those that are adapters, where it says so.

    Raises: EngineError.
    """
    answer = ask(f"{url}/models", timeout_s)
    try:
        parents = {str(model["id"]): model.get("parent") for model in answer["data"]}
    except (KeyError, TypeError, AttributeError):
        raise EngineError(f"{url}/models: no list of models: {answer!r:.200}") from None
    return {name: parent if isinstance(parent, str) else None for name, parent in parents.items()}


def ask(url: str, timeout_s: float, body: Mapping[str, object] | None = None) -> Any:
    """Returns the JSON that a URL answers, or the text; a `body` is posted.

    Raises: SettingsError where it is no URL, or the key is none; EngineError where nothing
    answers, or no JSON; RefusedError.
    """
    key = os.environ.get(KEY_VARIABLE, "")
    if key and not (key.isascii() and key.isprintable()):
        raise SettingsError(f"{KEY_VARIABLE} has characters that no key has")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    method = "GET" if body is None else "POST"
    try:
        answer = httpx.request(method, url, json=body, headers=headers, timeout=timeout_s)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol):
        raise SettingsError(
            f"expected a URL such as http://localhost:8000/v1, got {url!r}"
        ) from None
    except httpx.HTTPError as error:
        raise EngineError(f"{url} does not answer: {error}. Is the server running?") from None
    if answer.is_success:
        try:
            return answer.json() if answer.text.lstrip()[:1] in ("{", "[") else answer.text
        except (ValueError, RecursionError):
            raise EngineError(f"{url} answers with something that is no JSON") from None
    status, text = answer.status_code, " ".join(answer.text.split())
    hint = f" (the key is taken from {KEY_VARIABLE})" if status in (401, 403) else ""
    kind = RefusedError if status in (400, 404, 405, 422, 501) else EngineError
    raise kind(f"{url} answers {status}: {text:.300}{hint}")
