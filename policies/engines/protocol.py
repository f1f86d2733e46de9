"""What every engine can do, and what some can."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from agentpeft.policies.messages import (
    AdapterAck,
    AdapterVersion,
    Completion,
    Floats,
    GenerationRequest,
    Ids,
    StopReason,
)


def limit_turn(request: GenerationRequest, max_context_tokens: int) -> tuple[int, StopReason]:
    """Returns how many tokens a turn may have, and why one that has as many ends."""
    room = max_context_tokens - len(request.prompt_ids)
    if room < request.max_new_tokens:
        return max(room, 0), StopReason.CONTEXT_FULL
    return request.max_new_tokens, StopReason.MAX_NEW_TOKENS


class Engine(Protocol):
    """Turns token ids into sampled token ids, for many sessions (episodes) at once.

    A session is opened before its first request and closed after its last; between the two it has
    at most one request under way.
    """

    num_versions: int
    """How many adapter versions are served at once. With more than one they are loaded and scored
    while requests are under way, which go on with the version that they name."""
    served_effect: float
    """The share of the newest adapter's change of the weights that is in the served weights: 1 is
    all of it, 0 none, as rounding has lost it (`ServedEffect`). NaN if the adapter changes nothing,
    or the engine has no weights of its own."""

    def update_sessions(self, opened: Sequence[str] = (), closed: Sequence[str] = ()) -> None:
        """Forgets the sessions `closed`, then announces those `opened`; unknown ones are ignored.

        A deterministic engine waits until every open session has asked, and serves them in order.
        """
        ...

    async def generate(self, request: GenerationRequest) -> Completion:
        """Samples one turn. Raises: EngineError where no adapter or model can serve it."""
        ...

    def load_adapter(self, adapter: AdapterVersion) -> AdapterAck:
        """Serves `adapter` from the next request on, and answers what was really received.

        What was kept for versions that are served no more is dropped; no request of theirs may be
        under way. Raises: EngineError where names or shapes do not fit the model.
        """
        ...

    async def score(self, sequences: Sequence[Ids]) -> list[Floats]:
        """Returns the log-probabilities of each sequence's tokens but the first, float32, (T - 1,).

        At temperature 1, under the very weights that `generate` samples from (an adapter's slot,
        or fused weights as they lie in memory), but computed anew: no keys and values that were
        kept from earlier requests. Sequences have at least 2 tokens. Scoring opens no session. An
        engine that serves one version may be asked only when no request is under way. Raises:
        EngineError where no adapter is served, or the engine has no weights of its own.
        """
        ...

    def close(self) -> None:
        """Frees memory and threads; idempotent."""
        ...


@runtime_checkable
class InterruptibleEngine(Engine, Protocol):
    """An engine that can end what is under way early."""

    def interrupt(self) -> None:
        """Has all requests under way answered soon, with the tokens that they have by then.

        There may be none; their `stop_reason` is INTERRUPTED. Those that end by themselves
        meanwhile are answered as ever. It does not wait for that.
        """
        ...


@runtime_checkable
class SleepingEngine(Engine, Protocol):
    """An engine that can leave its memory to others for a while."""

    def sleep(self) -> None:
        """Gives the memory back that it can do without until it is asked for something again.

        Keys and values are forgotten; a GPU's weights are kept in the machine's memory meanwhile.
        Then it wakes by itself, whatever it is asked. Raises: EngineError where requests are under
        way.
        """
        ...
