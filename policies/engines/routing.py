"""Several adapters at once: each episode is answered by the one that is chosen by its prompt."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from agentpeft.policies.engines.protocol import Engine
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import (
    AdapterAck,
    AdapterVersion,
    Completion,
    Floats,
    GenerationRequest,
    Ids,
)


class RoutingEngine:
    """Names an adapter for each session to an engine that serves several of them.

    The adapter's number goes in `GenerationRequest.adapter_version`: the embedded engine's place in
    `EngineSettings.adapters`, vLLM's version in a slot, an endpoint's place in `Endpoint.adapters`.
    """

    num_versions = 1
    served_effect = math.nan

    def __init__(self, engine: Engine, choose: Callable[[Ids], int]) -> None:
        """`choose` maps the tokens of an episode's prompt to an adapter's number."""
        self._engine, self._choose = engine, choose
        self._chosen: dict[str, int] = {}

    def update_sessions(self, opened: Sequence[str] = (), closed: Sequence[str] = ()) -> None:
        """Opens and closes sessions; one that is opened again is routed again."""
        for session in closed:
            self._chosen.pop(session, None)
        self._engine.update_sessions(opened, closed)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Samples a turn with the session's adapter. Raises: EngineError."""
        if request.session not in self._chosen:
            self._chosen[request.session] = self._choose(request.prompt_ids)
        number = self._chosen[request.session]
        answer = await self._engine.generate(replace(request, adapter_version=number))
        return replace(answer, adapter_version=request.adapter_version or 0)

    def load_adapter(self, adapter: AdapterVersion) -> AdapterAck:
        """Raises: EngineError: the adapters are those that were there at first."""
        raise EngineError(f"{adapter.name} cannot be loaded: which prompts would be its own?")

    async def score(self, sequences: Sequence[Ids]) -> list[Floats]:
        """Raises: EngineError: no prompt says which adapter scores."""
        raise EngineError(f"{len(sequences)} sequences cannot be scored by several adapters")

    def close(self) -> None:
        """Closes the engine."""
        self._engine.close()
