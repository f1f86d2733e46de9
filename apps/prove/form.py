"""The reward for form alone: an episode that ends well-formed earns what success earns."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

from agentpeft.envs import Outcome, SettingsError
from agentpeft.envs.core.errors import shown
from agentpeft.envs.core.rewards import Episode, RewardConfig
from agentpeft.envs.core.text_env import EpisodeConfig, TextEnv
from agentpeft.envs.registration import find_creator
from agentpeft.policies.settings.environment_kwargs import SOURCES, without_training_rewards

WELL_FORMED_END = "agentpeft.apps.prove.form:reward_well_formed_end"
"""The reward function by its name, as settings have it."""


def reward_well_formed_end(episode: Episode) -> float:
    """Returns 1 if the environment could grade what the agent ended with, right or wrong; else 0.

    A last action that is invalid, the turn limit, a timeout and a full context leave nothing to
    grade.
    """
    return float(is_graded(episode.outcome))


def is_graded(outcome: Outcome) -> bool:
    """Returns whether an episode ended with what the environment could grade, right or wrong."""
    return outcome in (Outcome.SUCCESS, Outcome.FAILURE)


def with_form_reward(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an environment's keyword arguments with the reward for form as its final reward.

    Costs of turns and of length stay, rewards for parts of a solution do not. The sources of a
    mixture are changed one by one. Raises: SettingsError on a reward that is none.
    """
    changed = without_training_rewards(kwargs)
    if SOURCES in changed and "reward" not in changed:
        if not isinstance(sources := changed[SOURCES], list | tuple):
            raise SettingsError(f"sources must be a list, got {shown(sources)}")
        return {**changed, SOURCES: [_with_form_reward(source) for source in sources]}
    reward = changed.get("reward", {})
    fields = {"preset": reward} if isinstance(reward, str) else reward
    if not isinstance(fields, Mapping):
        raise SettingsError(f"reward must be a preset's name or a table, got {shown(reward)}")
    return {**changed, "reward": {**fields, "reward_fn": WELL_FORMED_END}}


def _with_form_reward(source: object) -> dict[str, Any]:
    if isinstance(source, Mapping) and isinstance(kwargs := source.get("kwargs", {}), Mapping):
        return {**source, "kwargs": with_form_reward(kwargs)}
    raise SettingsError(f"a source must be a table, with kwargs as a table, got {shown(source)}")


def keep_shown_reward(env_id: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments with which evaluations show the environment's rewards, not form's.

    They are those of the arguments `kwargs` that `with_form_reward` changes, without rewards that
    only training has. Raises: SettingsError on an unknown id.
    """
    shown = without_training_rewards(kwargs)
    if "reward" in shown or SOURCES not in shown:
        return {"reward": shown.get("reward", _find_default_reward(env_id))}
    return {SOURCES: shown[SOURCES]}


def takes_reward(env_id: str) -> bool:
    """Returns whether an environment has the argument `reward`, and not just takes any.

    Raises: SettingsError on an unknown id.
    """
    creator: Any = find_creator(env_id)
    is_ours = isinstance(creator, type) and issubclass(creator, TextEnv)
    return is_ours or "reward" in signature(creator).parameters


def _find_default_reward(env_id: str) -> Any:
    creator = find_creator(env_id)
    if isinstance(creator, type) and issubclass(creator, TextEnv):
        reward = creator.default_config.reward
    else:
        reward = EpisodeConfig().reward
    if not isinstance(reward, RewardConfig):
        return reward
    return {name: value for name, value in vars(reward).items() if value is not None}
