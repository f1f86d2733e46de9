"""`EnvRunnerGroup`: the env runners, proven to serve what was sent, and replaced when they fail."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentpeft.policies.delivery.probe import Probe, Proof, compute_delivery_metrics, find_problem
from agentpeft.policies.delivery.version import ack_of
from agentpeft.policies.errors import (
    DeliveryError,
    EngineError,
    PayloadLostError,
    PlacementError,
    TrainingError,
    WorkerLostError,
    WorkerMemoryError,
)
from agentpeft.policies.messages import AdapterAck, AdapterVersion, Ids
from agentpeft.policies.rollout.env_runner import EnvRunner
from agentpeft.policies.rollout.episodes import GroupRequest, SampleReport
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.workers import Ref, WorkerSpec, start_workers

logger = logging.getLogger(__name__)
_Answer = tuple[AdapterAck, Proof | None]
_FAILURES = (DeliveryError, EngineError, WorkerLostError)


@dataclass(frozen=True)
class Shipment:
    """An adapter under way, and what a runner must answer to it; `probe` None is a hash alone."""

    adapter: Ref
    receipt: AdapterAck
    probe: Probe | None


@dataclass(frozen=True)
class _Part:
    """What one runner was asked, as which of those that had its place, and what it will return."""

    runner: int
    life: int
    requests: Sequence[GroupRequest]
    returned: list[Ref]


class PendingSamples:
    """Samples under way."""

    def __init__(self, runners: "EnvRunnerGroup", requests: Sequence[GroupRequest]) -> None:
        """Deals the requests out in turn."""
        self._runners, self._requests, self._step = runners, requests, runners.num_runners
        self._parts = [
            runners.begin(runner, requests[runner :: self._step])
            for runner in range(min(self._step, len(requests)))
        ]

    def result(self) -> tuple[list[Ref], SampleReport]:
        """Waits, and returns the whole groups in the requests' order, and one report.

        `adapter_versions` of the report are in the groups' order. Raises: TrainingError,
        DeliveryError, and what playing raises.
        """
        reports: list[SampleReport] = []
        found: dict[int, tuple[Ref, int]] = {}
        for place, asked in enumerate(self._parts):
            self._parts[place], report = self._runners.finish(asked)
            reports.append(report)
            versions, dropped = iter(report.adapter_versions), set(report.dropped_group_ids)
            for index, group in zip(
                range(place, len(self._requests), self._step),
                self._parts[place].returned[1:],
                strict=True,
            ):
                if self._requests[index].group_id not in dropped:
                    found[index] = group, next(versions)
        ordered = [found[index] for index in sorted(found)]
        versions_in_order = tuple(version for _, version in ordered)
        report = replace(SampleReport.merge(reports), adapter_versions=versions_in_order)
        return [group for group, _ in ordered], report

    def draw_again(self, lost: Sequence[Ref]) -> None:
        """Begins anew what runners played that returned one of `lost`: `result` then has it."""
        for place, part in enumerate(self._parts):
            if any(group is each for group in part.returned[1:] for each in lost):
                self._parts[place] = self._runners.begin_again(part)


class EnvRunnerGroup:
    """The env runners. Requests are dealt out in turn, so the same runner plays the same ones.

    A runner that dies, whose engine fails, or that cannot prove what it serves is replaced, given
    the present adapter, and asked again for what it owed; a second failure ends the run. Where
    there is no room for another one, as its node is gone, the others play what it owed. Since
    samples follow from seed and position, they are what they would have been.
    """

    def __init__(self, settings: Settings, counts: Counter[str] | None = None) -> None:
        """`counts` is added to. Raises: PlacementError, and what a runner's constructor raises."""
        own = settings.env_runners
        self._settings = settings
        self._max_restarts = settings.fault_tolerance.max_num_env_runner_restarts
        self._workers = start_workers(
            WorkerSpec(
                name="the env runners",
                num_workers=own.num_env_runners,
                num_cpus=own.num_cpus_per_env_runner,
                num_gpus=own.num_gpus_per_env_runner,
                num_threads=own.num_threads,
                make=EnvRunner,
                close=EnvRunner.close,
            ),
            settings,
        )
        self.num_runners = self._workers.num_workers
        self.counts: Counter[str] = Counter() if counts is None else counts
        self._serving = list(range(self.num_runners))
        self._lives = [0] * self.num_runners
        self._num_out_of_memory: Counter[int] = Counter()
        self._num_episodes = 0
        asked = self._workers.call(0, EnvRunner.is_loaded_beside)
        self._is_loaded_beside = self._workers.fetch([asked])[0]
        self._shipment: Shipment | None = None

    def sample(self, requests: Sequence[GroupRequest]) -> PendingSamples:
        """Begins to play; the runners take up what they are asked in the order of asking."""
        return PendingSamples(self, requests)

    def load_adapter(self, shipment: Shipment) -> dict[str, float]:
        """Delivers an adapter to all runners; returns what proves it, of the worst runner.

        Raises: DeliveryError where a runner fails twice, TrainingError where none may be replaced.
        """
        self._shipment = shipment
        answers = [(runner, self._deliver(runner, shipment)) for runner in self._serving]
        found = []
        for runner, answer in answers:
            try:
                found.append(self._check(answer, shipment))
            except PayloadLostError:  # the learner's adapter, with the learner
                raise
            except _FAILURES as error:
                self.counts["num_failed_deliveries"] += 1
                found.append(self._replace(runner, error))
        return {
            name: min(worst) if name in _HIGHER_IS_BETTER else max(worst)
            for name in {name: None for own in found for name in own}
            if (worst := [own[name] for own in found if name in own])
        }

    def begin(self, runner: int, requests: Sequence[GroupRequest]) -> _Part:
        """Asks one runner, or in place of one that is gone another."""
        if runner not in self._serving:
            runner = self._serving[runner % len(self._serving)]
        num_episodes = sum(request.num_episodes for request in requests)
        self._num_episodes = max(self._num_episodes, num_episodes)
        num_returns = 1 + len(requests)
        returned = self._workers.call(runner, _sample, requests, num_returns=num_returns)
        return _Part(runner, self._lives[runner], requests, returned)

    def begin_again(self, part: _Part) -> _Part:
        """Asks anew for groups that went with the node that held them."""
        self.counts["num_redrawn_groups"] += len(part.requests)
        logger.warning(
            "groups of env runner %d are lost with their node: its %d are drawn again",
            part.runner,
            len(part.requests),
        )
        return self.begin(part.runner, part.requests)

    def finish(self, part: _Part) -> tuple[_Part, SampleReport]:
        """Returns a part as it was played, by another runner where its own failed; its report."""
        is_last_try = False
        while True:
            try:
                (report,) = self._workers.fetch(part.returned[:1])
            except PayloadLostError:
                part = self.begin_again(part)
                continue
            except (EngineError, WorkerLostError) as error:
                if is_last_try and isinstance(error, EngineError):
                    raise
                failure = error
            else:
                return part, report
            if part.life == self._lives[part.runner]:
                is_last_try = isinstance(failure, EngineError)
                self._replace(part.runner, failure)
            part = self.begin(part.runner, part.requests)

    def close(self) -> None:
        """Ends the runners; idempotent."""
        self._workers.close()

    def _deliver(self, runner: int, shipment: Shipment) -> Ref:
        sequences = None if shipment.probe is None else shipment.probe.sequences
        return self._workers.call(
            runner,
            _load_and_prove,
            shipment.adapter,
            sequences,
            is_beside=self._is_loaded_beside,
        )

    def _check(self, returned: Ref, shipment: Shipment) -> dict[str, float]:
        """Returns what a runner's answer tells. Raises: DeliveryError, EngineError, ..."""
        answer: _Answer = self._workers.fetch([returned])[0]
        (ack, proof), receipt = answer, shipment.receipt
        if ack != receipt:
            sent = f"sent was {receipt.version} ({receipt.sha256:.12})"
            raise DeliveryError(f"it answers with adapter {ack.version} ({ack.sha256:.12}), {sent}")
        if shipment.probe is None or proof is None:
            return {}
        metrics = compute_delivery_metrics(shipment.probe, proof)
        problem = find_problem(metrics, shipment.probe)
        if problem is not None:
            raise DeliveryError(f"it acknowledges adapter {receipt.version}, but {problem}")
        return metrics

    def _replace(self, runner: int, reason: Exception) -> dict[str, float]:
        """Puts a new runner in one's place, and delivers the present adapter to it."""
        self._count_restart(runner, reason)
        self._num_out_of_memory[runner] += isinstance(reason, WorkerMemoryError)
        try:
            self._workers.restart(runner, self._settings_of(runner))
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
        except _FAILURES as error:
            raise DeliveryError(f"env runner {runner}, begun anew: {error}") from error

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
        """Leaves a runner's work to the others. Raises: `reason` where there are none."""
        if self._serving == [runner]:
            raise reason
        self._serving.remove(runner)
        left = f"{len(self._serving)} of {self.num_runners}"
        logger.warning("the run goes on with %s env runners: %s", left, reason)

    def _count_restart(self, runner: int, reason: Exception) -> None:
        limit = self._max_restarts
        if self.counts["num_env_runner_restarts"] >= limit:
            kind = DeliveryError if isinstance(reason, DeliveryError) else TrainingError
            name = "fault_tolerance.max_num_env_runner_restarts"
            raise kind(f"env runner {runner}: {reason} ({name} {limit} is reached)") from reason
        self.counts["num_env_runner_restarts"] += 1
        self._lives[runner] += 1
        logger.warning("env runner %d is begun anew: %s", runner, reason)


_HIGHER_IS_BETTER = ("canary", "engine_effect", "served_effect")


def _load_and_prove(
    runner: EnvRunner, adapter: AdapterVersion, sequences: Sequence[Ids] | None
) -> _Answer:
    received = ack_of(adapter).sha256
    if received != adapter.sha256:
        sent = f"{received:.12}, sent was {adapter.sha256:.12}"
        raise DeliveryError(f"adapter {adapter.version} arrived damaged ({sent})")
    ack = runner.load_adapter(adapter)
    return ack, None if sequences is None else runner.prove(sequences)


def _sample(runner: EnvRunner, requests: Sequence[GroupRequest]) -> list[Any]:
    """Returns the report, then for each request its group, None where it was dropped."""
    groups, report = runner.sample(requests)
    whole = iter(groups)
    dropped = set(report.dropped_group_ids)
    return [report, *(None if r.group_id in dropped else next(whole) for r in requests)]
