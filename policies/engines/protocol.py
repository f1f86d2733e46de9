"""What every engine can do."""

from collections.abc import Sequence
from typing import Protocol

from agentpeft.policies.samples import AdapterAck, AdapterVersion, Completion, GenerationRequest


class Engine(Protocol):
    """Turns token ids into sampled token ids, for many sessions (episodes) at once.

    A session is opened before its first request and closed after its last; between the two it has
    at most one request under way.
    """

    def update_sessions(self, opened: Sequence[str] = (), closed: Sequence[str] = ()) -> None:
        """Announces and forgets sessions; closing an unknown one does nothing.

        A deterministic engine waits until every open session has asked, and serves them in order.
        """
        ...

    async def generate(self, request: GenerationRequest) -> Completion:
        """Samples one turn. Raises: EngineError where no adapter or model can serve it."""
        ...

    def load_adapter(self, adapter: AdapterVersion) -> AdapterAck:
        """Serves `adapter` from the next request on, and answers what was really received.

        Only called while no request is under way; what was kept for older versions is dropped.
        Raises: EngineError where names or shapes do not fit the model.
        """
        ...

    def close(self) -> None:
        """Frees memory and threads; idempotent."""
        ...
