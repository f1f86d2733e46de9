"""`check_text_env`: the contract of the suite as a check that anyone can run on their own env."""

import copy
import re
import warnings
from typing import Any

import gymnasium

from agentpeft.envs.core.errors import (
    DataError,
    EnvFault,
    SettingsError,
    UnknownTaskError,
    describe_error,
)
from agentpeft.envs.core.rewards import Outcome
from agentpeft.envs.core.spaces import Unicode
from agentpeft.envs.core.text_env import TextEnv

_INFO_TYPES: dict[str, type] = {
    "outcome": Outcome,
    "is_success": bool,
    "is_valid_action": bool,
    "num_turns": int,
    "task_id": str,
    "skills": tuple,
}
_MAX_MISTAKEN = 4
"""Actions of an oracle's episode that are mistaken in five ways each."""
_NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class EnvContractError(Exception):
    """An environment breaks the suite's contract; the message says what to write."""


def check_text_env(env: gymnasium.Env[str, str], *, seed: int = 0, num_tasks: int = 3) -> None:
    """Raises EnvContractError where `env` breaks the suite's contract.

    Runs Gymnasium's own `check_env` with warnings as errors, then for `num_tasks` tasks: the
    prompt states the turn limit; an oracle episode ends in success, and leaves the task and the
    next episode as they were; empty actions end the episode without it, and earn less; the same
    seed gives the same texts; a mistaken action is answered, never an exception.
    """
    try:
        _check(env, seed, num_tasks)
    except Exception as error:
        if not isinstance(error, EnvFault | SettingsError | DataError):
            is_told = isinstance(error, AssertionError) and not getattr(error, "__notes__", None)
            text = (is_told and str(error)) or describe_error(error)
            raise EnvContractError(text) from error
        raise


