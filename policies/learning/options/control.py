"""A control: the same run with rewards that say nothing of the episodes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

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


def _with_return(trajectory: Trajectory, episode_return: float) -> Trajectory:
    num_earlier = len(trajectory.turn_rewards) - 1
    if num_earlier < 0:
        return trajectory
    return replace(trajectory, turn_rewards=(*(0.0,) * num_earlier, episode_return))
