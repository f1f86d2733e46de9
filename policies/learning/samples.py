"""Samples: an update's trajectories, with what the model and the rewards say of them.

N is the number of a trajectory's sampled tokens; all arrays of a sample have one number for each of
them, but for those that are not computed, which are None or empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from transformers import PreTrainedTokenizerBase

from agentpeft.policies.learning.advantages import whiten
from agentpeft.policies.learning.algorithms import AlgorithmSpec
from agentpeft.policies.messages import EpisodeGroup, Floats, TokenRecord, Trajectory

if TYPE_CHECKING:  # a run without a critic does without its module
    from agentpeft.policies.learning.critic import CriticTargets


@dataclass(frozen=True)
class Scores:
    """A model's numbers for a trajectory's sampled tokens, (N,) each; None: not computed."""

    logprobs: Floats | None = None
    values: Floats | None = None


@dataclass(frozen=True)
class Sample:
    """A trajectory to learn from: number `index` of group number `group` of an update.

    `advantages`: (N,), once they are estimated. `old`: scores by the weights before the update; its
    log-probabilities are None where nothing reads them: in the first step, if each sample is learnt
    from once (the weights have not moved, so the loss takes its own, detached), and for samples
    that the loss leaves out. With a teacher all are computed. All scores are at the sampling
    temperature.
    `reference`: scores by the reference policy, `teacher` by a teacher; empty without one.
    `critic`: None without a critic. The weights are those of each token and turn in the losses,
    over the whole minibatch (`Objective.weigh`); 0 before.
    """

    group: int
    index: int
    trajectory: Trajectory
    advantages: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    old: Scores = Scores()
    reference: Scores = Scores()
    teacher: Scores = Scores()
    critic: "CriticTargets | None" = None
    token_weight: float = 0.0
    turn_weight: float = 0.0

    @cached_property
    def num_sampled_tokens(self) -> int:
        """N: how many of the trajectory's tokens the policy sampled."""
        return int(self.trajectory.loss_mask.sum())


def list_samples(groups: Sequence[EpisodeGroup]) -> list[Sample]:
    """Returns all trajectories, group by group."""
    return [
        Sample(number, index, trajectory)
        for number, group in enumerate(groups)
        for index, trajectory in enumerate(group.trajectories)
    ]


def estimate_by_episode(
    samples: Sequence[Sample], spec: AlgorithmSpec, baseline: float
) -> list[Sample]:
    """Returns the samples with advantages; `samples` are whole groups, one after the other.

    All tokens of an episode, in its branches too, share what the algorithm's estimator makes of its
    return.
    """
    is_episode = np.array([not sample.trajectory.is_branch for sample in samples], np.bool_)
    rewards = [np.array(sample.trajectory.turn_rewards, np.float32) for sample in samples]
    returns = np.array([turns.sum() for turns in rewards], np.float32)[is_episode]
    groups = np.array([sample.group for sample in samples])[is_episode]
    group_starts = np.flatnonzero(np.diff(groups)) + 1
    if spec.has_moving_baseline:
        returns -= baseline
    advantages = np.concatenate(
        [spec.advantage(group) for group in np.split(returns, group_starts)]
    )
    if spec.whitens_advantages:
        advantages = whiten(advantages)
    return [
        replace(sample, advantages=np.full(sample.num_sampled_tokens, advantage, np.float32))
        for sample, advantage in zip(samples, advantages[is_episode.cumsum() - 1], strict=True)
    ]


def choose_extremes(samples: Sequence[Sample]) -> list[Sample]:
    """Returns the samples of the two lowest and the two highest mean advantages."""
    ranked = sorted(samples, key=lambda sample: float(sample.advantages.mean()))
    return ranked[:2] + ranked[2:][-2:]


def to_token_record(
    group: EpisodeGroup,
    sample: Sample,
    updated_logprobs: Floats,
    tokenizer: PreTrainedTokenizerBase,
) -> TokenRecord:
    """Returns a sample of `group`, token by token.

    `updated_logprobs`, (N,), are its tokens' log-probabilities under the weights after the update.
    """
    played = sample.trajectory
    logprobs = played.sampling_logprobs[played.loss_mask]
    ratios = np.exp(updated_logprobs - logprobs)
    return TokenRecord(
        group_id=group.group_id,
        sample=sample.index,
        adapter_version=group.adapter_version,
        prompt=str(tokenizer.decode(played.prompt_ids.tolist())),
        tokens=tuple(map(str, tokenizer.batch_decode(played.token_ids[:, None].tolist()))),
        loss_mask=tuple(played.loss_mask.astype(int).tolist()),
        advantages=tuple(np.round(sample.advantages.astype(float), 4).tolist()),
        sampling_logprobs=tuple(np.round(logprobs.astype(float), 7).tolist()),
        ratios=tuple(np.round(ratios.astype(float), 4).tolist()),
    )
