"""AgentPEFT/Mixture-v0: several environments as one."""

from collections import Counter

import gymnasium
import numpy as np
import pytest

from agentpeft.apps.drivers.task_rows import from_rows, to_rows
from agentpeft.envs import Outcome, SettingsError, TextEnv, UnknownTaskError, check_text_env

ENV_ID = "AgentPEFT/Mixture-v0"
ADDITION = {"name": "sums", "id": "AgentPEFT/Arithmetic-v0", "kwargs": {"num_digits": 1}}
PLAYS_TWICE = {
    "name": "two tries",
    "id": "AgentPEFT/Arithmetic-v0",
    "kwargs": {"operations": ["modulo"], "max_turns": 2, "reward": {"success": 3, "failure": -1}},
}
TABLES = {"name": "tables", "id": "AgentPEFT/DBBench-v0", "kwargs": {"skills": ["insert"]}}
SOURCES = [ADDITION, PLAYS_TWICE, TABLES]


def make(sources=SOURCES, **settings) -> TextEnv:
    return gymnasium.make(ENV_ID, sources=sources, **settings).unwrapped


@pytest.mark.parametrize("weights", [None, [1, 0, 0], [0, 1, 0], [0, 0, 1]])
def test_a_mixture_keeps_the_contract(weights):
    env = make(weights=weights)
    check_text_env(env, num_tasks=4)
    env.close()


def test_sources_are_drawn_by_their_weights_and_name_their_tasks():
    env = make(weights=[0.8, 0.2, 0])
    rng = np.random.default_rng(0)
    tasks = [env.task_source.draw(rng) for _ in range(500)]
    counts = Counter(task.skills[0] for task in tasks)
    assert counts.keys() == {"sums", "two tries"}
    assert 70 <= counts["two tries"] <= 130
    assert tasks[0].task_id.startswith(f"{tasks[0].skills[0]}/")
    assert env.task_source.get(tasks[0].task_id) == tasks[0]


def test_turns_rewards_and_verdicts_are_those_of_the_source():
    env = make()
    env.reset(options={"task": "two tries/modulo:7%3:plain"})
    assert env.config.max_turns == 2
    assert env.step("2")[1:3] == (0.0, False)
    assert env.step("1")[1:3] == (3.0, True)
    env.reset(options={"task": "sums/addition:1+2:plain"})
    assert env.config.max_turns == 1
    observation, reward, is_over, _, info = env.step("three")
    assert (observation, reward, is_over) == ("Invalid: reply with the number alone.", 0.0, True)
    assert info["outcome"] is Outcome.INVALID_ACTION
    assert not info["is_valid_action"]


def test_an_episode_that_the_caller_ends_has_the_reward_of_the_source():
    strict = {**ADDITION, "name": "strict", "kwargs": {"reward": {"context_limit": -3.0}}}
    env = make([{"name": "inner", "id": ENV_ID, "kwargs": {"sources": [ADDITION, strict]}}])
    for task, reward in (
        ("inner/strict/addition:1+2:plain", -3.0),
        ("inner/sums/addition:1+2:plain", 0.0),
    ):
        env.reset(options={"task": task})
        assert env.final_reward(Outcome.CONTEXT_LIMIT) == reward


def test_an_invalid_action_that_ends_nothing_costs_a_turn():
    env = make([{**PLAYS_TWICE, "kwargs": {"max_turns": 2, "invalid_ends": False}}])
    env.reset(seed=0)
    *_, info = env.step("?")
    assert (info["outcome"], info["is_valid_action"]) == (Outcome.ONGOING, False)
    assert env.step("?")[4]["outcome"] is Outcome.TURN_LIMIT


def test_shared_arguments_go_over_those_of_each_source():
    train, test = (make(split=split) for split in ("train", "test"))
    rng = np.random.default_rng(1)
    splits = {split: {env.task_source.draw(rng).task_id for _ in range(400)}
              for split, env in (("train", train), ("test", test))}  # fmt: skip
    assert not splits["train"] & splits["test"]


def test_tasks_can_be_rows():
    env = make([ADDITION, TABLES])
    rng = np.random.default_rng(2)
    tasks = [env.task_source.draw(rng) for _ in range(20)]
    assert from_rows(to_rows(tasks)) == tasks


def test_spaces_hold_every_source_and_episodes_can_be_shown():
    short = {**ADDITION, "kwargs": {"max_action_chars": 5, "max_observation_chars": 300}}
    env = make([short, {**PLAYS_TWICE, "kwargs": {"max_action_chars": 70_000}}], render_mode="ansi")
    assert env.render_mode == "ansi"
    prompt, _ = env.reset(options={"task": "sums/addition:1+2:plain"})
    assert env.step("3")[1] == 1.0
    assert env.render() == f"{prompt}\n> 3\nCorrect.\n[success]"
    assert env.action_space.contains("1" * 70_000)
    assert not env.action_space.contains("1" * 70_001)
    assert make([short]).observation_space.max_length == 300
    assert make().render() is None


def test_many_at_once():
    envs = gymnasium.make_vec(ENV_ID, num_envs=3, sources=SOURCES)
    prompts, _ = envs.reset(seed=0)
    assert len(prompts) == 3
    envs.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sources": []}, "sources must list one environment or more"),
        ({"sources": "sums"}, "sources must list one environment or more"),
        ({"sources": ["sums"]}, "a mapping of name, id and kwargs (a mapping), got 'sums'"),
        ({"sources": [{"id": "x"}]}, "a source needs a name (without a slash) and an id"),
        ({"sources": [{**ADDITION, "name": "a/b"}]}, "a source needs a name (without a slash)"),
        ({"sources": [{**ADDITION, "kwarg": {}}]}, "key of a source 'kwarg'"),
        ({"sources": [{**ADDITION, "kwargs": 3}]}, "kwargs (a mapping), got {'name': 'sums'"),
        ({"sources": [ADDITION, ADDITION]}, "two sources have one name: sums, sums"),
        ({"sources": [{**ADDITION, "id": "No-v0"}]}, "unknown environment 'No-v0'"),
        ({"sources": [{"name": "cart", "id": "CartPole-v1"}]}, "CartPole-v1 is no TextEnv"),
        ({"sources": [ADDITION], "adaptive": True, "num_digits": (1, 2)}, "adapts its difficulty"),
        ({"sources": [ADDITION], "skils": []}, "source 'sums': unknown setting 'skils'"),
        ({"weights": [1]}, "weights must be 3 numbers >= 0, one for each source"),
        ({"weights": [0, 0, 0]}, "whose sum is above 0"),
        ({"weights": [1e308, 1e308, 0]}, "whose sum is above 0 and finite"),
        ({"weights": [1, 1, -1]}, "weights must be 3 numbers >= 0"),
        ({"weights": 3}, "weights must be 3 numbers >= 0"),
        ({"weights": "111"}, "weights must be 3 numbers >= 0"),
    ],
)
def test_what_cannot_work_is_refused_at_once(settings, message):
    with pytest.raises(SettingsError) as error:
        make(**{"sources": SOURCES, **settings})
    assert message in str(error.value)


def test_a_task_of_no_source_is_refused():
    env = make()
    for task_id in ("addition:1+2:plain", "other/addition:1+2:plain"):
        with pytest.raises(UnknownTaskError, match="ids begin with sums, two tries, tables"):
            env.reset(options={"task": task_id})
    foreign = gymnasium.make("AgentPEFT/Arithmetic-v0").unwrapped.task_source.get(
        "addition:1+2:plain"
    )
    with pytest.raises(UnknownTaskError, match="is of no source of this mixture"):
        env.reset(options={"task": foreign})
