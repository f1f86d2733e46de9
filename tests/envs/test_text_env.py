"""The episode loop, on a toy environment."""

import time

import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given
from hypothesis import strategies as st
from toy_env import EchoEnv, EchoSource

from agentpeft.envs import (
    DataError,
    EnvFault,
    Outcome,
    SettingsError,
    Task,
    Taskset,
    UnknownTaskError,
)


def make(**options):
    env = EchoEnv(**options)
    env.reset(seed=0, options={"task": "echo/7"})
    return env


def test_reset_returns_the_prompt_and_step_only_the_new_text():
    env = EchoEnv()
    prompt, info = env.reset(options={"task": "echo/7"})
    assert prompt == "Say 'word7' in at most 3 turns."
    assert info == {
        "outcome": Outcome.ONGOING,
        "is_success": False,
        "is_valid_action": True,
        "num_turns": 0,
        "task_id": "echo/7",
        "skills": ("odd", "hard"),
    }
    assert env.step("hm")[:4] == ("Go on.", 0.0, False, False)
    observation, reward, terminated, truncated, info = env.step("word7")
    assert (observation, reward, terminated, truncated) == ("Right.", 1.0, True, False)
    assert info["is_success"] is True
    assert (info["outcome"], info["num_turns"]) == (Outcome.SUCCESS, 2)


def test_the_turn_limit_terminates_and_is_never_success():
    env = make()
    results = [env.step("hm") for _ in range(3)]
    assert [result[2] for result in results] == [False, False, True]
    assert results[-1][4]["outcome"] is Outcome.TURN_LIMIT
    assert not results[-1][4]["is_success"]
    assert not results[-1][3]


def test_success_on_the_last_turn_counts():
    env = make(max_turns=1)
    assert env.step("word7")[4]["outcome"] is Outcome.SUCCESS


@pytest.mark.parametrize(
    ("option", "action"), [("invalid_ends", "invalid_action"), ("timeout_ends", "timeout")]
)
def test_invalid_actions_and_timeouts_end_the_episode_or_cost_a_turn(option, action):
    _, _, terminated, _, info = make().step(action)
    assert (terminated, info["outcome"]) == (True, Outcome(action))
    lenient = make(**{option: False})
    results = [lenient.step(action) for _ in range(3)]
    assert [r[4]["outcome"] for r in results] == ["ongoing", "ongoing", "turn_limit"]
    assert [r[4]["is_valid_action"] for r in results] == [action == "timeout"] * 3


class SlowEnv(EchoEnv):
    def _act(self, action):
        time.sleep(0.03)
        return super()._act(action)


def test_the_environments_own_time_ends_an_episode_even_after_the_right_answer():
    env = SlowEnv(episode_timeout_s=0.02, timeout_ends=False, reward="db")
    env.reset(options={"task": "echo/7"})
    _, reward, terminated, _, info = env.step("word7")
    assert (reward, terminated, info["outcome"]) == (-0.3, True, Outcome.TIMEOUT)


def test_the_agents_time_is_not_counted():
    env = make(episode_timeout_s=0.02)
    for action in ("hm", "word7"):
        time.sleep(0.03)
        info = env.step(action)[4]
    assert info["is_success"]


@pytest.mark.parametrize(
    ("action", "expected"), [("word7", 1.0), ("failure", -0.1), ("timeout", -0.3)]
)
def test_rewards_follow_the_outcome(action, expected):
    assert make(reward="db").step(action)[1] == expected


def test_turn_rewards_shaping_and_the_final_reward_add_up():
    reward = {"preset": "db", "turn_cost": 0.01, "length_cost": 0.001, "format_bonus": 0.1}
    env = make(reward=reward)
    assert env.step("please")[1] == pytest.approx(0.25 + 0.1 - 0.01 - 0.006)
    assert env.step("word7")[1] == pytest.approx(1.0 + 0.1 - 0.01 - 0.005)
    assert make(reward=reward).step("invalid_action")[1] == pytest.approx(-0.1 - 0.01 - 0.014)


def test_a_reward_function_sees_the_finished_episode():
    seen = []
    env = make(reward={"reward_fn": lambda episode: seen.append(episode) or 7})
    env.step("hm")
    reward = env.step("word7")[1]
    assert (reward, type(reward)) == (7.0, float)
    (episode,) = seen
    assert (episode.task.task_id, episode.outcome) == ("echo/7", Outcome.SUCCESS)
    assert [turn.action for turn in episode.turns] == ["hm", "word7"]
    assert episode.prompt.startswith("Say 'word7'")


def test_rewards_are_floats_also_where_the_settings_are_integers():
    assert type(make(reward={"success": 1}).step("word7")[1]) is float


def test_step_needs_an_episode_that_goes_on():
    env = EchoEnv()
    with pytest.raises(ResetNeeded):
        env.step("hm")
    with pytest.raises(ResetNeeded):
        _ = env.task
    env.reset()
    env.step("failure")
    with pytest.raises(ResetNeeded):
        env.step("hm")


def test_a_fault_is_raised_and_the_episode_cannot_go_on():
    env = make()
    with pytest.raises(EnvFault):
        env.step("fault")
    with pytest.raises(ResetNeeded):
        env.step("word7")
    assert env.ended_with == []
    env.reset(options={"task": "echo/7"})
    assert env.step("word7")[4]["is_success"]


def test_the_end_of_an_episode_is_told_once():
    env = make()
    env.step("hm")
    env.reset(options={"task": "echo/7"})
    env.step("word7")
    assert env.ended_with == [Outcome.SUCCESS]


