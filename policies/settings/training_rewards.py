"""The rewards that only training has: an evaluation always shows the environment's own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentpeft.envs.core.rewards import RewardConfig
from agentpeft.policies.settings.mixture_sources import SOURCES

_ARGUMENT, _FIELD = "partial_credit", "turn_reward_fn"


def without_training_rewards(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an environment's keyword arguments without those that give rewards for parts.

    They are `partial_credit`, and `turn_reward_fn` of `reward`, also of a mixture's sources.
    """
    left = {name: value for name, value in kwargs.items() if name != _ARGUMENT}
    sources = left.get(SOURCES)
    if isinstance(sources, list | tuple):
        left[SOURCES] = type(sources)(_without_own_rewards(source) for source in sources)
    if "reward" in left:
        left["reward"] = _without_turn_rewards(left["reward"])
    return left


def _without_turn_rewards(reward: Any) -> Any:
    if isinstance(reward, RewardConfig):
        return replace(reward, turn_reward_fn=None)
    if not isinstance(reward, Mapping):
        return reward
    left = {name: value for name, value in reward.items() if name != _FIELD}
    if "preset" in left:
        left["preset"] = _without_turn_rewards(left["preset"])
    return left


def _without_own_rewards(source: Any) -> Any:
    if not (isinstance(source, Mapping) and isinstance(source.get("kwargs"), Mapping)):
        return source
    return {**source, "kwargs": without_training_rewards(source["kwargs"])}
