"""Adaptive difficulty: what it pays, and that failing on purpose gains nothing."""

import pickle
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentpeft.envs.arithmetic.env import ArithmeticEnv
from agentpeft.envs.tasks.difficulty import AdaptiveDifficulty

Window = tuple[bool, ...]
Policy = Callable[[int, Window], bool]
"""Whether an agent tries, by its level and the outcomes since that level began."""

RATES = {"raise_at": 0.8, "lower_at": 0.3}


def try_always(level: int, window: Window) -> bool:
    return True


def never_try(level: int, window: Window) -> bool:
    return False


def fail_every_fourth(level: int, window: Window) -> bool:
    return len(window) % 4 != 3


def stay_at_the_lowest(level: int, window: Window) -> bool:
    return level > 1 or sum(window[-9:]) < 7


def fall_at_once(level: int, window: Window) -> bool:
    return level == 1


def rise_then_fall(level: int, window: Window) -> bool:
    return level < 3


SANDBAGGERS = [never_try, fail_every_fourth, stay_at_the_lowest, fall_at_once, rise_then_fall]


def play(policy: Policy, skill: tuple[float, ...], seed: int, num_episodes: int = 400) -> float:
    """Returns an agent's return; it succeeds with probability `skill[level - 1]` if it tries."""
    env = ArithmeticEnv(num_digits=(1, len(skill)), adaptive={"window": 10, **RATES})
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    total, window = 0.0, ()
    for luck in rng.random(num_episodes):
        level = env.difficulty
        is_success = policy(level, window) and luck < skill[level - 1]
        total += env.step(env.task.answer if is_success else "-1")[1]
        window = (*window, is_success) if env.difficulty == level else ()
        env.reset()
    return total


@pytest.mark.parametrize("sandbag", SANDBAGGERS)
@pytest.mark.parametrize(
    "skill", [(1, 0, 0), (1, 1, 0), (0.9, 0.1, 0), (0.8, 0.5, 0.2), (1, 0.7, 0)]
)
def test_an_agent_that_always_tries_gets_as_much_as_one_that_fails_on_purpose(skill, sandbag):
    honest, other = (sum(play(p, skill, seed) for seed in range(5)) for p in (try_always, sandbag))
    assert honest >= other


def best_returns(skill: tuple[float, ...], window: int, num_episodes: int) -> tuple[float, float]:
    """Returns the expected returns of the best of all policies, and of always trying."""
    bounds = (1, len(skill))

    @cache
    def follow(level: int, successes: Window, is_success: bool) -> tuple[int, Window]:
        difficulty = AdaptiveDifficulty(bounds, window, **RATES)
        difficulty.level = level
        for success in successes:
            difficulty.record(success)
        has_changed = difficulty.record(is_success)
        return difficulty.level, () if has_changed else (*successes, is_success)[-window:]

    @cache
    def value(left: int, level: int, successes: Window, may_fail: bool) -> float:
        if left == 0:
            return 0.0
        fail, succeed = (
            level
            - 1
            + is_success
            + value(left - 1, *follow(level, successes, is_success), may_fail)
            for is_success in (False, True)
        )
        tried = skill[level - 1] * succeed + (1 - skill[level - 1]) * fail
        return max(tried, fail) if may_fail else tried

    return value(num_episodes, 1, (), True), value(num_episodes, 1, (), False)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1)), min_size=2, max_size=3),
    st.integers(1, 4),
    st.integers(1, 30),
)
def test_no_policy_gains_by_failing_on_purpose(skill, window, num_episodes):
    best, honest = best_returns(tuple(skill), window, num_episodes)
    assert honest == pytest.approx(best)


@pytest.mark.parametrize(
    ("reward", "paid"),
    [
        ("exact_match", [0, 1, 1, 2, 2, 3]),
        ({"success": 1.0, "failure": -0.5}, [-0.5, 1, 1, 2.5, 2.5, 4]),
        ({"invalid_action": -1.0, "format_bonus": 0.5}, [0.5, 1.5, 3, 4, 5.5, 6.5]),
    ],
)
def test_the_worst_of_a_level_gets_what_the_best_below_gets(reward, paid):
    env = ArithmeticEnv(num_digits=(1, 3), adaptive={"window": 2}, reward=reward)
    rewards = []
    for _ in range(3):
        for is_right in (False, True, True, True):
            env.reset()
            rewards.append(env.step(env.task.answer if is_right else "-1")[1])
    kept = [rewards[index] for index in (0, 1, 4, 5, 8, 9)]
    assert kept == paid


def test_a_reward_function_weighs_the_level_itself():
    reward = {"reward_fn": lambda episode: 7.0 * episode.task.num_digits}
    env = ArithmeticEnv(num_digits=(1, 3), adaptive={"window": 1}, reward=reward)
    paid = []
    for _ in range(3):
        env.reset()
        paid.append(env.step(env.task.answer)[1])
    assert paid == [7.0, 14.0, 21.0]


def test_a_given_task_of_another_level_pays_as_without_levels():
    env = ArithmeticEnv(num_digits=(1, 3), adaptive={"window": 1})
    env.reset(options={"task": "addition:100+200:plain"})
    assert env.step("300")[1] == 1.0
    env.reset()
    env.step(env.task.answer)
    assert env.difficulty == 2
    env.reset(options={"task": "addition:1+2:plain"})
    assert env.step("3")[1] == 1.0


def test_what_a_level_pays_is_pickled_with_it():
    env = ArithmeticEnv(num_digits=(1, 3), adaptive={"window": 1})
    reward = pickle.loads(pickle.dumps(env.reward_config)).reward_fn
    reward.difficulty.record(True)
    assert (reward.difficulty.level, env.difficulty) == (2, 1)
