"""`OpenAIEngine`: plays through any OpenAI-compatible endpoint, for evaluation (needs `openai`).

Such a model's tokens are not known here, so a conversation is kept as text, by `TextChat`, or by
`EndpointToolChat` where the model acts by calls of tools. Nothing
can be learnt from what it samples: there are no log-probabilities.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import cast

import numpy as np
from openai import (
    APIConnectionError,
    APIError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
)
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from agentpeft.policies.engines.endpoint_address import KEY_VARIABLE
from agentpeft.policies.engines.endpoint_chat import TextChat
from agentpeft.policies.engines.protocol import Engine
from agentpeft.policies.engines.wrapping import say
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import Completion, GenerationRequest, StopReason

MAX_RETRIES = 5
"""How often an endpoint is asked again after what may pass."""


@dataclass(frozen=True)
class Endpoint:
    """Where to ask, and for which model.

    `options` are further fields of every request, such as `{"top_p": 0.9}`. `adapters` are models
    there that a request's `adapter_version` chooses from, by number, in place of `model`.
    """

    url: str
    model: str
    api_key: str
    options: Mapping[str, object] = field(default_factory=dict)
    adapters: tuple[str, ...] = ()


class OpenAIEngine(Engine):
    """Asks `/chat/completions` for every turn; the client tries again after what may pass.

    `num_tokens` is what an episode's turns cost by the endpoint's own tokenizer; voters
    (`session#1`) count together. Connections end with the event loop that they belong to.
    """

    def __init__(self, endpoint: Endpoint, chat: TextChat) -> None:
        """Connects with the first request."""
        self._endpoint, self._chat = endpoint, chat
        self.num_tokens: dict[str, int] = {}
        self._client = AsyncOpenAI(
            base_url=endpoint.url, api_key=endpoint.api_key, max_retries=MAX_RETRIES
        )

    def update_sessions(self, opened: Sequence[str] = (), closed: Sequence[str] = ()) -> None:
        """Begins to count; a closed session's count stays."""
        del closed
        self.num_tokens.update(dict.fromkeys(map(_episode, opened), 0))

    async def generate(self, request: GenerationRequest) -> Completion:
        """Samples one turn; a conversation longer than the model's context has no more tokens.

        Raises: EngineError where the endpoint refuses or does not answer.
        """
        try:
            answer = await self._ask(request)
        except APIError as error:
            if isinstance(error, BadRequestError) and "context" in str(error).lower():
                return say(np.empty(0, np.int64), StopReason.CONTEXT_FULL)
            hint = " Is the server running?" if isinstance(error, APIConnectionError) else ""
            if isinstance(error, AuthenticationError):
                hint = f" (the key is taken from {KEY_VARIABLE})"
            raise EngineError(f"endpoint {self._endpoint.url}: {error}{hint}") from None
        except ValueError as error:
            raise EngineError(f"endpoint {self._endpoint.url} answers no JSON: {error}") from None
        if not isinstance(answer, ChatCompletion) or not answer.choices:
            text = f"endpoint {self._endpoint.url} answers no chat completion: {answer!r:.200}"
            raise EngineError(text)
        if answer.usage is not None:
            self.num_tokens[_episode(request.session)] += answer.usage.completion_tokens
        ids = self._chat.encode_message(answer.choices[0].message.model_dump())
        if answer.choices[0].finish_reason == "length":
            return say(ids[:-1], StopReason.MAX_NEW_TOKENS)
        return say(ids)

    async def _ask(self, request: GenerationRequest) -> ChatCompletion:
        body: dict[str, object] = dict(self._endpoint.options)
        if "max_completion_tokens" not in body:  # what reasoning models want in its place
            body["max_tokens"] = request.max_new_tokens
        seed = sha256(repr(request.seed).encode()).digest()[:4]
        if self._chat.tools:
            body["tools"] = self._chat.tools
        messages = self._chat.to_messages(request.prompt_ids)
        endpoint, number = self._endpoint, request.adapter_version or 0
        return await self._client.chat.completions.create(
            model=endpoint.adapters[number] if endpoint.adapters else endpoint.model,
            messages=cast(list[ChatCompletionMessageParam], messages),
            temperature=request.temperature,
            seed=int.from_bytes(seed, "big") >> 1,
            extra_body=body,
        )


def _episode(session: str) -> str:
    return session.partition("#")[0]
