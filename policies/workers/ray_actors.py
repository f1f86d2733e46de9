"""Actors as Ray runs them: placed, called within limits of time, watched, replaced and ended.

Here Ray's errors become ours. Engines that runs share are actors apart: `apps.shared_engines`.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

import ray
from ray._private.state import state as global_state  # nothing public tells what is drained
from ray.exceptions import (
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)
from ray.util import (
    get_current_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agentpeft.policies.errors import (
    PayloadLostError,
    PlacementError,
    RayHangsError,
    TrainingError,
    WorkerLostError,
)
from agentpeft.policies.messages import Ref
from agentpeft.policies.models.tiny_cache import compute_key, keep_key
from agentpeft.policies.process_upkeep import set_present_objects_apart
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.actors import Actor, Actors, ActorSpec, Place, resolve
from agentpeft.policies.workers.brought_files import FilesToSend, read_contents
from agentpeft.policies.workers.owned_process import end_with
from agentpeft.policies.workers.time_limits import RAY_START_S, within

logger = logging.getLogger(__name__)
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_MIN_RAY_TIMEOUT_S = 60.0  # a machine under load answers late, and checkpoints are large
_STOP_S = 5.0
_CHECK_S = 10.0
_SEND_S = 600.0
_HEALTH, _BESIDE = "health", "beside"
"""Ray's concurrency groups: an actor answers their calls while it works on another."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_SILENT = {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
"""Without it every actor shows progress bars of its own as it loads and saves models."""


