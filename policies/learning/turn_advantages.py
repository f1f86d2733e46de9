"""Advantages where a critic predicts values: each turn of an episode has its own, by GAE."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentpeft.policies.learning.advantages import compute_gae, whiten
from agentpeft.policies.learning.algorithms import AlgorithmSpec
from agentpeft.policies.messages import Floats, Ids, Trajectory
from agentpeft.policies.settings.config import TrainingSettings


@dataclass(frozen=True)
class CriticTargets:
    """What the critic learns from, (N,) each; every token carries the numbers of its turn.

    `targets`: advantage plus old value of the turn. `turn_starts`: 1 for the first token of each
    turn, where the turn's value is predicted, else 0; a loss counts these tokens only.
    """

    old_values: Floats
    targets: Floats
    turn_starts: Floats


def advantages_by_turn(
    trajectories: Sequence[Trajectory],
    rewards: Sequence[Floats],
    values: Sequence[Floats],
    spec: AlgorithmSpec,
    training: TrainingSettings,
) -> tuple[list[Floats], list[CriticTargets]]:
    """Returns each trajectory's advantages, (N,), and what the critic learns from it.

    `rewards` are of its turns, (turns,), `values` the critic's at its sampled tokens, (N,).
    """
    by_gae: list[Floats] = []
    turns: list[Ids] = []
    critic: list[CriticTargets] = []
    for trajectory, turn_rewards, old_values in zip(trajectories, rewards, values, strict=True):
        turn = turn_of_tokens(trajectory)
        is_start = np.diff(turn, prepend=-1) > 0
        turn_values = old_values[is_start]
        gae = compute_gae(turn_rewards, turn_values, training.gamma, training.lambda_)
        targets = (gae + turn_values)[turn]
        critic.append(CriticTargets(old_values, targets, is_start.astype(np.float32)))
        by_gae.append(gae)
        turns.append(turn)
    flat = np.concatenate(by_gae)
    if spec.whitens_advantages:
        flat = whiten(flat)
    parts = np.split(flat, np.cumsum([len(gae) for gae in by_gae])[:-1])
    return [part[turn] for part, turn in zip(parts, turns, strict=True)], critic


def turn_of_tokens(trajectory: Trajectory) -> Ids:
    """Returns the number of each sampled token's turn, (N,)."""
    sampled = np.flatnonzero(trajectory.loss_mask)
    return np.searchsorted(np.array(trajectory.turn_ends), sampled, side="right")
