"""`OpenAIEngine`: plays through any OpenAI-compatible endpoint, for evaluation (needs `openai`).

Such a model's tokens are not known here, so a conversation is kept as text: `TextChat` makes ids
of its characters. Nothing can be learnt from what it samples: there are no log-probabilities.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np
from openai import APIError, AsyncOpenAI, BadRequestError, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from agentpeft.policies.chat import TextChat
from agentpeft.policies.errors import EngineError
from agentpeft.policies.samples import (
    AdapterAck,
    AdapterVersion,
    Completion,
    GenerationRequest,
    Ids,
    StopReason,
)

_NO_KEY = "none"  # local servers ask for none, and the client insists on one


@dataclass(frozen=True)
class Endpoint:
    """Where to ask, and for which model; `api_key` "" is for servers that need none.

    `options` are further fields of every request, such as `{"top_p": 0.9}`.
    """

    url: str
    model: str
    api_key: str = ""
    timeout_s: float = 600.0
    max_retries: int = 5
    options: Mapping[str, object] = field(default_factory=dict)


def list_models(url: str, api_key: str = "") -> list[str]:
    """Returns the names that an endpoint serves. Raises: EngineError where it does not answer."""
    client = OpenAI(base_url=url, api_key=api_key or _NO_KEY, max_retries=1, timeout=10.0)
    try:
        with client:
            return [model.id for model in client.models.list()]
    except APIError as error:
        raise EngineError(f"endpoint {url} lists no models: {error}") from None


class OpenAIEngine:
    """Asks `/chat/completions` for every turn; the client tries again after what may pass.

    `num_tokens` counts what a session's turns cost by the endpoint's own tokenizer, since it was
    opened last.
    """

    def __init__(self, endpoint: Endpoint, chat: TextChat) -> None:
        """Connects with the first request."""
        self._endpoint, self._chat = endpoint, chat
        self.num_tokens: dict[str, int] = {}
        self._client = AsyncOpenAI(
            base_url=endpoint.url,
            api_key=endpoint.api_key or _NO_KEY,
            timeout=endpoint.timeout_s,
            max_retries=endpoint.max_retries,
        )

    def update_sessions(self, opened: Sequence[str] = (), closed: Sequence[str] = ()) -> None:
        """Begins to count; a closed session's count stays."""
        del closed
        self.num_tokens.update(dict.fromkeys(opened, 0))

    async def generate(self, request: GenerationRequest) -> Completion:
        """Samples one turn; a conversation longer than the model's context has no more tokens.

        Raises: EngineError where the endpoint refuses or does not answer.
        """
        limit = {} if "max_completion_tokens" in self._endpoint.options else _limit(request)
        try:
            answer = await self._client.chat.completions.create(
                model=self._endpoint.model,
                messages=_to_messages(self._chat.split(request.prompt_ids)),
                temperature=request.temperature,
                seed=_to_seed(request.seed),
                extra_body={**limit, **self._endpoint.options},
            )
        except BadRequestError as error:
            if "context" in str(error).lower():
                return _complete(np.empty(0, np.int64), StopReason.CONTEXT_FULL)
            raise EngineError(f"endpoint {self._endpoint.url}: {error}") from None
        except APIError as error:
            raise EngineError(f"endpoint {self._endpoint.url}: {error}") from None
        choice = answer.choices[0]
        if answer.usage is not None:
            self.num_tokens[request.session] += answer.usage.completion_tokens
        text = choice.message.content or ""
        if choice.finish_reason == "length":
            return _complete(self._chat.encode(text), StopReason.MAX_NEW_TOKENS)
        return _complete(self._chat.encode_action(text), StopReason.STOP_TOKEN)

    def load_adapter(self, adapter: AdapterVersion) -> AdapterAck:
        """Raises: EngineError: a server's adapters are models of its own."""
        raise EngineError(f"{adapter.name} cannot be sent to the endpoint {self._endpoint.url}")

    def close(self) -> None:
        """Does nothing: connections end with the event loop that they belong to."""


def _to_messages(texts: Sequence[str]) -> list[ChatCompletionMessageParam]:
    return [
        {"role": "assistant", "content": text} if index % 2 else {"role": "user", "content": text}
        for index, text in enumerate(texts)
    ]


def _limit(request: GenerationRequest) -> dict[str, object]:
    """Returns the limit by the name that all servers know but OpenAI's reasoning models."""
    return {"max_tokens": request.max_new_tokens}


def _to_seed(seed: tuple[int, ...]) -> int:
    return int.from_bytes(sha256(repr(seed).encode()).digest()[:4], "big") >> 1


def _complete(ids: Ids, reason: StopReason) -> Completion:
    return Completion(ids, np.zeros(len(ids), np.float32), reason, 0)