@pytest.mark.parametrize("action", [None, 3, b"word7", ["word7"]])
def test_an_action_that_is_no_string_is_our_mistake(action):
    env = make()
    with pytest.raises(TypeError, match="an action is a str, got"):
        env.step(action)
    assert env.step("word7")[4]["is_success"]


def test_an_action_over_its_length_is_invalid_and_not_carried_out():
    env = make(max_action_chars=10)
    observation, _, terminated, _, info = env.step("x" * 11)
    assert "10 characters" in observation
    assert (terminated, info["outcome"]) == (True, Outcome.INVALID_ACTION)
    assert env.actions == []
    assert make(max_action_chars=5).step("word7")[4]["is_success"]


def test_lone_surrogates_never_reach_the_environment():
    env = make()
    env.step("a\ud800b\udfffé\U0001f600")
    assert env.actions == ["a?b?é\U0001f600"]


def test_a_long_observation_is_cut_with_a_note():
    env = make(max_observation_chars=28)
    prompt, _ = env.reset(options={"task": "echo/7"})
    assert prompt == "Say 'wo\n[cut: 31 characters]"
    assert env.observation_space.contains(prompt)


@pytest.mark.parametrize("limit", [1, 5, 30])
def test_no_observation_is_longer_than_its_limit(limit):
    prompt, _ = EchoEnv(max_observation_chars=limit).reset()
    assert len(prompt) == limit


@given(st.lists(st.text() | st.sampled_from(list(Outcome)), min_size=3, max_size=3))
def test_any_three_actions_end_an_episode(actions):
    env = make(invalid_ends=False, timeout_ends=False)
    for action in actions:
        observation, _, terminated, _, info = env.step(action)
        assert env.observation_space.contains(observation)
        assert terminated == (info["outcome"] is not Outcome.ONGOING)
        if terminated:
            return
    pytest.fail("three turns did not end the episode")


def test_a_task_is_given_by_id_or_by_value_or_drawn():
    env = EchoEnv()
    own = EchoSource(1000).get("echo/512")
    assert env.reset(options={"task": own})[1]["task_id"] == "echo/512"
    assert env.reset(options={"task": "echo/3"})[1]["task_id"] == "echo/3"
    drawn = [env.reset(seed=seed)[1]["task_id"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    env.task_source = Taskset([own])
    assert env.reset()[1]["task_id"] == "echo/512"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"task": "echo/999"}, UnknownTaskError, "no task 'echo/999'"),
        ({"task": 7}, UnknownTaskError, "a task or a task id, got 7"),
        ({"tsk": "echo/1"}, SettingsError, "unknown reset option 'tsk'; known: task"),
    ],
)
def test_wrong_reset_options_are_refused(options, error, message):
    env = EchoEnv()
    with pytest.raises(error, match=message):
        env.reset(options=options)
    with pytest.raises(ResetNeeded):
        env.step("hm")


def test_render_shows_the_episode_in_ansi_mode_only():
    env = make(render_mode="ansi")
    env.step("hm")
    env.step("word7")
    expected = "Say 'word7' in at most 3 turns.\n> hm\nGo on.\n> word7\nRight.\n[success]"
    assert env.render() == expected
    assert make().render() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_turn": 3}, "unknown setting 'max_turn'; did you mean 'max_turns'"),
        ({"num_word": 3}, "unknown setting 'num_word'; did you mean 'num_words'"),
        ({"max_turns": 0}, "max_turns must be an integer >= 1, got 0"),
        ({"max_turns": 2.5}, "max_turns must be an integer >= 1, got 2.5"),
        ({"max_turns": True}, "max_turns must be an integer >= 1, got True"),
        ({"max_action_chars": -1}, "max_action_chars must be an integer >= 1"),
        ({"episode_timeout_s": 0}, "episode_timeout_s must be a number > 0, got 0"),
        ({"episode_timeout_s": "5"}, "episode_timeout_s must be a number > 0, got '5'"),
        ({"episode_timeout_s": float("nan")}, "episode_timeout_s must be a number > 0, got nan"),
        ({"invalid_ends": "no"}, "invalid_ends must be True or False, got 'no'"),
        ({"timeout_ends": None}, "timeout_ends must be True or False, got None"),
        ({"render_mode": "human"}, "render_mode must be None or 'ansi', got 'human'"),
        ({"reward": "bd"}, "unknown reward preset 'bd'"),
    ],
)
def test_wrong_settings_are_refused_at_once(options, message):
    with pytest.raises(SettingsError, match=message):
        EchoEnv(**options)


def test_an_unknown_setting_is_a_type_error_with_python_s_words():
    with pytest.raises(TypeError, match="unexpected keyword argument 'frameskip'"):
        EchoEnv(frameskip=1)


def test_close_is_idempotent():
    env = make()
    env.close()
    env.close()


def test_tasks_are_frozen_and_compare_by_value():
    task = Task(task_id="a", instruction="b")
    assert task == Task(task_id="a", instruction="b", skills=())
    with pytest.raises(AttributeError):
        task.task_id = "c"


class UngradableEnv(EchoEnv):
    def _act(self, action):
        raise DataError(f"task {self.task.task_id}: its solution fails")


def test_data_that_turn_out_wrong_in_a_step_are_a_fault_that_names_its_place():
    env = UngradableEnv()
    env.reset(options={"task": "echo/7"})
    message = "UngradableEnv, task 'echo/7', turn 0: task echo/7: its solution fails"
    with pytest.raises(EnvFault, match=message):
        env.step("word7")
    with pytest.raises(ResetNeeded):
        env.step("word7")
