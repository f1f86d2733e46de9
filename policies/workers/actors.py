"""Actors: objects whose methods the driver calls by name, in processes of their own or in its own.

What they do is in `runner_actor` and `learner_group`, how they run in `ray_actors` and
`inline_actors`, of which `start_actors` takes one.
"""

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVarTuple

from agentpeft.envs.system.garbage import set_present_objects_apart
from agentpeft.policies.messages import Ref
from agentpeft.policies.settings.config import Settings

if TYPE_CHECKING:  # an actor in this process needs none of it
    from agentpeft.policies.workers.brought_files import FilesToSend

Ts = TypeVarTuple("Ts")
Place = Literal["stays", "drained", "none"]


class Actor(ABC):
    """An object with named methods: a Ray actor in its own process, or an object in the driver's.

    Pass the results of other actors as a list of references, which the method resolves itself
    (`resolve`). Ray fetches a bare reference before it starts the method, and while it
    waits the actor cannot answer `ping`.
    """

    places: Mapping[str, str] = {}
    """Where files of the driver's machine are on this one, by the driver's paths."""
    rank = 0
    store: tuple[str, int] | None = None
    """Its number among the actors of its class, and the host and port where they meet."""

    def find_lacking(self, files: "FilesToSend") -> list[str]:
        """Returns the paths of what must be brought to this machine before the actor starts."""
        return files.find_lacking()

    def start_process(
        self,
        settings: Settings,
        num_threads: int,
        files: "FilesToSend | None",
        rank: int,
        store: tuple[str, int] | None,
    ) -> None:
        """Starts as the only actor of this process, which ends with its node's raylet.

        Ray itself would end it only after someone has reaped the dead raylet.
        """
        from agentpeft.policies.workers.owned_process import end_with

        end_with(os.getppid())
        self.rank, self.store = rank, store
        if files is not None:
            settings, self.places = files.unpack(resolve(files.contents), settings)
        self.start(settings, num_threads)
        set_present_objects_apart()

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
    `store`: where they meet, if they do.
    """

    name: str
    kind: type[Actor]
    num_actors: int
    num_cpus: float
    num_gpus: float
    num_threads: int
    is_closed: bool = False
    store: tuple[str, int] | None = None

    @property
    def bundle(self) -> dict[str, float]:
        """What Ray reserves for each actor."""
        wanted = {"CPU": self.num_cpus, "GPU": self.num_gpus}
        return {resource: amount for resource, amount in wanted.items() if amount > 0}


class Actors(Protocol):
    """Actors of one class, called by index.

    `call(0, LearnerActor.update)` names a method by its function, so that its arguments are
    type-checked. Only the name and the arguments are sent to the actor.
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

        If the method returns `num_returns` > 1 items, there is a list with a reference to each. A
        call waits for the actor's earlier calls to end, unless `is_beside`.
        """
        ...

    def fetch(self, refs: Sequence[Ref]) -> list[Any]:
        """Waits for results and returns them.

        Raises: what the method raised; WorkerLostError or WorkerMemoryError if the actor is gone;
        PayloadLostError if what it was sent is gone, so that it did nothing; RayHangsError.
        """
        ...

    def wait(self, refs: Sequence[Ref], timeout_s: float | None = None) -> list[int]:
        """Waits until a result is there, or an error in its place; returns the places of all such.

        While it waits, actors that answer no ping are ended, so that what they owe is an error.
        After `timeout_s` there may be none. Raises: RayHangsError, TrainingError.
        """
        ...

    def restart(self, index: int, settings: Settings) -> None:
        """Replaces an actor by a new one.

        Raises: PlacementError if there is no room for it, WorkerLostError, and what making it
        raises.
        """
        ...

    def find_places(self) -> Sequence[Place]:
        """Returns of each actor whether its machine stays, is being drained, or is not there."""
        ...

    def close(self) -> None:
        """Ends the actors; idempotent."""
        ...


def resolve(refs: Sequence[Ref]) -> list[Any]:
    """Returns the objects that references refer to; an actor's method calls it.

    Inline they are the objects, and `ray.get` must not be called: it would start Ray. Where Ray
    was never imported, no reference is Ray's.
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
