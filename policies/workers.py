"""Workers that functions are called on: Ray actors, or one object in this process.

The only door to Ray of this room.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util import get_current_placement_group, placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agentpeft.policies.config import Settings
from agentpeft.policies.engines.owned_process import end_with
from agentpeft.policies.errors import (
    DeliveryError,
    EngineError,
    PlacementError,
    TrainingError,
    WorkerLostError,
)

logger = logging.getLogger(__name__)
Ref: TypeAlias = Any
"""A Ray object reference; in one process the object itself."""
Call: TypeAlias = Callable[..., Any]
T = TypeVar("T")
_STOP_S = 5.0
_CHECK_S = 10.0
_HEALTH, _BESIDE = "health", "beside"
"""The groups of calls that an actor answers beside its work."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_SILENT = {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
"""Else every actor shows bars of its own, transformers' of loading and saving among them."""


@dataclass(frozen=True)
class Job:
    """Which workers are wanted: how they are made and closed, and what each of them gets."""

    name: str
    num_workers: int
    num_cpus: float
    num_gpus: float
    num_threads: int
    make: Callable[[Settings], Any]
    close: Callable[[Any], None] | None = None

    @property
    def bundle(self) -> dict[str, float]:
        """What Ray reserves for each."""
        wanted = {"CPU": self.num_cpus, "GPU": self.num_gpus}
        return {resource: amount for resource, amount in wanted.items() if amount > 0}


class Workers(Protocol):
    """Env runners or learners, each of which has functions called on it."""

    num_workers: int

    def call(
        self, index: int, function: Call, *args: Ref, num_returns: int = 1, is_beside: bool = False
    ) -> Ref:
        """Returns what `function(worker, *args)` will return, `num_returns` of them as a list.

        Calls are taken up in turn; one that `is_beside` does not wait for the others.
        """
        ...

    def fetch(self, refs: Sequence[Ref]) -> list[Any]:
        """Returns the objects themselves. Raises: what was raised there; WorkerLostError."""
        ...

    def restart(self, index: int) -> None:
        """Puts a new worker in one's place. Raises: WorkerLostError, and what making it raises."""
        ...

    def close(self) -> None:
        """Ends the workers; idempotent."""
        ...


class _Host:
    """What holds a worker in its process. It is made in `start`, whose errors are then its own."""

    def start(self, job: Job, settings: Settings) -> None:
        import torch

        torch.set_num_threads(job.num_threads)
        self._worker = job.make(settings)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        return function(self._worker, *args)

    @ray.method(concurrency_group=_BESIDE)
    def call_beside(self, function: Callable[..., T], *args: Any) -> T:
        return self.call(function, *args)

    @ray.method(concurrency_group=_HEALTH)
    def ping(self) -> None:
        """Returns, even while a call is under way."""


class _ActorHost(_Host):
    """It ends with its node's Ray: left to Ray, only once somebody has reaped that process."""

    def start(self, job: Job, settings: Settings) -> None:
        end_with(os.getppid())
        super().start(job, settings)


class _LocalWorkers:
    """One worker in this process; a call is over when it returns."""

    num_workers = 1

    def __init__(self, job: Job, settings: Settings) -> None:
        self._job, self._settings, self._host = job, settings, _Host()
        self._host.start(job, settings)

    def call(
        self,
        index: int,  # noqa: ARG002
        function: Call,
        *args: Ref,
        num_returns: int = 1,
        is_beside: bool = False,  # noqa: ARG002
    ) -> Ref:
        try:
            return self._host.call(function, *args)
        except (DeliveryError, EngineError) as error:  # what a runner may be begun anew for
            return error if num_returns == 1 else [error] * num_returns

    def fetch(self, refs: Sequence[Ref]) -> list[Any]:
        for ref in refs:
            if isinstance(ref, DeliveryError | EngineError):
                raise ref
        return list(refs)

    def restart(self, index: int) -> None:  # noqa: ARG002
        self.close()
        self._host.start(self._job, self._settings)

    def close(self) -> None:
        if self._job.close is not None:
            self._host.call(self._job.close)


