"""Actors: objects whose methods the driver calls by name, in processes of their own or in its own.

What they do is in `runner_group` and `learner_group`. With `num_env_runners` 0 they run here; else
Ray runs them (`ray_actors`).
"""

import gc
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVarTuple

from agentpeft.policies.errors import DeliveryError, EngineError, WorkerLostError
from agentpeft.policies.messages import Ref
from agentpeft.policies.process_upkeep import release_threads
from agentpeft.policies.settings.config import Settings

Ts = TypeVarTuple("Ts")
Place = Literal["stays", "drained", "none"]
_DEFERRED = (DeliveryError, EngineError, WorkerLostError)
"""Failures for which a runner may be replaced: as under Ray, `fetch` raises them."""


class Actor(ABC):
    """An object with named methods: a Ray actor in its own process, or an object in the driver's.

    Pass the results of other actors as a list of references, which the method resolves itself
    (`resolve`). Ray fetches a bare reference before it starts the method, and while it
    waits the actor cannot answer `ping`.

    `places`: where files of the driver's machine are on this one, by the driver's paths. `rank` is
    its number among the actors of its class, `store` the host and port where they meet.
    """

    places: Mapping[str, str] = {}
    rank = 0
    store: tuple[str, int] | None = None

    @classmethod
    def start_all(cls, spec: "ActorSpec", settings: Settings) -> "Actors":
        """Starts actors: with `num_env_runners` 0 a single one, an object in this process."""
        if settings.env_runners.num_env_runners == 0:
            return Actors(spec, settings)
        from agentpeft.policies.workers.ray_actors import RayActors

        return RayActors(spec, settings)

    def start(self, settings: Settings, num_threads: int) -> None:
        """Sets torch's threads and calls `make`. Not in the constructor: Ray hides its errors."""
        import torch

        torch.set_num_threads(num_threads)
        self.make(settings)

    @abstractmethod
    def make(self, settings: Settings) -> None:
        """Loads or starts what the actor works with."""

    def ping(self) -> None:  # noqa: B027 (answering is all)
        """Returns, even while another call is under way."""

    def close(self) -> None:  # noqa: B027 (most have nothing to close)
        """Frees what would outlive the process; idempotent."""


@dataclass(frozen=True)
class ActorSpec:
    """Actors of one class: how many, the CPUs and GPUs that Ray reserves for each, torch's threads.

    `name` is for messages. `is_closed`: `close` is called before an actor's process is ended.
    `store`: where they meet, if they do. `variables`: more of a process's environment.
    """

    name: str
    kind: type[Actor]
    num_actors: int
    num_cpus: float
    num_gpus: float
    num_threads: int
    is_closed: bool = False
    store: tuple[str, int] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


class Actors:
    """Actors of one class, called by index: here a single one, an object in this process.

    `call(0, LearnerActor.update)` names a method by its function, so that its arguments are
    type-checked. Only the name and the arguments are sent to the actor. In this process a call is
    over when it returns, so nothing overlaps: a lag, or several learners, needs Ray (`RayActors`).
    """

    num_actors = 1

    def __init__(self, spec: ActorSpec, settings: Settings) -> None:
        """Raises: PlacementError, WorkerLostError, and what making an actor raises."""
        self._spec = spec
        self._actor = self._make_actor(settings)

    def call(
        self,
        index: int,  # noqa: ARG002
        method: Callable[[Any, *Ts], object],
        *args: *Ts,
        num_returns: int = 1,
        is_beside: bool = False,  # noqa: ARG002
    ) -> Ref:
        """Calls a method and returns a reference to its result, or to each of `num_returns`.

        A call waits for the actor's earlier calls to end, unless `is_beside`. In this process it
        returns the result, or the failure that `fetch` raises, and raises all other errors.
        """
        try:
            return getattr(self._actor, method.__name__)(*args)
        except _DEFERRED as error:
            return error if num_returns == 1 else [error] * num_returns
        finally:
            release_threads()  # an engine has a thread of its own

    def fetch(self, refs: Sequence[Ref]) -> list[Any]:
        """Waits for results and returns them.

        Raises: what the method raised; WorkerLostError if the actor is gone;
        PayloadLostError if what it was sent is gone, so that it did nothing; RayHangsError.
        """
        for ref in refs:
            if isinstance(ref, _DEFERRED):
                raise ref
        return list(refs)

    def wait(self, refs: Sequence[Ref], timeout_s: float | None = None) -> list[int]:  # noqa: ARG002
        """Returns the places of results that are there, or errors; waits for one, `timeout_s` long.

        An actor that answers no ping is ended, so that what it owes is an error.
        """
        return list(range(len(refs)))

    def restart(self, index: int, settings: Settings) -> None:  # noqa: ARG002
        """Replaces an actor. Raises: PlacementError, WorkerLostError, and what making it raises."""
        self.close()
        gc.unfreeze()  # or what is left of the old actor would stay
        self._actor = self._make_actor(settings)

    def find_places(self) -> Sequence[Place]:
        """Returns of each actor whether its machine stays, is being drained, or is not there."""
        return ["stays"]

    def close(self) -> None:
        """Ends the actors; idempotent."""
        self._actor.close()

    def _make_actor(self, settings: Settings) -> Actor:
        actor = self._spec.kind()
        actor.start(settings, self._spec.num_threads)
        return actor


def resolve(refs: Sequence[Ref]) -> list[Any]:
    """Returns the objects that references refer to, in an actor's method.

    In one process they are the objects, and `ray.get` would start Ray.
    """
    ray = sys.modules.get("ray")
    is_remote = ray is not None and any(isinstance(ref, ray.ObjectRef) for ref in refs)
    return list(ray.get(list(refs)) if ray is not None and is_remote else refs)


def missing(actors: Actors, refs: Sequence[Ref]) -> list[Ref]:
    """Returns those of `refs` whose results are not there, nor errors in their places."""
    if not refs:
        return []
    ready = set(actors.wait(refs, timeout_s=0.0))
    return [ref for place, ref in enumerate(refs) if place not in ready]