def _check(env: gymnasium.Env[str, str], seed: int, num_tasks: int) -> None:
    from gymnasium.utils.env_checker import check_env  # slow to import

    text_env = env.unwrapped
    assert isinstance(text_env, TextEnv), (
        f"{type(text_env).__name__} is not a TextEnv: make it a subclass"
    )
    for name in ("observation_space", "action_space"):
        assert isinstance(getattr(env, name), Unicode), (
            f"{name} must be Unicode, as TextEnv makes it"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(text_env, skip_render_check=True)
    _check_unknown_id(text_env)
    for task_seed in range(seed, seed + num_tasks):
        _check_prompt(text_env, task_seed)
        _check_cut_short(text_env, task_seed)  # first, while nothing has been solved here
        oracle_return = _check_oracle(text_env, task_seed)
        _check_empty_actions(text_env, task_seed, oracle_return)
        _check_mistakes(text_env, task_seed)


def _check_unknown_id(env: TextEnv[Any]) -> None:
    unknown, rule = "no task has this id", "an unknown id must raise UnknownTaskError"
    try:
        env.reset(options={"task": unknown})
    except UnknownTaskError:
        return
    except Exception as error:
        error.add_note(f"; raised by get({unknown!r}): {rule}")
        raise
    is_any_text = env.task.task_id == unknown  # then all ids are known
    assert is_any_text, f"get({unknown!r}) returns {env.task!r:.60}: {rule}"


def _check_prompt(env: TextEnv[Any], seed: int) -> None:
    prompt, info = env.reset(seed=seed)
    again, info_again = env.reset(seed=seed)
    chance = "let self.np_random be the only source of chance"
    assert prompt == again, f"seed {seed} gives two different prompts: {chance}"
    assert info == info_again, f"seed {seed} gives two infos, {info} and {info_again}: {chance}"
    by_task, _ = env.reset(options={"task": env.task})
    assert by_task == prompt, "options={'task': task} gives another prompt than drawing the task"
    limit = env.config.max_turns
    words = [str(limit), *_NUMBER_WORDS[limit : limit + 1], *(["once"] if limit == 1 else [])]
    assert re.search(rf"\b({'|'.join(words)})\b", prompt.lower()), (
        f"the prompt does not state the turn limit {limit}: let _begin return a text such as "
        f"f'You have {{self.config.max_turns}} turns.'; it is {prompt[:200]!r}"
    )


def _check_oracle(env: TextEnv[Any], seed: int) -> float:
    """Returns the oracle's episode return."""
    episodes = []
    for _ in range(2):
        env.reset(seed=seed)
        before = copy.deepcopy(env.task)
        episodes.append(_play(env, list(env.oracle_actions(env.task))))
        assert _are_equal(before, env.task), (
            f"an episode changes its task {env.task.task_id!r}: let _begin copy what _act changes"
        )
        assert env.outcome is Outcome.SUCCESS, (
            f"oracle actions for {env.task.task_id!r} end in {env.outcome}: {episodes[-1]}; let "
            "_act return Outcome.SUCCESS for the last of them"
        )
    assert episodes[0] == episodes[1], f"seed {seed} gives two different oracle episodes"
    return episodes[0][1]


def _check_empty_actions(env: TextEnv[Any], seed: int, oracle_return: float) -> None:
    env.reset(seed=seed)
    _, episode_return = _play(env, [""] * env.config.max_turns)
    assert env.outcome not in (Outcome.SUCCESS, Outcome.ONGOING), (
        f"{env.config.max_turns} empty actions end in {env.outcome}"
    )
    assert episode_return < oracle_return, (
        f"empty actions earn {episode_return}, the oracle earns {oracle_return}: success must earn "
        "more"
    )


def _check_cut_short(env: TextEnv[Any], seed: int) -> None:
    """Checks that an episode that is left in its middle leaves nothing to the next one."""
    env.reset(seed=seed)
    *first, last = list(env.oracle_actions(env.task)) or [""]
    results = []
    for before in ([], first):
        env.reset(seed=seed)
        _play(env, before)
        env.reset(seed=seed)
        results.append((_play(env, [last]), env.outcome))
    assert results[0] == results[1], (
        f"the action {last!r:.60} is answered otherwise after an episode that was left in its "
        f"middle, {results[1]}, than in a new environment, {results[0]}: let _begin set all anew"
    )


def _check_mistakes(env: TextEnv[Any], seed: int) -> None:
    env.reset(seed=seed)
    oracle = list(env.oracle_actions(env.task))
    for place, action in enumerate(oracle[:_MAX_MISTAKEN]):
        words = action.split()
        mistakes = [action[: len(action) // 2], f"{action} banana", " ".join(words[::-1])]
        for mistake in (*mistakes, " ".join(words[:1] * 3), "\x00 \N{SNOWMAN} {}[]()%s'\""):
            env.reset(seed=seed)
            _play(env, oracle[:place])
            if env.outcome is not Outcome.ONGOING:  # the oracle says more than is needed
                return
            try:
                env.step(mistake)
            except Exception as error:
                problem = "an agent's mistake is a Turn that says so"
                error.add_note(f"; raised at the action {mistake!r:.80}: {problem}")
                raise


def _are_equal(one: object, other: object) -> bool:
    """Returns whether two tasks are equal; True where arrays in them cannot tell."""
    try:
        return bool(one == other)
    except ValueError:
        return True


def _play(env: TextEnv[Any], actions: list[str]) -> tuple[list[str], float]:
    """Plays actions until the episode ends; returns the observations and the episode return."""
    observations, episode_return = [], 0.0
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        observations.append(observation)
        episode_return += reward
        assert env.observation_space.contains(observation), f"outside space: {observation!r:.200}"
        assert isinstance(reward, float), f"reward must be a float, got {reward!r}"
        assert not truncated, "the turn limit is part of the task: terminated, not truncated"
        for key, kind in _INFO_TYPES.items():
            assert isinstance(info.get(key), kind), f"info[{key!r}] must be a {kind.__name__}"
        assert terminated == (info["outcome"] is not Outcome.ONGOING), f"terminated with {info}"
        assert info["is_success"] == (info["outcome"] is Outcome.SUCCESS), f"wrong info {info}"
        if terminated:
            break
    return observations, episode_return
