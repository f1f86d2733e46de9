"""What an OpenAI-style endpoint says of given tokens, by `/v1/completions` with `echo`."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np

from agentpeft.envs import SettingsError
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import Floats, Ids

KEY_VARIABLE = "OPENAI_API_KEY"
_MAX_BYTES = 2**26
_NUMBERED = "token_id:"


class CannotTellError(Exception):
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
        logprobs = self._ask(ids, max_tokens=1, temperature=0.0, echo=True)["token_logprobs"]
        given = logprobs[1 : len(ids)]
        if len(given) < len(ids) - 1 or not all(isinstance(x, int | float) for x in given):
            raise CannotTellError(
                "it gives no log-probabilities of the tokens of a prompt (echo with logprobs)"
            )
        if not np.isfinite(given).all():
            raise EngineError(f"{self.url}: model {self.model!r} gives NaN or infinity")
        return np.array(given, np.float32)

    def sample(self, ids: Ids, num_tokens: int, seed: int) -> tuple[Ids, Floats]:
        """Returns up to `num_tokens` sampled tokens (N,) and the log-probabilities (N,) given.

        Raises: EngineError; CannotTellError if the endpoint does not name the tokens by number.
        """
        told = self._ask(
            ids, max_tokens=num_tokens, temperature=1.0, seed=seed, return_tokens_as_token_ids=True
        )
        names = [str(name) for name in told.get("tokens") or ()]
        numbers = [name.removeprefix(_NUMBERED) for name in names]
        if not all(name.startswith(_NUMBERED) for name in names) or not all(
            map(str.isdecimal, numbers)
        ):
            raise CannotTellError("it does not name sampled tokens by their number")
        return np.array(numbers, np.int64), np.array(told["token_logprobs"], np.float32)

    def _ask(self, ids: Ids, **options: object) -> dict[str, Any]:
        """Returns the `logprobs` of the answer's one choice."""
        body = {"model": self.model, "prompt": ids.tolist(), "logprobs": 1, **options}
        answer = ask(f"{self.url}/completions", self.timeout_s, body)
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
        return {str(model["id"]): model.get("parent") for model in answer["data"]}
    except (KeyError, TypeError, AttributeError):
        raise EngineError(f"{url}/models: no list of models: {answer!r:.200}") from None


def ask(url: str, timeout_s: float, body: Mapping[str, object] | None = None) -> Any:
    """Returns the JSON that a URL answers; a `body` is posted.

    Raises: SettingsError where it is no URL; EngineError where nothing answers, or no JSON, or the
    endpoint refuses.
    """
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get(KEY_VARIABLE):
        headers["Authorization"] = f"Bearer {key}"
    if not url.startswith(("http://", "https://")):
        raise SettingsError(f"expected a URL such as http://localhost:8000/v1, got {url!r}")
    try:
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(url, data, headers), timeout=timeout_s) as answer:  # noqa: S310
            text = answer.read(_MAX_BYTES)
        return json.loads(text) if text.lstrip()[:1] in (b"{", b"[") else text.decode()
    except HTTPError as error:
        said = " ".join(error.read().decode(errors="replace").split())
        hint = f" (the key is taken from {KEY_VARIABLE})" if error.code in (401, 403) else ""
        raise EngineError(f"{url} answers {error.code}: {said:.300}{hint}") from None
    except (URLError, OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise EngineError(f"{url} does not answer: {reason}. Is the server running?") from None
    except ValueError:
        raise EngineError(f"{url} answers with something that is no JSON") from None
