"""Rewards that say nothing of the episodes: for a control, and to see whether a run can learn."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from agentpeft.policies.learning.hooks import LearnerHook
from agentpeft.policies.messages import EpisodeGroup, Trajectory


def shuffle_rewards(groups: Sequence[EpisodeGroup], seed: tuple[int, ...]) -> list[EpisodeGroup]:
    """Returns the groups with the returns of all their episodes permuted, for a control run.

    What rises in a run and not in its control was taught by the rewards. An episode gets another's
    return in its last turn, and 0 in the turns before.
    """
    episodes = [trajectory for group in groups for trajectory in group.trajectories]
    order = np.random.default_rng(seed).permutation(len(episodes))
    returns = iter([episodes[number].episode_return for number in order])
    return [
        replace(
            group, trajectories=tuple(_with_return(t, next(returns)) for t in group.trajectories)
        )
        for group in groups
    ]


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
    of_groups = [{t.episode_return for t in group.trajectories} for group in groups]
    if max(map(len, of_groups)) > 1:
        return None
    if all(len(group.trajectories) == 1 for group in groups) and len(set().union(*of_groups)) > 1:
        return None
    rng = np.random.default_rng(seed)
    drawn = []
    for group in groups:
        num = len(group.trajectories)
        returns = rng.permutation(num) / (num - 1) if num > 1 else rng.random(1)
        played = map(_with_return, group.trajectories, returns.tolist())
        drawn.append(replace(group, trajectories=tuple(played)))
    return drawn


def _with_return(trajectory: Trajectory, episode_return: float) -> Trajectory:
    num_earlier = len(trajectory.turn_rewards) - 1
    if num_earlier < 0:
        return trajectory
    return replace(trajectory, turn_rewards=(*(0.0,) * num_earlier, episode_return))
