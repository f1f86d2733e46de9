"""Advantage estimators: pure functions from one group's returns to one advantage per episode.

A group is the G episodes of one task. Each estimator takes the group's returns, (G,) float32, and
returns (G,) float32.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from agentpeft.policies.messages import Floats, Mask

Advantage: TypeAlias = Callable[[Floats], Floats]
_EPSILON = 1e-4


def plain_returns(returns: Floats) -> Floats:
    """The returns as they are. REINFORCE subtracts its moving baseline beforehand.

    Source: Williams 1992, reinforcement comparison.
    """
    return returns


def leave_one_out(returns: Floats) -> Floats:
    """Return minus the mean of the group's others: [0, 0, 1, 1] -> [-2/3, -2/3, 2/3, 2/3].

    Source: Ahmadian et al. 2024, "Back to Basics" (RLOO).
    """
    return group_centred(returns) * (len(returns) / max(len(returns) - 1, 1))


def group_centred(returns: Floats) -> Floats:
    """Return minus the group's mean: [0, 0, 1, 1] -> [-.5, -.5, .5, .5].

    Source: Liu et al. 2025, "Understanding R1-Zero-Like Training" (Dr. GRPO).
    """
    if np.ptp(returns) == 0:
        return np.zeros_like(returns)  # exactly: such episodes then need no forward pass
    centred: Floats = returns - returns.mean()
    return centred


def group_standardized(returns: Floats) -> Floats:
    """Return minus the group's mean, over its sample deviation: [0, 1] -> [-.707, .707].

    A group of equal returns gets zeros. Source: Shao et al. 2024, "DeepSeekMath" (GRPO).
    """
    deviation = float(returns.std(ddof=1)) if len(returns) > 1 else 0.0
    standardized: Floats = group_centred(returns) / (deviation + _EPSILON)
    return standardized


def best_of_group(returns: Floats) -> Floats:
    """One for the episodes with the highest return, else zero: [0, 1, 1] -> [0, 1, 1] (RAFT).

    A group of equal returns gets zeros.
    Source: Dong et al. 2023, "RAFT"; Xiong et al. 2025, "A Minimalist Approach to LLM Reasoning".
    """
    if np.ptp(returns) == 0:
        return np.zeros_like(returns)
    is_best: Mask = returns == returns.max()
    return is_best.astype(np.float32)


def imitation(returns: Floats) -> Floats:
    """One for every episode: the policy gradient is then that of the cross entropy (SFT)."""
    return np.ones_like(returns)


def no_reward(returns: Floats) -> Floats:
    """Zero for every episode: only a teacher tells what to learn (distillation)."""
    return np.zeros_like(returns)


def whiten(advantages: Floats) -> Floats:
    """Shifts and scales all of a batch's advantages, (M,), to mean 0 and deviation 1 (PPO)."""
    if not advantages.size:
        return advantages
    whitened: Floats = (advantages - advantages.mean()) / (advantages.std() + _EPSILON)
    return whitened
