"""What environments' keyword arguments say: their values, a mixture's sources, training's rewards.

Those rewards only training has: an evaluation always shows the environment's own.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentpeft.envs.core.rewards import RewardConfig

MIXTURE = "AgentPEFT/Mixture-v0"
SOURCES = "sources"


def parse_value(text: str) -> Any:
    """Returns what TOML makes of a value's text; what is no TOML is a bare word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, or thousands of digits or brackets
        return text


def drawn_kwargs(kwargs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the keyword arguments of all environments whose tasks are drawn.

    Of a mixture they are those of each source that has a weight, with its `id`; of any other
    environment its own. What is no mixture's form is left to the environment to refuse.

    >>> drawn_kwargs({"sources": [{"id": "a", "kwargs": {"n": 1}}, {"id": "b"}], "split": "test"})
    [{'n': 1, 'split': 'test', 'id': 'a'}, {'split': 'test', 'id': 'b'}]
    """
    sources, weights = kwargs.get(SOURCES), kwargs.get("weights")
    if not isinstance(sources, list | tuple):
        return [dict(kwargs)]
    shared = {name: value for name, value in kwargs.items() if name not in (SOURCES, "weights")}
    if not (isinstance(weights, list | tuple) and len(weights) == len(sources)):
        weights = [1.0] * len(sources)
    found = []
    for source, weight in zip(sources, weights, strict=True):
        own = source.get("kwargs", {}) if isinstance(source, Mapping) else None
        if isinstance(own, Mapping) and weight != 0:
            found += drawn_kwargs({**own, **shared, "id": source.get("id")})
    return found


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
