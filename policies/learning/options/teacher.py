"""On-policy distillation: a teacher says of each sampled token how likely it finds it.

Log pi_teacher(token) - log pi(token), whose mean is the negative reverse KL from the policy to the
teacher, is added to the token's advantage. Rewards tell an episode's worth once; this tells each
token's. The teacher is a second model in every learner's memory, and nothing of it is trained.
Source: Agarwal et al. 2024, "On-Policy Distillation of Language Models"; Lu and Thinking Machines
Lab 2025, "On-Policy Distillation".
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from torch import nn

from agentpeft.envs import SettingsError
from agentpeft.policies.learning.critic import POLICY_PASS, Critic
from agentpeft.policies.learning.model_runner import ModelRunner
from agentpeft.policies.learning.peers import Peers
from agentpeft.policies.learning.samples import Sample, Scores
from agentpeft.policies.messages import Floats
from agentpeft.policies.models.load import load_base
from agentpeft.policies.models.lora import open_adapter
from agentpeft.policies.models.policy_base import FrozenPolicy, PolicyBase
from agentpeft.policies.settings.config import Settings


def open_teacher(settings: Settings, student: PolicyBase) -> ModelRunner:
    """Returns what scores tokens by `training.teacher`: a model, or an adapter over its base.

    Its log-probabilities are, as the policy's, at the sampling temperature. Raises: SettingsError
    if it cannot be loaded, or does not read the same tokens as the student.
    """
    name, num_gpus = settings.training.teacher, settings.learners.num_gpus_per_learner
    try:
        base = load_base(settings.with_model(name=name, adapter=None), num_gpus)
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
    return ModelRunner(settings, policy, Critic(None, policy, settings.seed))


def teach(
    samples: Sequence[Sample], teacher: ModelRunner, peers: Peers, coeff: float
) -> list[Sample]:
    """Returns the samples with what the teacher adds, each learner asking it about its share."""
    members = [sample.member for sample in samples]
    scores = peers.divide(members, partial(teacher.score, passes=[POLICY_PASS]))
    return add_teaching(samples, scores, coeff)


def add_teaching(
    samples: Sequence[Sample], teacher: Sequence[Scores], coeff: float
) -> list[Sample]:
    """Returns the samples with the teacher's scores, and what these add to the advantages.

    A token of probability .5 by the policy and .25 by the teacher, coefficient 1: log .5 = -.69.
    """
    return [
        replace(
            sample, advantages=sample.advantages + coeff * _gap(scores, sample.old), teacher=scores
        )
        for sample, scores in zip(samples, teacher, strict=True)
    ]


def _gap(scores: Scores, old: Scores) -> Floats:
    """Returns by how much the first log-probabilities are above the second, (N,)."""
    if scores.logprobs is None or old.logprobs is None:
        raise ValueError("a teacher is compared with the policy's log-probabilities, not computed")
    return scores.logprobs - old.logprobs


def compute_teacher_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Returns the estimated reverse KL per sampled token, before the update; {} without teacher."""
    taught = [sample for sample in samples if sample.teacher.logprobs is not None]
    gaps = [_gap(sample.old, sample.teacher) for sample in taught]
    return {"train/teacher_kl": float(np.concatenate(gaps).mean())} if gaps else {}
