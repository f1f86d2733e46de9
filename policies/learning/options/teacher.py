"""On-policy distillation: a teacher says of each sampled token how likely it finds it.

Log pi_teacher(token) - log pi(token), whose mean is the negative reverse KL from the policy to the
teacher, is added to the token's advantage. Rewards tell an episode's worth once; this tells each
token's. The teacher is a second model in every learner's memory (sharded where the base is), or a
server's, and nothing of it is trained.
Source: Agarwal et al. 2024, "On-Policy Distillation of Language Models"; Lu and Thinking Machines
Lab 2025, "On-Policy Distillation".
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from torch import nn

from agentpeft.envs import SettingsError
from agentpeft.policies.learning.hooks import LearnerHook
from agentpeft.policies.learning.passes.model_runner import ModelRunner
from agentpeft.policies.learning.passes.sharded_base import ShardedBase
from agentpeft.policies.learning.peers import Peers
from agentpeft.policies.learning.samples import Sample, Scores
from agentpeft.policies.messages import Floats
from agentpeft.policies.models.load import choose_device, load_base
from agentpeft.policies.models.lora.open_adapters import open_adapter
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.settings.config import Settings


@dataclass(frozen=True)
class FrozenPolicy:
    """A model that is only asked; `model` is the base's, or that with an adapter."""

    base: PolicyBase
    model: nn.Module

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Returns nothing."""
        return []


class Teacher(Protocol):
    """Who says how likely sampled tokens are: a `ModelRunner`, or an endpoint."""

    def score(self, samples: Sequence[Sample]) -> list[Scores]:
        """Returns the log-probabilities of each sample's sampled tokens."""


class Distillation(LearnerHook):
    """Adds to each sampled token's advantage what the settings' teacher finds of it."""

    needs_logprobs = True

    def __init__(self, settings: Settings, student: PolicyBase, peers: Peers) -> None:
        """Raises: SettingsError if it cannot be loaded or reached, or reads other tokens."""
        name = str(settings.training.teacher)
        self._teacher: Teacher
        if settings.training.is_taught_by_endpoint:
            # It needs `openai`, which a learner without such a teacher does not
            from agentpeft.policies.learning.options.endpoint_teacher import EndpointTeacher

            self._teacher = EndpointTeacher(name)
        else:
            self._teacher = _load_teacher(name, settings, student, peers)

    def teach(self, samples: Sequence[Sample], peers: Peers) -> list[Sample]:
        """Returns the samples with what is added, each learner asking about its share."""
        return add_teaching(samples, peers.divide(samples, self._teacher.score))

    def end_update(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Returns the estimated reverse KL per sampled token, before the update."""
        if isinstance(self._teacher, ModelRunner):
            self.num_oom_retries = self._teacher.size.end_update()
        gaps = [_gap(sample.old, sample.teacher) for sample in samples]
        return {"train/teacher_kl": float(np.concatenate(gaps).mean())} if gaps else {}


def add_teaching(samples: Sequence[Sample], teacher: Sequence[Scores]) -> list[Sample]:
    """Returns the samples with the teacher's scores, and what these add to the advantages.

    A token of probability .5 by the policy and .25 by the teacher: log .5 = -.69.
    """
    return [
        replace(sample, advantages=sample.advantages + _gap(scores, sample.old), teacher=scores)
        for sample, scores in zip(samples, teacher, strict=True)
    ]


def _gap(scores: Scores, old: Scores) -> Floats:
    """Returns by how much the first log-probabilities are above the second, (N,)."""
    if scores.logprobs is None or old.logprobs is None:
        raise ValueError("a teacher is compared with the policy's log-probabilities, not computed")
    return scores.logprobs - old.logprobs


def _load_teacher(name: str, settings: Settings, student: PolicyBase, peers: Peers) -> ModelRunner:
    """Loads a model, or an adapter over its base, to score tokens at the sampling temperature."""
    num_gpus, is_sharded = settings.learners.num_gpus_per_learner, settings.learners.shard_base
    try:
        loaded = settings.with_model(name=name, adapter=None)
        base = load_base(loaded, num_gpus, stays_on_cpu=is_sharded, is_frozen=not is_sharded)
    except SettingsError as error:
        raise SettingsError(f"training.teacher {name!r}: {error}") from error
    if base.tokenizer.get_vocab() != student.tokenizer.get_vocab():
        raise SettingsError(
            f"training.teacher {name!r} has another vocabulary than model.name "
            f"{settings.model.name!r}: it cannot say how likely the policy's tokens are"
        )
    network: nn.Module = base.model
    if base.adapter_path is not None:
        network = open_adapter(base, base.adapter_path)
    policy = FrozenPolicy(base, network.requires_grad_(False))
    sharded_base = ShardedBase(policy, peers, choose_device(num_gpus)) if is_sharded else None
    return ModelRunner(settings, policy, sharded_base=sharded_base)
