"""Rewards: presets, shaping terms, functions of one's own."""

import dataclasses

import pytest
from toy_env import EchoEnv, EchoSource

from agentpeft.envs import (
    REWARD_PRESETS,
    Episode,
    Outcome,
    RewardConfig,
    SettingsError,
    TurnRecord,
)

TASK = EchoSource().get("echo/1")


def episode(outcome, *actions):
    turns = tuple(TurnRecord(action, "", 0.0, True) for action in actions)
    return Episode(TASK, "", turns, outcome)


def two_per_turn(finished):
    return 2 * len(finished.turns)


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("db", {"success": 1.0, "failure": -0.1, "timeout": -0.3, "invalid_action": -0.1}),
        ("os", {"success": 1.0, "failure": -0.5, "unknown": 0.0, "turn_limit": -0.5}),
        ("exact_match", {"success": 1.0, "failure": 0.0, "timeout": 0.0, "unknown": 0.0}),
    ],
)
def test_presets_are_the_published_ones(preset, expected):
    config = RewardConfig.build(preset)
    assert config is REWARD_PRESETS[preset]
    for outcome, reward in expected.items():
        assert config.final_reward(episode(Outcome(outcome))) == reward


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.ONGOING])
def test_every_ending_has_a_reward_that_falls_back_to_failure(outcome):
    reward = RewardConfig(success=3.0, failure=-2.0).final_reward(episode(outcome))
    assert reward == (3.0 if outcome is Outcome.SUCCESS else -2.0)
    if outcome not in (Outcome.SUCCESS, Outcome.FAILURE):
        own = RewardConfig.build({"preset": "db", outcome.value: -7.0})
        assert own.final_reward(episode(outcome)) == -7.0
        assert own.final_reward(episode(Outcome.SUCCESS)) == 1.0


def test_shaping_terms_add_up():
    config = RewardConfig(turn_cost=0.01, length_cost=0.001, format_bonus=0.1)
    assert config.turn_reward("12345", is_valid_action=True) == pytest.approx(0.1 - 0.01 - 0.005)
    assert config.turn_reward("12345", is_valid_action=False) == pytest.approx(-0.015)
    assert RewardConfig().turn_reward("12345", is_valid_action=True) == 0.0


@pytest.mark.parametrize("reward_fn", [two_per_turn, "test_rewards:two_per_turn"])
def test_a_function_replaces_the_reward_by_outcome(reward_fn):
    config = RewardConfig(reward_fn=reward_fn)
    reward = config.final_reward(episode(Outcome.SUCCESS, "a", "b"))
    assert (reward, type(reward)) == (4.0, float)


@pytest.mark.parametrize("turn_reward_fn", [two_per_turn, "test_rewards:two_per_turn"])
def test_a_function_adds_to_the_reward_of_every_turn(turn_reward_fn):
    env = EchoEnv(reward={"turn_reward_fn": turn_reward_fn, "turn_cost": 0.5})
    env.reset(options={"task": "echo/1"})
    rewards = [env.step(action)[1] for action in ("please", "word1")]
    assert rewards == [0.25 - 0.5 + 2, -0.5 + 4 + 1]
    assert [turn.reward for turn in env.episode.turns] == [1.75, 3.5]


def test_a_turn_is_scored_with_how_the_episode_stands_after_it():
    seen = []

    def score(episode):
        seen.append((episode.outcome, episode.turns[-1].action, len(episode.turns)))
        return 0

    env = EchoEnv(reward={"turn_reward_fn": score})
    env.reset(options={"task": "echo/1"})
    for action in ("please", "word1"):
        env.step(action)
    assert seen == [(Outcome.ONGOING, "please", 1), (Outcome.SUCCESS, "word1", 2)]


def test_a_turns_score_that_is_no_number_is_a_bug():
    env = EchoEnv(reward={"turn_reward_fn": lambda _: "high"})
    env.reset(options={"task": "echo/1"})
    with pytest.raises(
        ValueError, match=r"turn 1: the turn_reward_fn .* returned 'high', which is no finite"
    ):
        env.step("please")


def test_of_takes_configs_names_and_mappings():
    config = RewardConfig(success=2.0)
    assert RewardConfig.build(config) is config
    assert RewardConfig.build({"success": 2.0}) == config
    assert RewardConfig.build({"preset": "db", "turn_cost": 0.1}) == dataclasses.replace(
        REWARD_PRESETS["db"], turn_cost=0.1
    )


@pytest.mark.parametrize(
    "config",
    [*REWARD_PRESETS.values(), RewardConfig(reward_fn="test_rewards:two_per_turn")],
)
def test_a_config_is_also_the_mapping_of_its_fields(config):
    assert RewardConfig.build(dataclasses.asdict(config)) == config


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("exact", "unknown reward preset 'exact'; did you mean 'exact_match'"),
        ({"preset": "x"}, "unknown reward preset 'x'; known: db, exact_match, os"),
        ({"sucess": 1}, "unknown reward field 'sucess'; did you mean 'success'"),
        ({"turn_cost": -1}, "turn_cost is subtracted, so it must be >= 0, got -1"),
        ({"success": "high"}, "success must be a finite number, got 'high'"),
        ({"success": None}, "success must be a finite number, got None"),
        ({"timeout": float("nan")}, "timeout must be a finite number, got nan"),
        ({"reward_fn": "nowhere:f"}, "reward_fn 'nowhere:f' must be 'module:function'"),
        ({"reward_fn": "no_colon"}, "must be 'module:function'"),
        ({"reward_fn": ":f"}, "must be 'module:function'"),
        ({"reward_fn": "test_rewards:TASK"}, "is not callable"),
        ({"reward_fn": 3}, "is not callable"),
        ({"turn_reward_fn": 3}, "turn_reward_fn 3 is not callable"),
        ({"turn_reward_fn": "nowhere:f"}, "turn_reward_fn 'nowhere:f' must be 'module:function'"),
        (None, "reward must be a RewardConfig, a preset's name or a mapping, got None"),
        ({1: 2}, "unknown reward field 1; known: "),
    ],
)
def test_wrong_settings_are_refused_at_once(value, message):
    with pytest.raises(SettingsError, match=message):
        RewardConfig.build(value)
