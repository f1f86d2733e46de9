"""Workers that functions are called on: Ray actors, or one object in this process.

The only door to Ray of this room.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import ray
from ray.exceptions import (
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)
from ray.util import get_current_placement_group, placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agentpeft.policies.errors import (
    DeliveryError,
    EngineError,
    PayloadLostError,
    PlacementError,
    RayHangsError,
    TrainingError,
    WorkerLostError,
    WorkerMemoryError,
)
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.owned_process import end_with
from agentpeft.policies.workers.time_limits import RAY_START_S, within

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
class WorkerSpec:
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
        """Returns the objects themselves.

        Raises: what was raised there; WorkerLostError, WorkerMemoryError where the worker is gone;
        PayloadLostError where what it was sent is, so that it did nothing; RayHangsError.
        """
        ...

    def restart(self, index: int, settings: Settings) -> None:
        """Puts a new worker in one's place.

        Raises: PlacementError where there is no room for it, WorkerLostError, and what making it
        raises.
        """
        ...

    def close(self) -> None:
        """Ends the workers; idempotent."""
        ...


class _Host:
    """What holds a worker in its process. It is made in `start`, whose errors are then its own."""

    def start(self, job: WorkerSpec, settings: Settings) -> None:
        import torch

        torch.set_num_threads(job.num_threads)
        self._worker = job.make(settings)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        return function(self._worker, *args)

    @ray.method(concurrency_group=_HEALTH)
    def ping(self) -> None:
        """Returns, even while a call is under way."""


class _ActorHost(_Host):
    """It ends with its node's Ray: left to Ray, only once somebody has reaped that process.

    What it is sent by reference comes within a list and is fetched in the call. Ray would fetch it
    before, and would let no ping through until it has come, or its node is known to be lost.
    """

    def start(self, job: WorkerSpec, settings: Settings) -> None:
        end_with(os.getppid())
        super().start(job, settings)

    def call(self, function: Callable[..., T], args: Sequence[Ref] = ()) -> T:
        refs = [arg for arg in args if isinstance(arg, ray.ObjectRef)]
        fetched = iter(ray.get(refs))
        return super().call(
            function, *(next(fetched) if isinstance(arg, ray.ObjectRef) else arg for arg in args)
        )

    @ray.method(concurrency_group=_BESIDE)
    def call_beside(self, function: Callable[..., T], args: Sequence[Ref]) -> T:
        return self.call(function, args)


class _LocalWorkers:
    """One worker in this process; a call is over when it returns."""

    num_workers = 1

    def __init__(self, job: WorkerSpec, settings: Settings) -> None:
        self._job, self._host = job, _Host()
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

    def restart(self, index: int, settings: Settings) -> None:  # noqa: ARG002
        self.close()
        self._host.start(self._job, settings)

    def close(self) -> None:
        if self._job.close is not None:
            self._host.call(self._job.close)


class _RayWorkers:
    """Actors in a placement group of their own; what one of them raises is raised here.

    Placement is waited for apart from the start, which may take long: models are loaded there.
    Within a placement group, as in a trial of Ray Tune, they are placed in that. Every call into
    Ray has a limit of its own, since Ray's own limits do not hold while it hangs (`_ask`).
    """

    def __init__(self, job: WorkerSpec, settings: Settings) -> None:
        """Raises: PlacementError, WorkerLostError, and what making a worker raises."""
        self._job, self.num_workers = job, job.num_workers
        self._limits = settings.fault_tolerance
        self._actors: list[Any] = []
        self._group: PlacementGroup | None = None
        if not ray.is_initialized():
            within(RAY_START_S, "starting Ray", ray.init, stays=True)
        self._check_node()
        try:
            if job.bundle and get_current_placement_group() is None:
                bundles = [job.bundle] * job.num_workers
                self._group = self._ask("placing actors", lambda: placement_group(bundles))
            self._await_placement()
            self._actors = [self._start_actor(index) for index in range(job.num_workers)]
            self._await_start(self._actors, settings)
        except BaseException:
            self.close()
            raise

    def call(
        self, index: int, function: Call, *args: Ref, num_returns: int = 1, is_beside: bool = False
    ) -> Ref:
        actor = self._actors[index]
        method = (actor.call_beside if is_beside else actor.call).options(num_returns=num_returns)
        return self._ask("calling an actor", lambda: method.remote(function, list(args)))

    def fetch(self, refs: Sequence[Ref]) -> list[Any]:
        probe_s = self._limits.env_runner_health_probe_timeout_s
        while True:
            try:
                return self._get(refs, probe_s)
            except GetTimeoutError:
                self._check_node()
                self._ask("asking actors for life", self._end_silent, probe_s)

    def restart(self, index: int, settings: Settings) -> None:
        self._check_node()
        self._end(self._actors[index : index + 1])
        self._await_placement()
        self._actors[index] = self._start_actor(index)
        self._await_start(self._actors[index : index + 1], settings)

    def close(self) -> None:
        actors, self._actors = self._actors, []
        group, self._group = self._group, None
        if not ray.is_initialized():
            return
        try:
            self._end(actors)
            if group is not None:
                within(_STOP_S, "giving up a placement", lambda: remove_placement_group(group))
        except RayHangsError:  # what is left ends with this process
            logger.warning("%s: not ended in order, since Ray does not answer", self._job.name)

    def _ask(self, what: str, function: Callable[[], T], more_s: float = 0.0) -> T:
        """Calls into Ray; `more_s` is what the call may wait for others. Raises: RayHangsError."""
        limit_s = self._limits.ray_timeout_s + more_s
        try:
            return within(limit_s, what, function)
        except GetTimeoutError:  # a limit of Ray's own, where it has one
            raise RayHangsError(what, limit_s) from None

    def _check_node(self) -> None:
        """Raises: TrainingError where this machine's Ray is gone, so that it can start nothing."""
        own = ray.get_runtime_context().get_node_id()
        nodes: list[dict[str, object]] = self._ask("listing nodes", ray.nodes)
        if not any(node["Alive"] for node in nodes if node["NodeID"] == own):
            gone = "its raylet is gone, or was stopped for too long"
            raise TrainingError(f"Ray has ended on this machine ({gone}): resume the run")

    def _await_start(self, actors: Sequence[Any], settings: Settings) -> None:
        limit_s = self._limits.env_runner_restore_timeout_s
        started = self._ask(
            "starting actors", lambda: [a.start.remote(self._job, settings) for a in actors]
        )
        deadline_s = time.monotonic() + limit_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            self._check_node()
            try:
                self._get(started, min(left_s, _CHECK_S))
            except GetTimeoutError:
                self._await_placement()  # its node may have gone since
            else:
                return
        raise WorkerLostError(f"{self._job.name} did not start within {limit_s:g} s")

    def _get(self, refs: Sequence[Ref], timeout_s: float) -> list[Any]:
        limit_s = self._limits.ray_timeout_s + timeout_s
        try:
            return within(
                limit_s, "fetching results", lambda: list(ray.get(list(refs), timeout=timeout_s))
            )
        except GetTimeoutError:
            raise
        except RayError as error:
            raise self._to_own(error) from error

    def _to_own(self, error: RayError) -> Exception:
        """Returns what was raised in a worker, or the kind of loss that an error of Ray tells."""
        name, reason = self._job.name, " ".join(str(error).split())
        if isinstance(error, RayTaskError) and not isinstance(error.cause, RayError):
            cause: Exception = error.cause
            return cause
        if isinstance(error, RayTaskError | ObjectLostError):
            return PayloadLostError(f"what was sent to or by {name} is lost with its node")
        if isinstance(error, OutOfMemoryError):  # many lines of advice follow
            reason = str(error).partition("\n")[0]
            return WorkerMemoryError(f"Ray's memory monitor has ended one of {name}: {reason}")
        if isinstance(error, RayActorError | NodeDiedError):
            return WorkerLostError(f"a process of {name} is gone: {reason}")
        return TrainingError(f"{name}: {type(error).__name__}: {reason}")

    def _end_silent(self) -> None:
        """Ends actors that do not answer; what they were asked for is then an error."""
        pings = [actor.ping.remote() for actor in self._actors]
        limit_s = self._limits.env_runner_health_probe_timeout_s
        _, late = ray.wait(pings, num_returns=len(pings), timeout=limit_s)
        for actor, ping in zip(self._actors, pings, strict=True):
            if ping in late:
                ray.kill(actor)

    def _end(self, actors: Sequence[Any]) -> None:
        def end() -> None:
            if self._job.close is not None and actors:
                closed = [actor.call.remote(self._job.close) for actor in actors]
                _, late = ray.wait(closed, num_returns=len(closed), timeout=_STOP_S)
                if late:
                    counts = self._job.name, len(late), len(actors)
                    logger.warning("%s: %d of %d do not close within %g s", *counts, _STOP_S)
            for actor in actors:
                ray.kill(actor)

        within(min(self._limits.ray_timeout_s, _STOP_S) + _STOP_S, "ending actors", end)

    def _await_placement(self) -> None:
        """Waits for the actors' places. Raises: PlacementError, TrainingError."""
        timeout_s = self._limits.placement_timeout_s
        group = self._group or get_current_placement_group()
        try:
            if group is None or self._ask("placing", lambda: group.wait(timeout_s), timeout_s):
                return
        except Exception as error:  # Ray has no other for a group that went with its node
            if "does not exist" in str(error):
                raise TrainingError(f"Ray has lost this run ({error}): resume the run") from None
            raise
        has: dict[str, float] = self._ask("asking for resources", ray.cluster_resources)
        free: dict[str, float] = self._ask("asking for resources", ray.available_resources)
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
        return self._ask("starting an actor", lambda: actor.options(**options).remote())


def node_address() -> str:
    """Returns this machine's address in the Ray cluster."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def start_workers(job: WorkerSpec, settings: Settings) -> Workers:
    """Returns running workers. Raises: PlacementError, and what making one raises."""
    is_local = settings.env_runners.num_env_runners == 0
    return (_LocalWorkers if is_local else _RayWorkers)(job, settings)
