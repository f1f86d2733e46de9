"""Env runners and learners, as Ray actors or in the driver's process (`num_env_runners` 0).

The methods are the same. Payloads are return values of actors' methods: the driver passes
references on, and fetches reports alone.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

from agentpeft.policies.errors import PayloadLostError
from agentpeft.policies.learning.learner import Learner
from agentpeft.policies.learning.peers import Peers, open_store
from agentpeft.policies.messages import EpisodeGroup
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers import learner_calls
from agentpeft.policies.workers.runner_group import EnvRunnerGroup, PendingSamples, Shipment
from agentpeft.policies.workers.workers import Ref, WorkerSpec, node_address, start_workers

__all__ = ["EnvRunnerGroup", "LearnerGroup", "PendingSamples", "Shipment"]

P = ParamSpec("P")
T = TypeVar("T")


class LearnerGroup:
    """The learners. They hold the same weights, so what is asked once is asked of the first."""

    def __init__(self, settings: Settings) -> None:
        """Raises: PlacementError, and what loading the model raises."""
        own = settings.learners
        self._workers = start_workers(
            WorkerSpec(
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
        """Learns from groups, which reach the learners without passing the driver.

        All learners have them before one begins. Raises: PayloadLostError where one went with the
        node that held it; then nothing was learnt.
        """
        self.call_all(_receive, *groups)
        return dict(self.call_all(_update))

    def find_lost(self, groups: Sequence[Ref]) -> list[Ref]:
        """Returns those of the groups that cannot reach the learners any more."""
        lost = []
        for group in groups:
            try:
                self.call_all(_receive, group)
            except PayloadLostError:
                lost.append(group)
        return lost

    def adapter(self) -> Shipment:
        """Returns the present adapter, to be delivered."""
        adapter, *answers = self._workers.call(0, learner_calls.ship, num_returns=3)
        return Shipment(adapter, *self._workers.fetch(answers))

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
    from agentpeft.policies.models.load import load_base
    from agentpeft.policies.models.lora import attach_lora

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


def _receive(learner: Learner, *groups: EpisodeGroup) -> None:
    learner.received = groups


def _update(learner: Learner) -> dict[str, float]:
    groups, learner.received = learner.received, ()
    return learner.update(groups)