class _RayWorkers:
    """Actors in a placement group of their own; what one of them raises is raised here.

    Placement is waited for apart from the start, which may take long: models are loaded there.
    Within a placement group, as in a trial of Ray Tune, they are placed in that.
    """

    def __init__(self, job: Job, settings: Settings) -> None:
        """Raises: PlacementError, WorkerLostError, and what making a worker raises."""
        self._job, self._settings, self.num_workers = job, settings, job.num_workers
        self._limits = settings.fault_tolerance
        self._actors: list[Any] = []
        self._group: PlacementGroup | None = None
        if not ray.is_initialized():
            ray.init()
        _check_node()
        try:
            if job.bundle and get_current_placement_group() is None:
                self._group = placement_group([job.bundle] * job.num_workers)
                self._await_placement(self._limits.placement_timeout_s)
            self._actors = [self._start_actor(index) for index in range(job.num_workers)]
            self._await_start(self._actors)
        except BaseException:
            self.close()
            raise

    def call(
        self, index: int, function: Call, *args: Ref, num_returns: int = 1, is_beside: bool = False
    ) -> Ref:
        actor = self._actors[index]
        method = actor.call_beside if is_beside else actor.call
        return method.options(num_returns=num_returns).remote(function, *args)

    def fetch(self, refs: Sequence[Ref]) -> list[Any]:
        while True:
            try:
                return self._get(refs, self._limits.env_runner_health_probe_timeout_s)
            except GetTimeoutError:
                self._end_silent()

    def restart(self, index: int) -> None:
        self._end(self._actors[index : index + 1])
        self._actors[index] = self._start_actor(index)
        self._await_start(self._actors[index : index + 1])

    def close(self) -> None:
        actors, self._actors = self._actors, []
        group, self._group = self._group, None
        if not ray.is_initialized():
            return
        self._end(actors)
        if group is not None:
            remove_placement_group(group)

    def _await_start(self, actors: Sequence[Any]) -> None:
        limit_s = self._limits.env_runner_restore_timeout_s
        started = [actor.start.remote(self._job, self._settings) for actor in actors]
        deadline_s = time.monotonic() + limit_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            _check_node()
            with suppress(GetTimeoutError):
                self._get(started, min(left_s, _CHECK_S))
                return
        raise WorkerLostError(f"{self._job.name} did not start within {limit_s:g} s")

    def _get(self, refs: Sequence[Ref], timeout_s: float) -> list[Any]:
        try:
            return list(ray.get(list(refs), timeout=timeout_s))
        except RayTaskError as error:
            raise error.cause from error
        except RayActorError as error:
            reason = " ".join(str(error).split())
            raise WorkerLostError(f"a process of {self._job.name} is gone: {reason}") from None

    def _end_silent(self) -> None:
        """Ends actors that do not answer; what they were asked for is then an error."""
        pings = [actor.ping.remote() for actor in self._actors]
        limit_s = self._limits.env_runner_health_probe_timeout_s
        _, late = ray.wait(pings, num_returns=len(pings), timeout=limit_s)
        for actor, ping in zip(self._actors, pings, strict=True):
            if ping in late:
                ray.kill(actor)

    def _end(self, actors: Sequence[Any]) -> None:
        if self._job.close is not None and actors:
            closed = [actor.call.remote(self._job.close) for actor in actors]
            _, late = ray.wait(closed, num_returns=len(closed), timeout=_STOP_S)
            if late:
                counts = self._job.name, len(late), len(actors)
                logger.warning("%s: %d of %d do not close within %g s", *counts, _STOP_S)
        for actor in actors:
            ray.kill(actor)

    def _await_placement(self, timeout_s: float) -> None:
        try:
            if self._group is None or self._group.wait(timeout_s):
                return
        except Exception as error:  # Ray has no other for a group that went with its node
            if "does not exist" in str(error):
                raise TrainingError(f"Ray has lost this run ({error}): resume the run") from None
            raise
        has: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        asked = ", ".join(
            f"{amount:g} {name} (the cluster has {has.get(name, 0):g}, free {free.get(name, 0):g})"
            for name, amount in self._job.bundle.items()
        )
        raise PlacementError(
            f"Ray could not place {self._job.name} within {timeout_s:g} s: "
            f"{self._job.num_workers} times {asked}; ask for less, or add nodes"
        )

    def _start_actor(self, index: int) -> Any:
        variables = dict.fromkeys(_THREAD_VARIABLES, str(self._job.num_threads))
        options: dict[str, Any] = {
            "num_cpus": self._job.num_cpus,
            "num_gpus": self._job.num_gpus,
            "runtime_env": {"env_vars": variables | _SILENT},  # read when torch is imported
        }
        if self._group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._group, index)
        actor = ray.remote(concurrency_groups={_HEALTH: 1, _BESIDE: 1})(_ActorHost)  # type: ignore[call-overload]
        return actor.options(**options).remote()


def node_address() -> str:
    """Returns this machine's address in the Ray cluster."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def _check_node() -> None:
    """Raises: TrainingError where Ray is gone from this machine, so that it can start nothing."""
    own = ray.get_runtime_context().get_node_id()
    nodes: list[dict[str, object]] = ray.nodes()  # type: ignore[no-untyped-call]
    if not any(node["Alive"] for node in nodes if node["NodeID"] == own):
        raise TrainingError("Ray has ended on this machine (its raylet is gone): resume the run")


def start_workers(job: Job, settings: Settings) -> Workers:
    """Returns running workers. Raises: PlacementError, and what making one raises."""
    is_local = settings.env_runners.num_env_runners == 0
    return (_LocalWorkers if is_local else _RayWorkers)(job, settings)
