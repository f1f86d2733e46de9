"""What every engine can do."""

import math
from collections.abc import Sequence

from agentpeft.policies.errors import EngineError
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


class Engine:
    """Turns token ids into sampled token ids, for many sessions (episodes) at once.

    A session is opened before its first request and closed after its last; between the two it has
    at most one request under way. The defaults are those of an engine without weights of its own.
    """

    num_versions: int = 1
    """How many adapter versions are served at once. With more than one they are loaded and scored
    while requests are under way, which continue with the version that they name."""
    served_effect: float = math.nan
    """The share of the newest adapter's change that the served weights have (`ServedEffect`): 1 all
    of it, 0 none, as rounding has lost it. NaN if nothing changes, or the engine has no weights."""

    def update_sessions(self, opened: Sequence[str] = (), closed: Sequence[str] = ()) -> None:
        """Forgets the sessions `closed`, then announces those `opened`; unknown ones are ignored.

        A deterministic engine waits until every open session has asked, and serves them in order.
        """

    async def generate(self, request: GenerationRequest) -> Completion:
        """Samples one turn. Raises: EngineError where no adapter or model can serve it."""
        raise EngineError(f"{type(self).__name__}: {request.session} cannot be played")

    def load_adapter(self, adapter: AdapterVersion) -> AdapterAck:
        """Serves `adapter` from the next request on, and answers what was really received.

        Keys and values of versions that are served no more are dropped; no request of theirs may be
        under way. Raises: EngineError where names or shapes do not fit the model.
        """
        raise EngineError(f"{type(self).__name__}: {adapter.name} cannot be loaded")

    async def score(self, sequences: Sequence[Ids]) -> list[Floats]:
        """Returns the log-probabilities of each sequence's tokens but the first, float32, (T - 1,).

        At temperature 1, by the weights that `generate` samples from, without keys and values of
        earlier requests. Sequences have at least 2 tokens. An engine that serves one version may be
        asked only when no request is under way. Raises: EngineError where no adapter is served, or
        the engine has no weights.
        """
        raise EngineError(f"{type(self).__name__}: {len(sequences)} sequences cannot be scored")

    def interrupt(self) -> None:
        """Has all requests under way answered soon, with the tokens that they have by then.

        There may be none; their `stop_reason` is INTERRUPTED. It does not wait for the answers. An
        engine that cannot do so does nothing.
        """

    def sleep(self) -> None:
        """Gives memory back, if there is any, until the engine is asked for something again.

        Keys and values are forgotten; a GPU's weights are kept in the machine's memory. Raises:
        EngineError where requests are under way.
        """

    def close(self) -> None:
        """Frees memory and threads; idempotent."""
