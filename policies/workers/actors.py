"""Actors: objects whose methods the driver calls by name, in processes of their own or in its own.

What they do is in `runner_group` and `learner_group`; how Ray runs them is in `ray_actors`.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVarTuple

from agentpeft.policies.errors import DeliveryError, EngineError, WorkerLostError
from agentpeft.policies.messages import Ref
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.owned_process import end_with

Ts = TypeVarTuple("Ts")
_DEFERRED = (DeliveryError, EngineError, WorkerLostError)
"""Failures for which a runner may be replaced: in one process too, `fetch` raises them."""


class Actor(ABC):
    """An object whose methods are called by their names, in a Ray actor's process or the driver's.

    A method that takes other actors' results takes references in a list and resolves them itself
    (`ray_actors.resolve`). References that are arguments Ray would fetch before the call, and it
    would answer no ping until they have come, or their node is known to be lost.
    """

    def start(self, settings: Settings, num_threads: int, *, is_process: bool = False) -> None:
        """Makes what the actor works with; Ray would report an error of a constructor as its own.

        `is_process`: this process is the actor's alone, and ends with its node's Ray. Left to Ray,
        it would end only once somebody had reaped Ray's process.
        """
        if is_process:
            end_with(os.getppid())
        import torch

        torch.set_num_threads(num_threads)
        self.make(settings)

    @abstractmethod
    def make(self, settings: Settings) -> None:
        """Makes what the actor works with."""

    def ping(self) -> None:  # noqa: B027 (answering is all)
        """Returns, even while another call is under way."""

    def close(self) -> None:  # noqa: B027 (most have nothing to close)
        """Frees what ends with no process; idempotent."""


@dataclass(frozen=True)
class ActorSpec:
    """Actors of one class: how many, what Ray reserves for each, and each one's threads.

    `name` is for messages. `is_closed`: before an actor's process is ended, `close` is called.
    """

    name: str
    kind: type[Actor]
    num_actors: int
    num_cpus: float
    num_gpus: float
    num_threads: int
    is_closed: bool = False

    @property
    def bundle(self) -> dict[str, float]:
        """What Ray reserves for each actor."""
        wanted = {"CPU": self.num_cpus, "GPU": self.num_gpus}
        return {resource: amount for resource, amount in wanted.items() if amount > 0}


class Actors(Protocol):
    """Actors of one class, called by index.

    A method is named by the function of the class, `call(0, LearnerActor.update)`, so that its
    arguments are type-checked. Only its name and the arguments travel.
    """

    num_actors: int

    def call(
        self,
        index: int,
        method: Callable[[Any, *Ts], object],
        *args: *Ts,
        num_returns: int = 1,
        is_beside: bool = False,
    ) -> Ref:
        """Calls a method and returns a reference to its result.

        With `num_returns` above 1 the method returns so many items, and a list of a reference to
        each is returned. A call waits for the actor's earlier calls, unless it `is_beside` them.
        """
        ...

    def fetch(self, refs: Sequence[Ref]) -> list[Any]:
        """Waits for results and returns them.

        Raises: what the method raised; WorkerLostError or WorkerMemoryError if the actor is gone;
        PayloadLostError if what it was sent is gone, so that it did nothing; RayHangsError.
        """
        ...

    def restart(self, index: int, settings: Settings) -> None:
        """Replaces an actor by a new one.

        Raises: PlacementError if there is no room for it, WorkerLostError, and what making it
        raises.
        """
        ...

    def close(self) -> None:
        """Ends the actors; idempotent."""
        ...


class _InlineActors:
    """One actor in this process; a call is over when it returns."""

    num_actors = 1

    def __init__(self, spec: ActorSpec, settings: Settings) -> None:
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
        try:
            return getattr(self._actor, method.__name__)(*args)
        except _DEFERRED as error:
            return error if num_returns == 1 else [error] * num_returns

    def fetch(self, refs: Sequence[Ref]) -> list[Any]:
        for ref in refs:
            if isinstance(ref, _DEFERRED):
                raise ref
        return list(refs)

    def restart(self, index: int, settings: Settings) -> None:  # noqa: ARG002
        self.close()
        self._actor = self._start(settings)

    def close(self) -> None:
        self._actor.close()

    def _start(self, settings: Settings) -> Actor:
        actor = self._spec.kind()
        actor.start(settings, self._spec.num_threads)
        return actor


def start_actors(spec: ActorSpec, settings: Settings) -> Actors:
    """Returns running actors, inline if there are no env runner processes.

    Raises: PlacementError, and what making an actor raises.
    """
    if settings.env_runners.num_env_runners == 0:
        return _InlineActors(spec, settings)
    from agentpeft.policies.workers.ray_actors import RayActors

    return RayActors(spec, settings)
