"""The loop that plays an episode, with agents and environments of a few lines."""

import asyncio
import subprocess
import sys
from functools import partial

import gymnasium
import numpy as np
import pytest

from agentpeft.envs import EnvFault, Outcome
from agentpeft.policies.errors import EnvironmentBugError
from agentpeft.policies.rollout.play import StepResult, play_episode
from agentpeft.policies.rollout.scripted_play import (
    ScriptedAgent,
    play_actions,
    read_any_reward,
    run_without_waiting,
)


class Answers(gymnasium.Env):
    """Answers each action with what it was given: the five values of a step, or an error."""

    def __init__(self, *answers):
        self.answers, self.heard = list(answers), []

    def step(self, action):
        self.heard.append(action)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


GOING = ("go on", 0.25, False, False, {})
WON = ("well done", 1, True, False, {})


def test_agent_and_environment_take_turns_until_it_is_over():
    env = Answers(GOING, WON)
    results = play_actions(env, ["a", "b", "never said"])
    assert env.heard == ["a", "b"]
    assert [(r.observation, r.reward, r.is_last) for r in results] == [
        ("go on", 0.25, False),
        ("well done", 1.0, True),
    ]


@pytest.mark.parametrize(
    ("last", "outcome"),
    [
        (WON, Outcome.SUCCESS),
        (("no", 0.0, True, False, {}), Outcome.FAILURE),
        (("late", 1.0, False, True, {}), Outcome.TURN_LIMIT),
        (("no", 1.0, True, False, {"outcome": Outcome.INVALID_ACTION}), Outcome.INVALID_ACTION),
        (("yes", 0.0, True, False, {"outcome": "success"}), Outcome.SUCCESS),
        (("no", 0.5, True, False, {"outcome": "lost"}), Outcome.SUCCESS),
        (("no", 0.5, True, False, {"outcome": ["failure"]}), Outcome.SUCCESS),
        (("no", 0.5, True, False, {"is_success": False}), Outcome.FAILURE),
        (("yes", -0.5, True, False, {"is_success": np.True_}), Outcome.SUCCESS),
        (("no", 0.5, True, False, {"is_success": np.False_}), Outcome.FAILURE),
        (("yes", 0.0, False, True, {"is_success": True}), Outcome.SUCCESS),
        (("late", 0.5, False, True, {"is_success": False}), Outcome.TURN_LIMIT),
        (("yes", 0.5, True, False, {"is_success": 0}), Outcome.SUCCESS),
        (("no", 0.5, True, False, {"outcome": "failure", "is_success": True}), Outcome.FAILURE),
    ],
)
def test_the_outcome_is_the_environment_s_word_or_that_of_the_last_reward(last, outcome):
    agent = ScriptedAgent("abc")
    assert run_without_waiting(play_episode(Answers(GOING, last), agent)) is outcome


def test_an_agent_that_stops_ends_the_episode_without_an_outcome():
    env = Answers(GOING, WON)
    assert run_without_waiting(play_episode(env, ScriptedAgent(["a"]))) is None
    assert env.heard == ["a"]


def test_steps_are_carried_out_by_whoever_is_asked():
    calls = []

    async def call(function):
        await asyncio.sleep(0)
        calls.append(function())
        return calls[-1]

    play = partial(play_episode, call=call)
    assert asyncio.run(play(Answers(GOING, WON), ScriptedAgent("ab"))) is Outcome.SUCCESS
    assert [type(result) for result in calls] == [StepResult] * 2
    with pytest.raises(RuntimeError, match="needs an event loop"):
        run_without_waiting(play(Answers(WON), ScriptedAgent("a")))


@pytest.mark.parametrize(
    "answer",
    [
        ("text", 0.0, True, False),
        (b"bytes", 0.0, True, False, {}),
        ("text", 0.0, True, False, None),
        EnvFault("the database is gone"),
    ],
)
def test_what_no_environment_may_return_is_a_fault(answer):
    with pytest.raises(EnvFault):
        play_actions(Answers(GOING, answer), ["a", "b"])


@pytest.mark.parametrize("reward", [float("nan"), 1e7, "much", None])
def test_a_reward_that_is_no_number_is_a_bug_of_the_environment(reward):
    with pytest.raises(EnvironmentBugError, match="a reward must be a number of at most"):
        play_actions(Answers(GOING, ("text", reward, True, False, {})), ["a", "b"])
    scripted = play_actions(Answers(("text", reward, True, False, {})), ["a"], read_any_reward)
    assert scripted[0].reward == 0.0


def test_what_no_environment_may_raise_names_the_place():
    with pytest.raises(EnvironmentBugError, match=r"ZeroDivisionError: .*test_play\.py, line"):
        play_actions(Answers(ZeroDivisionError("by nought")), ["a"])


def test_playing_needs_neither_torch_nor_a_tokenizer():
    script = (
        "import sys, agentpeft.policies.rollout.play\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'pydantic')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
