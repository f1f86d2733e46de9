"""Reward functions of users: named or given in settings, called with their results checked."""

from inspect import isfunction
from math import isfinite, nan
from typing import TYPE_CHECKING, cast

from agentpeft.envs.core.errors import SettingsError, import_user_module, shown

if TYPE_CHECKING:  # which imports this module where a reward is a function
    from agentpeft.envs.core.rewards import Episode, RewardFunction


def load_reward_function(setting: str, given: object) -> "RewardFunction":
    """Returns the function that a setting has, or names as "module:function".

    Raises: SettingsError where it cannot be imported or called.
    """
    function = given
    if isinstance(given, str):
        module_name, _, attribute = given.partition(":")
        try:
            function = getattr(import_user_module(module_name), attribute)
        except (SettingsError, AttributeError) as error:
            raise SettingsError(
                f"{setting} {shown(given)} must be 'module:function' that can be imported: {error}"
            ) from error
    if not callable(function):
        raise SettingsError(f"{setting} {shown(given)} is not callable")
    return cast("RewardFunction", function)


def call_reward_function(setting: str, function: "RewardFunction", episode: "Episode") -> float:
    """Returns the reward. Raises: ValueError unless it is a finite number; what it raises."""
    try:
        value: object = function(episode)
    except Exception as error:
        error.add_note(f"; raised by the {setting} {_name(function)} in {episode.place}")
        raise
    try:
        reward = nan if isinstance(value, str | bytes) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        reward = nan
    if not isfinite(reward):
        problem = f"returned {shown(value)}, which is no finite number"
        raise ValueError(f"{episode.place}: the {setting} {_name(function)} {problem}")
    return reward


def _name(function: object) -> str:
    """Returns a function as settings name it, and where it is written."""
    if not isfunction(function):
        return shown(function)
    code = function.__code__
    place = f"{code.co_filename}, line {code.co_firstlineno}"
    return f"{function.__module__}:{function.__qualname__} ({place})"
