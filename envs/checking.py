"""`check_text_env`: the contract of the suite as a check that anyone can run on their own env."""

import warnings
from typing import Any

import gymnasium

from agentpeft.envs.outcomes import Outcome
from agentpeft.envs.spaces import Unicode
from agentpeft.envs.text_env import TextEnv

_INFO_TYPES: dict[str, type] = {
    "outcome": Outcome,
    "is_success": bool,
    "is_valid_action": bool,
    "num_turns": int,
    "task_id": str,
    "skills": tuple,
}
_NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def check_text_env(env: gymnasium.Env[str, str], *, seed: int = 0, num_tasks: int = 3) -> None:
    """Raises AssertionError where `env` breaks the suite's contract; returns None if it keeps it.

    Runs Gymnasium's own `check_env` with warnings as errors, then for `num_tasks` tasks: the
    prompt states the turn limit; an oracle episode ends in success with the highest reward; an
    empty answer and a turn-limit episode do not succeed; the same seed gives the same texts.
    """
    from gymnasium.utils.env_checker import check_env  # slow to import

    text_env = env.unwrapped
    assert isinstance(text_env, TextEnv), f"{type(text_env).__name__} is not a TextEnv"
    assert isinstance(env.observation_space, Unicode), "observation_space must be Unicode"
    assert isinstance(env.action_space, Unicode), "action_space must be Unicode"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(text_env, skip_render_check=True)
    for task_seed in range(seed, seed + num_tasks):
        _check_prompt(text_env, task_seed)
        _check_oracle(text_env, task_seed)
        _check_empty_actions(text_env, task_seed)


def _check_prompt(env: TextEnv[Any], seed: int) -> None:
    prompt, info = env.reset(seed=seed)
    again, info_again = env.reset(seed=seed)
    assert prompt == again, f"seed {seed} gives two different prompts"
    assert info == info_again, f"seed {seed} gives two different infos: {info} and {info_again}"
    by_task, _ = env.reset(options={"task": env.task})
    assert by_task == prompt, "options={'task': task} gives another prompt than drawing the task"
    limit = env.config.max_turns
    words = [str(limit), *_NUMBER_WORDS[limit : limit + 1], *(["once"] if limit == 1 else [])]
    assert any(word in prompt.lower() for word in words), (
        f"the prompt does not state the turn limit {limit}: {prompt[:200]!r}"
    )


def _check_oracle(env: TextEnv[Any], seed: int) -> None:
    texts = []
    for _ in range(2):
        env.reset(seed=seed)
        texts.append(_play(env, list(env.oracle_actions(env.task))))
        assert env.outcome is Outcome.SUCCESS, (
            f"oracle actions for {env.task.task_id!r} end in {env.outcome}: {texts[-1]}"
        )
    assert texts[0] == texts[1], f"seed {seed} gives two different oracle episodes"


def _check_empty_actions(env: TextEnv[Any], seed: int) -> None:
    env.reset(seed=seed)
    _play(env, [""] * env.config.max_turns)
    assert env.outcome not in (Outcome.SUCCESS, Outcome.ONGOING), (
        f"{env.config.max_turns} empty actions end in {env.outcome}"
    )


def _play(env: TextEnv[Any], actions: list[str]) -> list[str]:
    """Plays actions until the episode ends and returns the observations."""
    observations = []
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        observations.append(observation)
        assert env.observation_space.contains(observation), f"outside space: {observation!r:.200}"
        assert isinstance(reward, float), f"reward must be a float, got {reward!r}"
        assert not truncated, "the turn limit is part of the task: terminated, not truncated"
        for key, kind in _INFO_TYPES.items():
            assert isinstance(info.get(key), kind), f"info[{key!r}] must be a {kind.__name__}"
        assert terminated == (info["outcome"] is not Outcome.ONGOING), f"terminated with {info}"
        assert info["is_success"] == (info["outcome"] is Outcome.SUCCESS), f"wrong info {info}"
        if terminated:
            break
    return observations
