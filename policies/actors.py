"""Env runners and the learner, as Ray actors or in the driver's process (`num_env_runners` 0).

The methods are the same. Payloads are return values of actors' methods: the driver passes
references on, and fetches reports alone.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

from agentpeft.policies import learner_calls
from agentpeft.policies.config import Settings
from agentpeft.policies.learner import Learner
from agentpeft.policies.runner_group import EnvRunnerGroup, PendingSamples, Shipment
from agentpeft.policies.samples import EpisodeGroup
from agentpeft.policies.workers import Job, Ref, start_workers

__all__ = ["EnvRunnerGroup", "LearnerGroup", "PendingSamples", "Shipment"]

P = ParamSpec("P")
T = TypeVar("T")


class LearnerGroup:
    """The learner; several of them are to come behind the same methods."""

    def __init__(self, settings: Settings) -> None:
        """Raises: PlacementError, and what loading the model raises."""
        own = settings.learners
        self._workers = start_workers(
            Job(
                name="the learner",
                num_workers=1,
                num_cpus=own.num_cpus_per_learner,
                num_gpus=own.num_gpus_per_learner,
                num_threads=own.num_threads,
                make=_make_learner,
            ),
            settings,
        )

    def update(self, groups: Sequence[Ref]) -> dict[str, float]:
        """Learns from groups, which reach the learner without passing the driver."""
        (metrics,) = self._workers.fetch([self._workers.call(0, _update, *groups)])
        return dict(metrics)

    def adapter(self) -> Shipment:
        """Returns the present adapter, to be delivered."""
        adapter, *answers = self._workers.call(0, learner_calls.ship, num_returns=3)
        return Shipment(adapter, *self._workers.fetch(answers))

    def call(
        self, function: Callable[Concatenate[Learner, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Returns `function(learner, ...)` of an importable function, called where it is."""
        result: T = self._workers.fetch(
            [self._workers.call(0, partial(function, **kwargs), *args)]
        )[0]
        return result

    def close(self) -> None:
        """Ends the learner; idempotent."""
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


def _update(learner: Learner, *groups: EpisodeGroup) -> dict[str, float]:
    return learner.update(groups)
