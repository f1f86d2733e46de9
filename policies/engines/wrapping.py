"""Engines that ask another engine."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from agentpeft.policies.engines.protocol import Engine
from agentpeft.policies.messages import Completion, GenerationRequest, Ids, StopReason


class WrappingEngine(Engine):
    """Asks another engine for its turns, in its own way; a subclass has `generate`."""

    def __init__(self, engine: Engine) -> None:
        """`engine` is closed with this one."""
        self._engine = engine

    def close(self) -> None:
        """Closes the engine."""
        self._engine.close()


class RoutingEngine(WrappingEngine):
    """Names an adapter for each session to an engine that serves several of them.

    The adapter's number goes in `GenerationRequest.adapter_version`: its place in the embedded
    engine's `EngineSettings.adapters`, its version in vLLM, its place in `Endpoint.adapters`.
    """

    def __init__(self, engine: Engine, choose: Callable[[Ids], int]) -> None:
        """`choose` maps the tokens of an episode's prompt to an adapter's number."""
        super().__init__(engine)
        self._choose = choose
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


def say(ids: Ids, reason: StopReason = StopReason.STOP_TOKEN, version: int = 0) -> Completion:
    """Returns a turn that was not sampled: its log-probabilities are 0."""
    return Completion(ids, np.zeros(len(ids), np.float32), reason, version)
