"""`BranchingEngine`: an engine's episodes after given first turns, as to play one another way."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from agentpeft.policies.engines.protocol import Engine
from agentpeft.policies.messages import (
    AdapterAck,
    AdapterVersion,
    Completion,
    Floats,
    GenerationRequest,
    Ids,
    StopReason,
)


class BranchingEngine:
    """Says the same first turns in every episode, then asks an engine, with seeds of its own.

    The engine samples at `temperature`, greedy requests too. Log-probabilities of the first turns
    are 0.
    """

    num_versions = 1
    served_effect = math.nan

    def __init__(
        self, engine: Engine, first_turns: Sequence[Ids], seed: int, temperature: float
    ) -> None:
        """`first_turns`: the tokens of whole turns; `seed` is added to each request's."""
        self._engine, self._first_turns = engine, first_turns
        self._seed, self._temperature = seed, temperature
        self._turns: dict[str, int] = {}
        self._version = 0

    def update_sessions(self, opened: Sequence[str] = (), closed: Sequence[str] = ()) -> None:
        """Begins and forgets episodes."""
        for session in closed:
            self._turns.pop(session, None)
        self._turns.update(dict.fromkeys(opened, 0))
        self._engine.update_sessions(opened, closed)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Returns a given turn, or what the engine samples. Raises: EngineError."""
        turn = self._turns[request.session]
        self._turns[request.session] += 1
        if turn < len(self._first_turns):
            ids = self._first_turns[turn]
            logprobs = np.zeros(len(ids), np.float32)
            return Completion(ids, logprobs, StopReason.STOP_TOKEN, self._version)
        own = replace(request, seed=(*request.seed, self._seed), temperature=self._temperature)
        return await self._engine.generate(own)

    def load_adapter(self, adapter: AdapterVersion) -> AdapterAck:
        """Hands the adapter on."""
        self._version = adapter.version
        return self._engine.load_adapter(adapter)

    async def score(self, sequences: Sequence[Ids]) -> list[Floats]:
        """Hands the sequences on."""
        return await self._engine.score(sequences)

    def close(self) -> None:
        """Closes the engine."""
        self._engine.close()
