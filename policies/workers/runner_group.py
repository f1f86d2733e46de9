"""The env runners: what one does in its process, and the group that replaces those that fail."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from agentpeft.policies.delivery.publish import DeliveryAnswer, Shipment, check, unpack, worst_of
from agentpeft.policies.errors import (
    DeliveryError,
    EngineError,
    PayloadLostError,
    PlacementError,
    TrainingError,
    WorkerLostError,
    WorkerMemoryError,
)
from agentpeft.policies.messages import Ids, Ref
from agentpeft.policies.rollout.env_runner import EnvRunner
from agentpeft.policies.rollout.groups import GroupRequest, SampleReport
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.actors import Actor, ActorSpec, start_actors
from agentpeft.policies.workers.pending_samples import PendingSamples, Share
from agentpeft.policies.workers.ray_actors import resolve

logger = logging.getLogger(__name__)


class EnvRunnerActor(Actor):
    """One env runner."""

    def make(self, settings: Settings) -> None:
        """Makes the environments and starts the engine."""
        self._runner = self.make_runner(settings)

    def make_runner(self, settings: Settings) -> EnvRunner:
        """Returns the runner; a subclass may give it an engine of its own."""
        return EnvRunner(settings)

    def is_loaded_beside(self) -> bool:
        """Returns whether adapters may be delivered in the middle of a round."""
        return self._runner.is_loaded_beside()

    def deliver(self, adapter: Sequence[Ref], sequences: Sequence[Ids] | None) -> DeliveryAnswer:
        """Serves an adapter from the next round on, and answers what arrived and is served.

        `adapter` is one reference, in a list. Raises: DeliveryError, EngineError.
        """
        (arrived,) = resolve(adapter)
        return unpack(self._runner, arrived, sequences)

    def sample(self, requests: Sequence[GroupRequest]) -> list[Any]:
        """Returns the report, then for each request its group, None if it was dropped.

        Raises: EngineError, and what a broken environment raises.
        """
        groups, report = self._runner.sample(requests)
        whole, dropped = iter(groups), set(report.dropped_group_ids)
        return [report, *(None if r.group_id in dropped else next(whole) for r in requests)]

    def close(self) -> None:
        """Closes engine and environments; idempotent."""
        self._runner.close()


class EnvRunnerGroup:
    """The env runners. Requests are dealt out in turn, so the same runner plays the same ones.

    A runner that dies, whose engine fails, or that cannot prove what it serves is replaced, given
    the present adapter, and asked again for what it owed. The run ends if an engine fails twice on
    the same share, if the new runner fails its delivery, or at the limit of restarts. If there is
    no room for a new runner, as its node is gone, the others play what it owed. Samples follow from
    seed and position, so they are what they would have been (with `max_adapter_lag` 0, and unless
    an episode is too slow).
    """

    def __init__(
        self,
        settings: Settings,
        counts: Counter[str] | None = None,
        kind: type[EnvRunnerActor] = EnvRunnerActor,
    ) -> None:
        """`counts` is added to. Raises: PlacementError, and what a runner's constructor raises."""
        own = settings.env_runners
        self._settings = settings
        spec = ActorSpec(
            name="the env runners",
            kind=kind,
            num_actors=own.num_env_runners,
            num_cpus=own.num_cpus_per_env_runner,
            num_gpus=own.num_gpus_per_env_runner,
            num_threads=own.num_threads,
            is_closed=True,
            strategy=own.placement_strategy,
        )
        self._actors = start_actors(spec, settings)
        self.num_runners = self._actors.num_actors
        self.counts: Counter[str] = Counter() if counts is None else counts
        self._serving = list(range(self.num_runners))
        self._generations = [0] * self.num_runners
        self._num_out_of_memory: Counter[int] = Counter()
        self._num_episodes = 0
        asked = self._actors.call(0, EnvRunnerActor.is_loaded_beside)
        self._is_loaded_beside: bool = self._actors.fetch([asked])[0]
        self._shipment: Shipment | None = None

    def sample(self, requests: Sequence[GroupRequest]) -> PendingSamples:
        """Begins to play; each runner takes up what it is asked in the order of asking."""
        return PendingSamples(self, requests)

    def load_adapter(self, shipment: Shipment) -> dict[str, float]:
        """Delivers an adapter to all runners; returns the proof's metrics, of the worst runner.

        Raises: DeliveryError if a runner fails twice, TrainingError if none may be replaced.
        """
        self._shipment = shipment
        self._follow_machines()
        answers = [(runner, self._deliver(runner, shipment)) for runner in self._serving]
        checked = []
        for runner, answer in answers:
            try:
                checked.append(self._check(answer, shipment))
            except PayloadLostError:  # the learner's adapter, with the learner
                raise
            except (DeliveryError, EngineError, WorkerLostError) as error:
                self.counts["num_failed_deliveries"] += 1
                checked.append(self._replace(runner, error))
        return worst_of(checked)

    def ask(self, runner: int, requests: Sequence[GroupRequest]) -> Share:
        """Asks a runner for groups, or another in place of one that is gone."""
        if runner not in self._serving:
            runner = self._serving[runner % len(self._serving)]
        num_episodes = sum(request.num_episodes for request in requests)
        self._num_episodes = max(self._num_episodes, num_episodes)
        report, *groups = self._actors.call(
            runner, EnvRunnerActor.sample, requests, num_returns=1 + len(requests)
        )
        return Share(runner, self._generations[runner], requests, report, groups)

    def ask_again(self, share: Share) -> Share:
        """Asks for groups that are lost with the node that held them."""
        self.counts["num_redrawn_groups"] += len(share.requests)
        logger.warning(
            "groups of env runner %d are lost with their node: its %d are drawn again",
            share.runner,
            len(share.requests),
        )
        return self.ask(share.runner, share.requests)

    def finish(self, share: Share) -> tuple[Share, SampleReport]:
        """Waits for a share; returns it as it was played in the end, and its report.

        A runner that failed is replaced, unless the failure of another share has replaced it
        already. One engine failure is forgiven; the deaths of processes have no limit but the run's
        own, of restarts.
        """
        is_last_try = False
        while True:
            try:
                (report,) = self._actors.fetch([share.report])
            except PayloadLostError:
                share = self.ask_again(share)
            except (EngineError, WorkerLostError) as error:
                if is_last_try and isinstance(error, EngineError):
                    raise
                if share.generation == self._generations[share.runner]:
                    is_last_try = isinstance(error, EngineError)
                    self._replace(share.runner, error)
                share = self.ask(share.runner, share.requests)
            else:
                return share, report

    def close(self) -> None:
        """Ends the runners; idempotent."""
        self._actors.close()

    def _follow_machines(self) -> None:
        """Asks nothing more of runners on machines that are drained; begins those that have one.

        What a runner has been asked for it still plays, as long as its machine is there.
        """
        places = self._actors.find_places()
        staying = [runner for runner in self._serving if places[runner] != "drained"]
        for runner in self._serving if staying else ():
            if places[runner] == "drained":
                self._generations[runner] += 1
                self.counts["num_drained_env_runners"] += 1
                logger.warning("env runner %d gets no more work: its node is drained", runner)
        self._serving = staying or self._serving
        for runner in set(range(self.num_runners)).difference(self._serving):
            if places[runner] == "stays":
                self._join(runner)

    def _join(self, runner: int) -> None:
        """Begins a runner anew that has a place again; the run goes on if it does not start."""
        try:
            self._actors.restart(runner, self._settings_of(runner))
        except (PlacementError, WorkerLostError) as error:
            logger.warning("env runner %d has a place again, and does not start: %s", runner, error)
            return
        self._generations[runner] += 1
        self._serving = sorted([*self._serving, runner])
        self.counts["num_joined_env_runners"] += 1
        logger.warning("env runner %d has a place again, and plays with the others", runner)

    def _deliver(self, runner: int, shipment: Shipment) -> Ref:
        return self._actors.call(
            runner,
            EnvRunnerActor.deliver,
            [shipment.adapter],
            shipment.sequences,
            is_beside=self._is_loaded_beside,
        )

    def _check(self, returned: Ref, shipment: Shipment) -> dict[str, float]:
        (answer,) = self._actors.fetch([returned])
        return check(answer, shipment)

    def _replace(self, runner: int, reason: Exception) -> dict[str, float]:
        """Replaces a runner, delivers the present adapter to it, and returns the proof's metrics.

        Raises: TrainingError or DeliveryError if none may be replaced any more, DeliveryError if
        the new one fails too, PlacementError if there is no room and no other runner.
        """
        self._count_restart(runner, reason)
        self._num_out_of_memory[runner] += isinstance(reason, WorkerMemoryError)
        try:
            self._actors.restart(runner, self._settings_of(runner))
        except WorkerLostError as error:
            return self._replace(runner, error)
        except PlacementError as error:
            self._go_on_without(runner, error)
            return {}
        if self._shipment is None:
            return {}
        try:
            return self._check(self._deliver(runner, self._shipment), self._shipment)
        except PayloadLostError:
            raise
        except (DeliveryError, EngineError, WorkerLostError) as error:
            raise DeliveryError(f"env runner {runner}, begun anew: {error}") from error

    def _count_restart(self, runner: int, reason: Exception) -> None:
        limit = self._settings.fault_tolerance.max_num_env_runner_restarts
        if self.counts["num_env_runner_restarts"] >= limit:
            kind = DeliveryError if isinstance(reason, DeliveryError) else TrainingError
            name = "fault_tolerance.max_num_env_runner_restarts"
            raise kind(f"env runner {runner}: {reason} ({name} {limit} is reached)") from reason
        self.counts["num_env_runner_restarts"] += 1
        self._generations[runner] += 1
        logger.warning("env runner %d is begun anew: %s", runner, reason)

    def _settings_of(self, runner: int) -> Settings:
        """Returns the settings, with half the concurrent episodes each time that memory was short.

        The first time does not count: it may have been another process that took the memory.
        """
        halvings = self._num_out_of_memory[runner] - 1
        if halvings < 1:
            return self._settings
        own = self._settings.env_runners
        most = max(min(own.max_concurrent_episodes, self._num_episodes) >> halvings, 1)
        logger.warning("env runner %d plays at most %d episodes at once from now on", runner, most)
        fewer = own.model_copy(update={"max_concurrent_episodes": most})
        return self._settings.model_copy(update={"env_runners": fewer})

    def _go_on_without(self, runner: int, reason: PlacementError) -> None:
        """Leaves a runner's work to the others. Raises: `reason` if there are none."""
        if self._serving == [runner]:
            raise reason
        self._serving.remove(runner)
        left = f"{len(self._serving)} of {self.num_runners}"
        logger.warning("the run goes on with %s env runners: %s", left, reason)