class RayActors(Actors):
    """Ray actors in a placement group of their own, or in the current one (a trial's of Ray Tune).

    They start in the background, and the first call waits until all have: a learner's model and a
    runner's engine are loaded side by side. Placement and start have separate time limits.
    Every call into Ray has a limit too (`_ask`): Ray's own do not hold while Ray itself hangs.
    """

    def __init__(self, spec: ActorSpec, settings: Settings) -> None:
        """Raises: PlacementError, WorkerLostError. What making one raises, the first call does."""
        self._spec, self.num_actors = spec, spec.num_actors
        self._limits = settings.fault_tolerance
        self._probe_s = self._limits.env_runner_health_probe_timeout_s
        self._ray_timeout_s = max(2 * self._probe_s, _MIN_RAY_TIMEOUT_S)
        self._actors: list[Any] = []
        self._starting: list[Ref] = []
        self._start_s = time.monotonic()
        self._pings: list[tuple[Any, Ref]] = []
        self._next_ping_s = 0.0
        self._group: PlacementGroup | None = None
        wanted = {"CPU": spec.num_cpus, "GPU": spec.num_gpus}
        self._bundle = {resource: amount for resource, amount in wanted.items() if amount > 0}
        _connect()
        self._check_node()
        try:
            if self._bundle and get_current_placement_group() is None:
                bundles = [self._bundle] * spec.num_actors
                self._group = self._ask("placing actors", lambda: placement_group(bundles, "PACK"))
            self._await_placement()
            self._actors = [self._start_actor(index) for index in range(spec.num_actors)]
            self._starting = self._begin_start(range(spec.num_actors), settings)
        except BaseException:
            self.close()
            raise

    def call(
        self,
        index: int,
        method: Callable[[Any, *Ts], object],
        *args: *Ts,
        num_returns: int = 1,
        is_beside: bool = False,
    ) -> Ref:
        """See `Actors`."""
        if self._starting:
            self._await(self._starting)
            self._starting = []
            logger.info("%s: ready after %.1f s", self._spec.name, time.monotonic() - self._start_s)
        remote = getattr(self._actors[index], method.__name__).options(
            num_returns=num_returns, concurrency_group=_BESIDE if is_beside else None
        )
        return self._ask("calling an actor", lambda: remote.remote(*args))

    def fetch(self, refs: Sequence[Ref]) -> list[Any]:
        """See `Actors`."""
        while True:
            try:
                return self._get(refs, self._probe_s)
            except GetTimeoutError:
                self._check_node()
                self._watch()

    def wait(self, refs: Sequence[Ref], timeout_s: float | None = None) -> list[int]:
        """See `Actors`."""
        while True:
            self._watch()
            wait_s = self._probe_s if timeout_s is None else timeout_s
            ready: list[Ref] = []
            for number in (1, len(refs)):  # waits for the first, then looks for all others
                look = partial(
                    ray.wait, list(refs), num_returns=number, timeout=wait_s, fetch_local=False
                )
                ready, _ = self._ask("waiting for actors", look, wait_s)
                wait_s = 0.0
            if ready or timeout_s is not None:
                there = set(ready)
                return [place for place, ref in enumerate(refs) if ref in there]
            self._check_node()

    def _watch(self) -> None:
        """Ends the actors whose last ping has no answer in time, and pings them again.

        Fetching what an ended one owes then raises.
        """

        def end_late() -> None:
            refs = [ping for _, ping in self._pings]
            late = ray.wait(refs, num_returns=len(refs), timeout=0)[1]
            for actor, ping in self._pings:
                if ping in late:
                    ray.kill(actor)
            pings = [a.ping.options(concurrency_group=_HEALTH).remote() for a in self._actors]
            self._pings = list(zip(self._actors, pings, strict=True))

        # One that is still starting may be too busy to answer
        if not self._starting and time.monotonic() >= self._next_ping_s:
            self._ask("asking actors for life", end_late)
            self._next_ping_s = time.monotonic() + self._probe_s

    def restart(self, index: int, settings: Settings) -> None:
        """See `Actors`."""
        self._check_node()
        self._end(self._actors[index : index + 1])
        self._await_placement()
        self._actors[index] = self._start_actor(index)
        self._await(self._begin_start([index], settings))

    def find_places(self) -> Sequence[Place]:
        """See `Actors`. A lost place counts as such until Ray has one for all that lost theirs."""
        group = self._group
        if group is None:  # a trial's, or nowhere in particular
            return ["stays"] * self.num_actors
        table: dict[str, Any] = self._ask("asking for places", lambda: placement_group_table(group))
        leaving = self._ask("asking for drained nodes", global_state.get_draining_nodes)
        rest: Place = "stays" if table["state"] == "CREATED" else "none"
        nodes = [table["bundles_to_node_id"][index] for index in range(self.num_actors)]
        return ["drained" if node in leaving else rest for node in nodes]

    def close(self) -> None:
        """See `Actors`."""
        actors, self._actors = self._actors, []
        group, self._group = self._group, None
        if not ray.is_initialized():
            return
        try:
            self._end(actors)
            if group is not None:
                within(_STOP_S, "giving up a placement", lambda: remove_placement_group(group))
        except RayHangsError:  # the actors that are left end with this process
            logger.warning("%s: not ended in order, since Ray does not answer", self._spec.name)

    def _ask(self, what: str, function: Callable[[], T], more_s: float = 0.0) -> T:
        """Calls Ray; `more_s` is how long the call may wait for actors. Raises: RayHangsError."""
        limit_s = self._ray_timeout_s + more_s
        try:
            return within(limit_s, what, function)
        except GetTimeoutError:  # a limit of Ray's own, where it has one
            raise RayHangsError(what, limit_s) from None

    def _check_node(self) -> None:
        """Raises: TrainingError if Ray has ended on this machine, so that nothing can start."""
        here = ray.get_runtime_context().get_node_id()
        nodes: list[dict[str, object]] = self._ask("listing nodes", ray.nodes)
        if not any(node["Alive"] for node in nodes if node["NodeID"] == here):
            gone = "its raylet is gone, or was stopped for too long"
            raise TrainingError(f"Ray has ended on this machine ({gone}): resume the run")

    def _begin_start(self, indices: Sequence[int], settings: Settings) -> list[Ref]:
        actors = [self._actors[index] for index in indices]
        self._start_s = time.monotonic()
        files = self._pack(actors, settings)
        threads, store = self._spec.num_threads, self._spec.store
        key = compute_key(settings) if settings.is_tiny else None
        return self._ask(
            "starting actors",
            lambda: [
                actor.__ray_call__.remote(_start, settings, threads, (sent, key), index, store)
                for actor, sent, index in zip(actors, files, indices, strict=True)
            ],
        )

    def _pack(self, actors: Sequence[Any], settings: Settings) -> list[FilesToSend | None]:
        """Returns what each actor needs of this machine; None where no other is in the cluster.

        Raises: WorkerLostError, SettingsError.
        """
        nodes: list[dict[str, object]] = self._ask("listing nodes", ray.nodes)
        if sum(bool(node["Alive"]) for node in nodes) == 1:
            return [None] * len(actors)
        files = FilesToSend.of(settings)
        asked = self._ask(
            "starting actors",
            lambda: [actor.__ray_call__.remote(lambda _: files.find_lacking()) for actor in actors],
        )
        lacking = self._await(asked)
        paths = sorted({path for lacked in lacking for path in lacked})
        if not paths:
            return [files] * len(actors)
        logger.info("%s: sends what is not on all machines: %s", self._spec.name, paths)
        contents = self._ask("sending files", lambda: ray.put(read_contents(paths)), _SEND_S)
        full = replace(files, contents=[contents])
        return [full if lacked else files for lacked in lacking]

    def _await(self, asked: Sequence[Ref]) -> list[Any]:
        """Returns what actors that start answer. Raises: WorkerLostError where they take long."""
        limit_s = self._limits.env_runner_restore_timeout_s
        left_s = limit_s
        while left_s > 0:
            left_s = max(self._start_s + limit_s - time.monotonic(), 0.0)
            self._check_node()
            try:
                return self._get(asked, min(left_s, _CHECK_S))
            except GetTimeoutError:
                self._await_placement()  # its node may have gone since
        raise WorkerLostError(f"{self._spec.name} did not start within {limit_s:g} s")

    def _get(self, refs: Sequence[Ref], timeout_s: float) -> list[Any]:
        limit_s = self._ray_timeout_s + timeout_s
        try:
            return within(
                limit_s, "fetching results", lambda: list(ray.get(list(refs), timeout=timeout_s))
            )
        except GetTimeoutError:
            raise
        except RayError as error:
            raise self._translate(error) from error

    def _translate(self, error: RayError) -> Exception:
        """Returns the error that an actor raised, or says what is lost by an error of Ray's.

        Raises: TrainingError where Ray itself has ended, and the actor only with it.
        """
        name, reason = self._spec.name, " ".join(str(error).split())
        if isinstance(error, RayTaskError) and not isinstance(error.cause, RayError):
            cause: Exception = error.cause
            return cause
        if isinstance(error, RayTaskError | ObjectLostError):
            return PayloadLostError(f"what was sent to or by {name} is lost with its node")
        if isinstance(error, OutOfMemoryError):  # many lines of advice follow
            reason = str(error).partition("\n")[0]
            return WorkerLostError(f"Ray's memory monitor has ended one of {name}: {reason}")
        if isinstance(error, RayActorError | NodeDiedError):
            self._check_node()
            return WorkerLostError(f"a process of {name} is gone: {reason}")
        return TrainingError(f"{name}: {type(error).__name__}: {reason}")

    def _end(self, actors: Sequence[Any]) -> None:
        def end() -> None:
            # Those that were not called yet have nothing to close, and may still be starting
            is_closed = self._spec.is_closed and not self._starting
            closed = [actor.close.remote() for actor in actors if is_closed]
            late = ray.wait(closed, num_returns=len(closed), timeout=_STOP_S)[1]
            if late:
                counts = self._spec.name, len(late), len(actors)
                logger.warning("%s: %d of %d do not close within %g s", *counts, _STOP_S)
            for actor in actors:
                ray.kill(actor)

        within(min(self._ray_timeout_s, _STOP_S) + _STOP_S, "ending actors", end)

    def _await_placement(self) -> None:
        """Waits for the actors' places. Raises: PlacementError, TrainingError."""
        timeout_s = self._limits.placement_timeout_s
        group = self._group or get_current_placement_group()
        try:
            if group is None or self._ask("placing", lambda: group.wait(timeout_s), timeout_s):
                return
        except Exception as error:  # Ray has no narrower one for a group whose node is lost
            if "does not exist" in str(error):
                raise TrainingError(f"Ray has lost this run ({error}): resume the run") from None
            raise
        has: dict[str, float] = self._ask("asking for resources", ray.cluster_resources)
        free: dict[str, float] = self._ask("asking for resources", ray.available_resources)
        asked = ", ".join(
            f"{amount:g} {name} (the cluster has {has.get(name, 0):g}, free {free.get(name, 0):g})"
            for name, amount in self._bundle.items()
        )
        raise PlacementError(
            f"Ray could not place {self._spec.name} within {timeout_s:g} s: "
            f"{self._spec.num_actors} times {asked}; ask for less, or add nodes"
        )

    def _start_actor(self, index: int) -> Any:
        variables = process_variables(self._spec.num_threads) | dict(self._spec.variables)
        options: dict[str, Any] = {
            "num_cpus": self._spec.num_cpus,
            "num_gpus": self._spec.num_gpus,
            "runtime_env": {"env_vars": variables},
        }
        if self._group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._group, index)
        actor = ray.remote(concurrency_groups={_HEALTH: 1, _BESIDE: 1})(self._spec.kind)  # type: ignore[call-overload]
        return self._ask("starting an actor", lambda: actor.options(**options).remote())


