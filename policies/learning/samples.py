"""The first stage of an update: from groups of episodes to samples with advantages.

`GroupMember` -> `Scores` (what the model says of it before the update) -> `Sample`. N is the number
of a trajectory's sampled tokens; all arrays of a sample have one number for each of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from agentpeft.policies.learning.advantages import whiten
from agentpeft.policies.learning.algorithms import AlgorithmSpec
from agentpeft.policies.messages import EpisodeGroup, Floats, Trajectory
from agentpeft.policies.settings.config import TrainingSettings

if TYPE_CHECKING:  # turns have advantages of their own where there is a critic
    from agentpeft.policies.learning.turn_advantages import CriticTargets


@dataclass(frozen=True)
class GroupMember:
    """A trajectory of an update: number `index` of group number `group`."""

    group: int
    index: int
    trajectory: Trajectory

    @property
    def place(self) -> tuple[int, int]:
        """What tells it from the update's others."""
        return self.group, self.index

    @cached_property
    def num_sampled_tokens(self) -> int:
        """N: how many of the trajectory's tokens the policy sampled."""
        return int(self.trajectory.loss_mask.sum())


@dataclass(frozen=True)
class Scores:
    """A model's numbers for a trajectory's sampled tokens, (N,) each; None: not computed."""

    logprobs: Floats | None = None
    values: Floats | None = None


@dataclass(frozen=True)
class Sample:
    """A trajectory to learn from; it has at least one sampled token.

    `advantages`: (N,). `old`: scores by the weights before the update. If the update takes a single
    step, the weights have not moved when it is taken, so the loss uses its own log-probabilities as
    the old ones, and those of `old` are None (unless KL in the rewards or a teacher asks for them),
    as are those of a sample that the loss leaves out. `reference`: scores by the reference policy;
    empty without a KL term. `critic`: None without one. `teacher`: its scores; empty without one.
    The weights are those of each token and turn in the losses, over the whole minibatch
    (`Objective.weigh`); 0 before.
    """

    member: GroupMember
    advantages: Floats
    old: Scores
    reference: Scores
    critic: "CriticTargets | None"
    teacher: Scores = Scores()
    token_weight: float = 0.0
    turn_weight: float = 0.0


def list_members(groups: Sequence[EpisodeGroup]) -> list[GroupMember]:
    """Returns all trajectories, group by group."""
    return [
        GroupMember(number, index, trajectory)
        for number, group in enumerate(groups)
        for index, trajectory in enumerate(group.trajectories)
    ]


def make_samples(
    members: Sequence[GroupMember],
    old: Sequence[Scores],
    reference: Sequence[Scores],
    spec: AlgorithmSpec,
    training: TrainingSettings,
    baseline: float,
) -> list[Sample]:
    """Returns a sample of each member with sampled tokens.

    `members` are whole groups, one after the other; `old` and `reference` are the scores of each by
    the weights before the update and by the reference. Where `old` has a critic's values, each turn
    has its own advantage, by GAE from the values at its first token, which all of its tokens share;
    else all tokens of an episode share what the algorithm's estimator makes of its return.
    """
    rewards = [np.array(member.trajectory.turn_rewards, np.float32) for member in members]
    values = [scores.values for scores in old if scores.values is not None]
    critic: Sequence[CriticTargets | None] = [None] * len(members)
    if values:
        from agentpeft.policies.learning.turn_advantages import advantages_by_turn

        trajectories = [member.trajectory for member in members]
        advantages, critic = advantages_by_turn(trajectories, rewards, values, spec, training)
    else:
        advantages = _advantages_by_episode(members, rewards, spec, baseline)
    samples = map(Sample, members, advantages, old, reference, critic)
    return [sample for sample in samples if sample.member.num_sampled_tokens]


def _advantages_by_episode(
    members: Sequence[GroupMember], rewards: Sequence[Floats], spec: AlgorithmSpec, baseline: float
) -> list[Floats]:
    returns = np.array([turns.sum() for turns in rewards], np.float32)
    group_starts = np.flatnonzero(np.diff([member.group for member in members])) + 1
    groups = np.split(returns, group_starts)
    advantages = np.concatenate([spec.advantage(group, baseline) for group in groups])
    if spec.whitens_advantages:
        advantages = whiten(advantages)
    return [
        np.full(member.num_sampled_tokens, advantage, np.float32)
        for member, advantage in zip(members, advantages, strict=True)
    ]
