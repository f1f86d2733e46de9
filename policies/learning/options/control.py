"""Rewards that say nothing of the episodes: for a control, and to see whether a run can learn."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from agentpeft.policies.learning.hooks import LearnerHook
from agentpeft.policies.messages import EpisodeGroup, Trajectory


def shuffle_rewards(groups: Sequence[EpisodeGroup], seed: tuple[int, ...]) -> list[EpisodeGroup]:
    """Returns the groups with the returns of all their episodes permuted, for a control run.

    What rises in a run and not in its control was taught by the rewards. An episode gets another's
    return in its last turn, and 0 in the turns before.
    """
    returns = np.array([t.episode_return for group in groups for t in group.episodes])
    shuffled = iter(np.random.default_rng(seed).permutation(returns).tolist())
    return [_with_returns(group, shuffled) for group in groups]


class ShuffledRewards(LearnerHook):
    """Learns from the returns of other episodes (`training.shuffle_rewards`)."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def choose_groups(self, groups: Sequence[EpisodeGroup], version: int) -> list[EpisodeGroup]:
        """Returns the groups with their returns permuted, in another way at each version."""
        return shuffle_rewards(groups, (self._seed, version))


def draw_rewards(groups: Sequence[EpisodeGroup], seed: int) -> list[EpisodeGroup] | None:
    """Returns the groups with random returns from 0 to 1; None where some can be learnt from.

    Those are groups whose returns differ, and single episodes that differ from one another. Every
    group of several episodes has one of return 1 and one of 0.
    """
    of_groups = [{t.episode_return for t in group.episodes} for group in groups]
    if max(map(len, of_groups)) > 1:
        return None
    if all(len(group.episodes) == 1 for group in groups) and len(set().union(*of_groups)) > 1:
        return None
    rng = np.random.default_rng(seed)
    drawn = []
    for group in groups:
        num = len(group.episodes)
        returns = rng.permutation(num) / (num - 1) if num > 1 else rng.random(1)
        drawn.append(_with_returns(group, iter(returns.tolist())))
    return drawn


def _with_returns(group: EpisodeGroup, returns: Iterator[float]) -> EpisodeGroup:
    """Returns the group with the next return for each episode, which its branches share."""
    trajectories: list[Trajectory] = []
    episode_return = 0.0
    for trajectory in group.trajectories:
        if not trajectory.is_branch:
            episode_return = next(returns)
        rewards = (*(0.0,) * (len(trajectory.turn_rewards) - 1), episode_return)
        rewards = rewards if trajectory.turn_rewards else ()
        trajectories.append(replace(trajectory, turn_rewards=rewards))
    return replace(group, trajectories=tuple(trajectories))