def _start(
    actor: Actor,
    settings: Settings,
    num_threads: int,
    brought: tuple[FilesToSend | None, str | None],
    rank: int,
    store: tuple[str, int] | None,
) -> None:
    """Starts the only actor of this process, which ends with its node's raylet.

    `brought`: files, and the key of the driver's built-in model, which is taken here whatever has
    become of the code of its environment.
    Ray itself would end it only after someone has reaped the dead raylet.
    """
    end_with(os.getppid())
    logging.basicConfig(format="%(message)s")  # Ray brings it to the driver's standard error
    logging.getLogger("agentpeft").setLevel(logging.INFO)
    actor.rank, actor.store = rank, store
    files, tiny_key = brought
    if files is not None:
        settings, actor.places = files.unpack(resolve(files.contents), settings)
    if tiny_key is not None:
        keep_key(settings, tiny_key)
    actor.start(settings, num_threads)
    set_present_objects_apart()


def process_variables(num_threads: int) -> dict[str, str]:
    """Returns what an actor's process has in its environment, where torch and others read it."""
    return dict.fromkeys(_THREAD_VARIABLES, str(num_threads)) | _SILENT


def _connect() -> None:
    if not ray.is_initialized():
        start = partial(ray.init, logging_level=logging.WARNING)  # without its dashboard's address
        within(RAY_START_S, "starting Ray", start, stays=True)


def find_node_address() -> str:
    """Returns this machine's address in the Ray cluster, which it joins or starts first."""
    _connect()
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
