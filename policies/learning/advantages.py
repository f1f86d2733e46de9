"""Advantage estimators: from the rewards of groups of episodes to one advantage per turn.

They are pure. Input: for each group its episodes, each an array of turn rewards (turns,); output:
the same shapes. Where there is a critic, `by_turn` gives them its advantages instead.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from agentpeft.policies.messages import Floats, Ids, Mask, Trajectory

GroupRewards: TypeAlias = Sequence[Floats]
Advantage: TypeAlias = Callable[[Sequence[GroupRewards], float], list[list[Floats]]]
_EPSILON = 1e-4


def compute_returns(group: GroupRewards) -> Floats:
    """Returns the undiscounted return of each episode, (G,)."""
    return np.array([rewards.sum() for rewards in group], np.float32)


def moving_baseline(groups: Sequence[GroupRewards], baseline: float) -> list[list[Floats]]:
    """Returns minus `baseline`, the moving average of earlier batches (REINFORCE).

    Source: Williams 1992, reinforcement comparison. Returns [0, 1], baseline .25 -> [-.25, .75].
    """
    return [_per_turn(group, compute_returns(group) - baseline) for group in groups]


def whitened(groups: Sequence[GroupRewards], baseline: float) -> list[list[Floats]]:
    """Returns minus `baseline`, then of mean 0 and deviation 1 over the batch's episodes (PPO)."""
    values = [compute_returns(group) - baseline for group in groups]
    flat = np.concatenate(values)
    mean, scale = flat.mean(), flat.std() + _EPSILON
    return [_per_turn(g, (value - mean) / scale) for g, value in zip(groups, values, strict=True)]


def leave_one_out(groups: Sequence[GroupRewards], baseline: float) -> list[list[Floats]]:
    """Returns minus the mean of the group's others: [0, 0, 1, 1] -> [-2/3, -2/3, 2/3, 2/3].

    Source: Ahmadian et al. 2024, "Back to Basics" (RLOO).
    """
    del baseline
    return [_per_turn(g, _centred(g) * (len(g) / max(len(g) - 1, 1))) for g in groups]


def group_centred(groups: Sequence[GroupRewards], baseline: float) -> list[list[Floats]]:
    """Returns minus the group's mean: [0, 0, 1, 1] -> [-.5, -.5, .5, .5].

    Source: Liu et al. 2025, "Understanding R1-Zero-Like Training" (Dr. GRPO).
    """
    del baseline
    return [_per_turn(group, _centred(group)) for group in groups]


def group_standardized(groups: Sequence[GroupRewards], baseline: float) -> list[list[Floats]]:
    """Returns minus the group's mean, over its deviation (of n - 1): [0, 1] -> [-.707, .707].

    A group of equal returns gets zeros. Source: Shao et al. 2024, "DeepSeekMath" (GRPO).
    """
    del baseline
    return [_per_turn(group, _centred(group) / (_deviation(group) + _EPSILON)) for group in groups]


def best_of_group(groups: Sequence[GroupRewards], baseline: float) -> list[list[Floats]]:
    """One for the episodes with a group's highest return, else 0: [0, 1, 1] -> [0, 1, 1] (RAFT).

    A group of equal returns gets zeros: what every episode does need not be learnt.
    Source: Dong et al. 2023, "RAFT"; Xiong et al. 2025, "A Minimalist Approach to LLM Reasoning".
    """
    del baseline
    values = [compute_returns(group) for group in groups]
    tops = [(np.ptp(v) > 0) * (v == v.max()).astype(np.float32) for v in values]
    return [_per_turn(group, top) for group, top in zip(groups, tops, strict=True)]


def imitation(groups: Sequence[GroupRewards], baseline: float) -> list[list[Floats]]:
    """One for every turn: the policy gradient is then that of the cross entropy (SFT)."""
    del baseline
    return [_per_turn(group, np.ones(len(group), np.float32)) for group in groups]


def compute_gae(rewards: Floats, values: Floats, gamma: float, lambda_: float) -> Floats:
    """Returns the advantages of an episode's turns from their rewards and values, all (turns,).

    A_t = delta_t + gamma lambda A_t+1, with delta_t = r_t + gamma V_t+1 - V_t; after the last turn
    both A and V are 0. Rewards [0, 1], values [.5, .5], gamma 1, lambda 0 -> [0, .5].
    Source: Schulman et al. 2016, "High-Dimensional Continuous Control Using GAE", eq. 16.
    """
    advantages = rewards + gamma * np.append(values, 0)[1:] - values
    for turn in reversed(range(len(advantages) - 1)):
        advantages[turn] += gamma * lambda_ * advantages[turn + 1]
    return advantages.astype(np.float32)


def by_turn(estimator: Advantage, advantages: Sequence[Floats]) -> list[Floats]:
    """Returns what an estimator makes of a critic's advantages, for each episode (turns,).

    Each turn stands for an episode, its advantage for the return, and the baseline is 0: so
    `whitened` whitens over all turns, and `moving_baseline` changes nothing.
    """
    if not any(map(len, advantages)):
        return list(advantages)
    (turns,) = estimator([list(np.concatenate(advantages)[:, None])], 0.0)
    ends = np.cumsum([len(episode) for episode in advantages])
    return np.split(np.concatenate(turns), ends[:-1])


def turns_to_tokens(values: Floats, trajectory: Trajectory) -> Floats:
    """Returns for each sampled token the value of its turn: (turns,) -> (N,)."""
    return values[turn_of_tokens(trajectory)].astype(np.float32)


def turn_of_tokens(trajectory: Trajectory) -> Ids:
    """Returns the number of each sampled token's turn: (N,)."""
    sampled = np.flatnonzero(trajectory.loss_mask)
    return np.searchsorted(np.array(trajectory.turn_ends), sampled, side="right")


def find_turn_starts(trajectory: Trajectory) -> Mask:
    """Returns which of the sampled tokens are the first of their turn: (N,)."""
    return np.diff(turn_of_tokens(trajectory), prepend=-1) > 0


def _centred(group: GroupRewards) -> Floats:
    returns = compute_returns(group)
    if np.ptp(returns) == 0:
        return np.zeros_like(returns)  # exactly: such episodes then need no forward pass
    centred: Floats = returns - returns.mean()
    return centred


def _deviation(group: GroupRewards) -> float:
    return float(compute_returns(group).std(ddof=1)) if len(group) > 1 else 0.0


def _per_turn(group: GroupRewards, advantages: Floats) -> list[Floats]:
    pairs = zip(group, advantages, strict=True)
    return [np.full(len(rewards), advantage, np.float32) for rewards, advantage in pairs]
