"""An actor in the driver's own process, where there are no env runner processes."""

import gc
from collections.abc import Callable, Sequence
from typing import Any, TypeVarTuple

from agentpeft.policies.errors import DeliveryError, EngineError, WorkerLostError
from agentpeft.policies.messages import Ref
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.thread_pools import release_threads
from agentpeft.policies.workers.actors import Actor, ActorSpec, Place

Ts = TypeVarTuple("Ts")
_DEFERRED = (DeliveryError, EngineError, WorkerLostError)
"""Failures for which a runner may be replaced: as under Ray, `fetch` raises them."""


class InlineActors:
    """One actor in this process, as `Actors`; a call is over when it returns."""

    num_actors = 1

    def __init__(self, spec: ActorSpec, settings: Settings) -> None:
        """Raises: what making the actor raises."""
        self._spec = spec
        self._actor = self._start(settings)

    def call(
        self,
        index: int,  # noqa: ARG002
        method: Callable[[Any, *Ts], object],
        *args: *Ts,
        num_returns: int = 1,
        is_beside: bool = False,  # noqa: ARG002
    ) -> Ref:
        """Calls a method and returns its result, or the failure that `fetch` raises.

        Raises: what else the method raises.
        """
        try:
            return getattr(self._actor, method.__name__)(*args)
        except _DEFERRED as error:
            return error if num_returns == 1 else [error] * num_returns
        finally:
            release_threads()  # an engine has a thread of its own

    def fetch(self, refs: Sequence[Ref]) -> list[Any]:
        """Returns the results. Raises: a failure among them."""
        for ref in refs:
            if isinstance(ref, _DEFERRED):
                raise ref
        return list(refs)

    def wait(self, refs: Sequence[Ref], timeout_s: float | None = None) -> list[int]:  # noqa: ARG002
        """Returns the places of all."""
        return list(range(len(refs)))

    def restart(self, index: int, settings: Settings) -> None:  # noqa: ARG002
        """Replaces the actor by a new one."""
        self.close()
        gc.unfreeze()  # or what is left of the old actor would stay
        self._actor = self._start(settings)

    def find_places(self) -> Sequence[Place]:
        """Returns that this machine stays."""
        return ["stays"]

    def close(self) -> None:
        """Ends the actor; idempotent."""
        self._actor.close()

    def _start(self, settings: Settings) -> Actor:
        actor = self._spec.kind()
        actor.start(settings, self._spec.num_threads)
        return actor
