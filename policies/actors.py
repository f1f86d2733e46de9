"""Env runners and learners, as Ray actors or in the driver's process (`num_env_runners` 0).

The methods are the same. Payloads are return values of actors' methods: the driver passes
references on, and fetches reports alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from agentpeft.policies.config import Settings
from agentpeft.policies.env_runner import EnvRunner
from agentpeft.policies.episodes import GroupRequest, SampleReport
from agentpeft.policies.errors import DeliveryError
from agentpeft.policies.learner import Learner
from agentpeft.policies.peers import Peers, open_store
from agentpeft.policies.samples import AdapterAck, AdapterVersion, EpisodeGroup
from agentpeft.policies.workers import Job, Ref, Workers, node_address, start_workers

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class PendingSamples:
    """Samples under way: for each runner, the requests' indices and what it will return."""

    _workers: Workers
    _parts: tuple[tuple[Sequence[int], Ref], ...]
    _requests: Sequence[GroupRequest]

    def result(self) -> tuple[list[Ref], SampleReport]:
        """Waits, and returns the whole groups in the requests' order, and one report.

        `adapter_versions` of the report are in the groups' order. Raises: TrainingError.
        """
        reports: list[SampleReport] = self._workers.fetch(
            [returned[0] for _, returned in self._parts]
        )
        found: dict[int, tuple[Ref, int]] = {}
        for report, (indices, returned) in zip(reports, self._parts, strict=True):
            dropped = set(report.dropped_group_ids)
            kept = [
                (index, ref)
                for index, ref in zip(indices, returned[1:], strict=True)
                if self._requests[index].group_id not in dropped
            ]
            for (index, ref), version in zip(kept, report.adapter_versions, strict=True):
                found[index] = (ref, version)
        ordered = [found[index] for index in sorted(found)]
        report = SampleReport.merge(reports)
        versions = tuple(version for _, version in ordered)
        return [ref for ref, _ in ordered], replace(report, adapter_versions=versions)


@dataclass(frozen=True)
class Shipment:
    """An adapter under way, and what a runner must answer to it."""

    adapter: Ref
    receipt: Ref


class EnvRunnerGroup:
    """The env runners. Requests are dealt out in turn, so the same runner plays the same ones."""

    def __init__(self, settings: Settings) -> None:
        """Raises: PlacementError, and what a runner's constructor raises."""
        own = settings.env_runners
        self._workers = start_workers(
            Job(
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

    def sample(self, requests: Sequence[GroupRequest]) -> PendingSamples:
        """Begins to play; the runners take up what they are asked in the order of asking."""
        parts = []
        for runner in range(min(self._workers.num_workers, len(requests))):
            indices = range(runner, len(requests), self._workers.num_workers)
            own = [requests[index] for index in indices]
            returned = self._workers.call(runner, _sample, own, num_returns=1 + len(own))
            parts.append((indices, returned))
        return PendingSamples(self._workers, tuple(parts), requests)

    def load_adapter(self, shipment: Shipment) -> int:
        """Delivers an adapter to all runners and returns its version.

        Raises: DeliveryError where one answers with another version or hash.
        """
        runners = range(self._workers.num_workers)
        answers = [
            self._workers.call(runner, EnvRunner.load_adapter, shipment.adapter)
            for runner in runners
        ]
        receipt, *acks = self._workers.fetch([shipment.receipt, *answers])
        for runner, ack in zip(runners, acks, strict=True):
            if ack != receipt:
                raise DeliveryError(
                    f"env runner {runner} answers with adapter {ack.version} ({ack.sha256:.12}), "
                    f"sent was {receipt.version} ({receipt.sha256:.12})"
                )
        return int(receipt.version)

    def close(self) -> None:
        """Ends the runners; idempotent."""
        self._workers.close()


class LearnerGroup:
    """The learners. They hold the same weights, so what is asked once is asked of the first."""

    def __init__(self, settings: Settings) -> None:
        """Raises: PlacementError, and what loading the model raises."""
        own = settings.learners
        self._workers = start_workers(
            Job(
                name="the learner" if own.num_learners == 1 else "the learners",
                num_workers=own.num_learners,
                num_cpus=own.num_cpus_per_learner,
                num_gpus=own.num_gpus_per_learner,
                num_threads=own.num_threads,
                make=_make_learner,
            ),
            settings,
        )
        if own.num_learners > 1:
            try:
                self._join()
            except BaseException:
                self.close()
                raise

    def _join(self) -> None:
        self._store = open_store(node_address())  # kept: nccl asks it at the first update
        place, ranks = (self._store.host, self._store.port), range(self._workers.num_workers)
        joined = [self._workers.call(rank, _join, place, rank) for rank in ranks]
        self._workers.fetch(joined)

    def update(self, groups: Sequence[Ref]) -> dict[str, float]:
        """Learns from groups, which reach the learners without passing the driver."""
        return dict(self.call_all(_update, *groups))

    def adapter(self) -> Shipment:
        """Returns the present adapter, to be delivered."""
        return Shipment(*self._workers.call(0, _ship, num_returns=2))

    def call(
        self, function: Callable[Concatenate[Learner, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Returns `function(learner, ...)` of an importable function, called where learner 0 is."""
        result: T = self._workers.fetch(
            [self._workers.call(0, partial(function, **kwargs), *args)]
        )[0]
        return result

    def call_all(
        self, function: Callable[Concatenate[Learner, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Calls `function(learner, ...)` of all learners and returns what it is of learner 0."""
        ranks, bound = range(self._workers.num_workers), partial(function, **kwargs)
        result: T = self._workers.fetch([self._workers.call(r, bound, *args) for r in ranks])[0]
        return result

    def close(self) -> None:
        """Ends the learners; idempotent."""
        self._workers.close()


def _make_learner(settings: Settings) -> Learner:
    from agentpeft.policies.lora import attach_lora
    from agentpeft.policies.models import load_base

    own = settings.learners
    base = load_base(settings, own.num_gpus_per_learner)
    checkpointing = own.gradient_checkpointing
    policy = attach_lora(
        base, settings.lora, seed=settings.seed, gradient_checkpointing=checkpointing
    )
    return Learner(settings, policy)


def _join(learner: Learner, place: tuple[str, int], rank: int) -> None:
    own = learner.settings.learners
    learner.peers = Peers.join(place, rank, own.num_learners, own.num_gpus_per_learner > 0)


def _update(learner: Learner, *groups: EpisodeGroup) -> dict[str, float]:
    return learner.update(groups)


def _ship(learner: Learner) -> tuple[AdapterVersion, AdapterAck]:
    adapter = learner.adapter()
    return adapter, AdapterAck(adapter.version, adapter.sha256)


def _sample(runner: EnvRunner, requests: Sequence[GroupRequest]) -> list[Any]:
    """Returns the report, then for each request its group, None where it was dropped."""
    groups, report = runner.sample(requests)
    whole = iter(groups)
    dropped = set(report.dropped_group_ids)
    return [report, *(None if r.group_id in dropped else next(whole) for r in requests)]
