"""The rewards that only training has: an evaluation always shows the environment's own."""

from collections.abc import Mapping
from typing import Any

_ARGUMENT, _FIELD = "partial_credit", "turn_reward_fn"


def without_training_rewards(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an environment's keyword arguments without those that give rewards for parts.

    They are `partial_credit`, and `turn_reward_fn` of `reward`.
    """
    left = {name: value for name, value in kwargs.items() if name != _ARGUMENT}
    reward = left.get("reward")
    if isinstance(reward, Mapping):
        left["reward"] = {name: value for name, value in reward.items() if name != _FIELD}
    return left
