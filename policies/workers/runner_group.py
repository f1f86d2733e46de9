"""The env runners: what one does in its process, and the group that replaces those that fail."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class _Share:
    """One runner's share of a round: its requests, and references to its report and groups.

    `generation` counts the runner's replacements before it was asked.
    """

    runner: int
    generation: int
    requests: Sequence[GroupRequest]
    report: Ref
    groups: Sequence[Ref]


class PendingSamples:
    """A round of samples under way."""

    def __init__(self, runners: "EnvRunnerGroup", requests: Sequence[GroupRequest]) -> None:
        """Deals the requests out in turn."""
        self._runners, self._requests, step = runners, requests, runners.num_runners
        self._shares = [
            runners.ask(runner, requests[runner::step])
            for runner in range(min(step, len(requests)))
        ]

    def result(self) -> tuple[list[Ref], SampleReport]:
        """Waits, and returns the whole groups in the requests' order, and one report.

        `adapter_versions` of the report are in the groups' order. Raises: TrainingError,
        DeliveryError, and what playing raises.
        """
        reports: list[SampleReport] = []
        whole: dict[int, tuple[Ref, int]] = {}
        for index, asked in enumerate(self._shares):
            share, report = self._runners.finish(asked)
            self._shares[index] = share
            reports.append(report)
            versions, dropped = iter(report.adapter_versions), set(report.dropped_group_ids)
            for request, group in zip(share.requests, share.groups, strict=True):
                if request.group_id not in dropped:
                    whole[request.group_id] = group, next(versions)
        ordered = [whole[r.group_id] for r in self._requests if r.group_id in whole]
        versions_in_order = tuple(version for _, version in ordered)
        report = replace(SampleReport.merge(reports), adapter_versions=versions_in_order)
        return [group for group, _ in ordered], report

    def draw_again(self, lost: Sequence[Ref]) -> None:
        """Asks again for each share with one of the `lost` groups; `result` then has it."""
        for index, share in enumerate(self._shares):
            if any(group is each for group in share.groups for each in lost):
                self._shares[index] = self._runners.ask_again(share)


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

    def ask(self, runner: int, requests: Sequence[GroupRequest]) -> _Share:
        """Asks a runner for groups, or another in place of one that is gone."""
        if runner not in self._serving:
            runner = self._serving[runner % len(self._serving)]
        num_episodes = sum(request.num_episodes for request in requests)
        self._num_episodes = max(self._num_episodes, num_episodes)
        report, *groups = self._actors.call(
            runner, EnvRunnerActor.sample, requests, num_returns=1 + len(requests)
        )
        return _Share(runner, self._generations[runner], requests, report, groups)

    def ask_again(self, share: _Share) -> _Share:
        """Asks for groups that are lost with the node that held them."""
        self.counts["num_redrawn_groups"] += len(share.requests)
        logger.warning(
            "groups of env runner %d are lost with their node: its %d are drawn again",
            share.runner,
            len(share.requests),
        )
        return self.ask(share.runner, share.requests)

    def finish(self, share: _Share) -> tuple[_Share, SampleReport]:
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
