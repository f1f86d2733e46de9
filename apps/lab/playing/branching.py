"""`BranchingEngine`: an engine's episodes after given first turns, as to play one another way."""

from collections.abc import Sequence
from dataclasses import replace

from agentpeft.policies.engines.protocol import Engine
from agentpeft.policies.engines.wrapping import WrappingEngine, say
from agentpeft.policies.messages import (
    AdapterAck,
    AdapterVersion,
    Completion,
    GenerationRequest,
    Ids,
)


class BranchingEngine(WrappingEngine):
    """Says the same first turns in every episode, then asks an engine, with seeds of its own.

    The engine samples at `temperature`, greedy requests too. Log-probabilities of the first turns
    are 0.
    """

    def __init__(
        self, engine: Engine, first_turns: Sequence[Ids], seed: int, temperature: float
    ) -> None:
        """`first_turns`: the tokens of whole turns; `seed` is added to each request's."""
        super().__init__(engine)
        self._first_turns, self._seed, self._temperature = first_turns, seed, temperature
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
            return say(self._first_turns[turn], version=self._version)
        own = replace(request, seed=(*request.seed, self._seed), temperature=self._temperature)
        return await self._engine.generate(own)

    def load_adapter(self, adapter: AdapterVersion) -> AdapterAck:
        """Hands the adapter on."""
        self._version = adapter.version
        return self._engine.load_adapter(adapter)
