"""Every setting of every environment, given every kind of value: it works, or one line says why."""

import inspect
import math
from typing import get_args

import gymnasium
import pytest
from gymnasium.envs.registration import load_env_creator
from gymnasium.error import ResetNeeded
from toy_env import EchoEnv

from agentpeft.envs import (
    ENV_IDS,
    DataError,
    RewardConfig,
    SettingsError,
    Taskset,
    TextVectorEnv,
    Turn,
)
from agentpeft.envs.os_interaction.sandboxes.sandbox import SandboxLimits

VALUES = {
    "None": None,
    "True": True,
    "0": 0,
    "1": 1,
    "5": 5,
    "-1": -1,
    "10**400": 10**400,
    "10**5000": 10**5000,
    "0.5": 0.5,
    "nan": math.nan,
    "inf": math.inf,
    "1e300": 1e300,
    "empty string": "",
    "string": "no_such_thing",
    "string with NUL": "a\0b",
    "huge string": "x" * 100_000,
    "bytes": b"x",
    "empty list": [],
    "list": [1, "x"],
    "nested list": [["x"]],
    "empty dict": {},
    "dict": {"x": 1},
    "dict of ints": {1: 2},
    "object": object(),
    "class": int,
    "function": len,
}
COUNTS = {"1", "5"}
NUMBERS = {"0", "1", "5", "-1", "0.5", "1e300"}
ACCEPTED = {
    "max_turns": COUNTS,
    "max_action_chars": COUNTS,
    "max_observation_chars": COUNTS,
    "max_result_rows": COUNTS,
    "max_result_chars": COUNTS,
    "max_database_mib": COUNTS,
    "invalid_ends": {"True"},
    "timeout_ends": {"True"},
    "autocommit": {"True"},
    "invent": {"True"},
    "episode_timeout_s": {"None", "1", "5", "0.5"},
    "statement_timeout_s": {"1", "5", "0.5"},
    "command_timeout_s": {"1", "5", "0.5"},
    "render_mode": {"None"},
    "reward": {"empty dict"},
    "reward_fn": {"None", "class", "function"},
    "turn_reward_fn": {"None", "class", "function"},
    "partial_credit": {"0", "1", "0.5"},
    "success": NUMBERS,
    "failure": NUMBERS,
    "format_bonus": NUMBERS,
    "turn_cost": NUMBERS - {"-1"},
    "length_cost": NUMBERS - {"-1"},
    "oracle_commits": {"0", "1", "0.5"},
    "oracle_lapses": {"0", "1", "0.5"},
    "oracle_omits": {"0"},  # others need format="worked"
    "oracle_omits_more": {"0"},
    "max_phrasings": {"None", *COUNTS},
    "max_columns": {"None", "5"},
    "max_rows": {"None", "5"},
    "max_text_chars": {"None", "5"},
    "num_skills": {"None", "1"},
    "num_digits": COUNTS,
    "operations": set(),
    "adaptive": set(),
    "data": {"None"},
    "scripts": {"None"},
    "task_source": {"None"},
    "skills": {"None"},
    "split": {"None"},
    "image": {"None", "string"},
    "runtime": {"None", "string"},
    "limits": {"None", "empty dict"},
    "live_checks": {"None"},
    "cpus": {"1", "5", "0.5"},
    **dict.fromkeys(("memory_mib", "num_processes", "disk_mib", "num_inodes"), COUNTS),
    "max_output_chars": COUNTS,
}
"""Which of the values are right for a setting; of those that are not here, none is."""
OPTIONAL_REWARDS = ("invalid_action", "turn_limit", "timeout", "context_limit", "unknown")
ACCEPTED |= {name: {"None", *NUMBERS} for name in OPTIONAL_REWARDS}


def settings_of(env_id):
    """Yields each setting's name, and what makes it an argument."""
    entry_point = load_env_creator(gymnasium.spec(env_id).entry_point)
    *arguments, options = inspect.signature(entry_point).parameters.values()
    names = [*(p.name for p in arguments), *get_args(options.annotation)[0].__annotations__]
    for name in names:
        yield name, lambda value, name=name: {name: value}
    for name in vars(RewardConfig()):
        if name in RewardConfig.__annotations__:
            yield name, lambda value, name=name: {"reward": {name: value}}
    yield "preset", lambda value: {"reward": {"preset": value}}
    if "OS" in env_id:
        for name in vars(SandboxLimits()):
            yield name, lambda value, name=name: {"limits": {name: value}}
    if "Arithmetic" in env_id:
        for name in ("window", "raise_at", "lower_at"):
            to_kwargs = lambda v, n=name: {"num_digits": (1, 4), "adaptive": {n: v}}  # noqa: E731
            yield name, to_kwargs
    if "num_skills" in names:
        yield "num_skills", lambda value: {"skill_mode": "all", "num_skills": value}


SINGLE = {"window": COUNTS, "raise_at": {"1", "0.5"}, "lower_at": {"None", "0", "0.5"}}
BESIDE = {
    "episode_timeout_s": {
        "DBBench": {"statement_timeout_s": 0.1},
        "OS": {"command_timeout_s": 0.1},
    },
    "max_observation_chars": {"DBBench": {"max_result_chars": 1}},
}
"""Other settings that must be small for one to be so."""
CASES = [(env_id, name, make) for env_id in ENV_IDS for name, make in settings_of(env_id)]
IDS = [f"{env_id.partition('/')[2]}-{name}" for env_id, name, _ in CASES]


@pytest.mark.parametrize(("env_id", "name", "make"), CASES, ids=IDS)
def test_a_setting_works_or_one_line_says_why(env_id, name, make):
    creator = load_env_creator(gymnasium.spec(env_id).entry_point)
    accepted = {**ACCEPTED, **SINGLE}.get(name, set())
    if make(1).get("skill_mode") == "all":
        accepted = COUNTS
    if name == "max_observation_chars" and "DBBench" in env_id:
        accepted = set()  # 5 has no room for a result of 1 character and its note
    beside = [v for part, v in BESIDE.get(name, {}).items() if part in env_id]
    for label, value in VALUES.items():
        kwargs = dict(*beside, **make(value))
        if kwargs == {"skill_mode": "all", "num_skills": None}:
            continue  # DB-bench has skills that exclude each other
        try:
            creator(**kwargs).close()
        except (SettingsError, DataError) as error:
            message = str(error)
            assert label not in accepted, message
            assert "\n" not in message and len(message) < 3000, message
            assert name.removesuffix("s") in message or isinstance(error, DataError), message
            assert not isinstance(error, DataError) or message.startswith(str(value)), message
        else:
            assert label in accepted, f"{name}={label} is accepted"


@pytest.mark.parametrize("label", sorted(set(VALUES) - {"1", "5"}))
def test_a_vector_refuses_what_is_no_number_of_environments_or_threads(label):
    for name in ("num_envs", "num_threads"):
        if (name, label) != ("num_threads", "None"):
            with pytest.raises(SettingsError, match=name):
                TextVectorEnv.make("AgentPEFT/Arithmetic-v0", **{name: VALUES[label]})


@pytest.mark.parametrize("label", VALUES)
def test_only_a_task_source_is_taken_for_one(label):
    env = gymnasium.make("AgentPEFT/Arithmetic-v0").unwrapped
    before = env.task_source
    for source in (VALUES[label], type(before), [before.get("addition:1+2:plain")]):
        with pytest.raises(SettingsError, match="task_source must be a Taskset or a generator"):
            env.task_source = source
    assert env.task_source is before
    env.task_source = Taskset([before.get("addition:1+2:plain")])


@pytest.mark.parametrize(
    "label", sorted(set(VALUES) - {"0", "1", "5", "-1", "0.5", "1e300", "True"})
)
def test_a_reward_that_is_no_finite_number_is_a_bug_that_names_its_place(label):
    env = gymnasium.make(
        "AgentPEFT/Arithmetic-v0",
        max_turns=3,
        reward={"reward_fn": lambda episode: VALUES[label] if len(episode.turns) == 2 else 0},
    )
    env.reset(options={"task": "addition:1+2:plain"})
    env.step("4")
    with pytest.raises(
        ValueError, match=r"test_settings:.*test_settings\.py, line \d+\)"
    ) as caught:
        env.step("3")
    message = str(caught.value)
    place = "AgentPEFT/Arithmetic-v0, task 'addition:1+2:plain', turn 2: the reward_fn"
    assert message.startswith(place) and "no finite number" in message and "\n" not in message
    with pytest.raises(ResetNeeded):
        env.step("3")
    env.reset(options={"task": "addition:1+2:plain"})
    assert env.step("3")[1] == 0.0


def test_what_a_reward_function_raises_is_its_own_with_the_place_as_a_note():
    env = gymnasium.make("AgentPEFT/Arithmetic-v0", reward={"reward_fn": lambda _: {}["score"]})
    env.reset(options={"task": "addition:1+2:plain"})
    with pytest.raises(KeyError, match="score") as caught:
        env.step("3")
    assert "task 'addition:1+2:plain', turn 1" in caught.value.__notes__[0]


def test_a_turn_s_reward_is_finite_too():
    class NanEnv(EchoEnv):
        def _act(self, action):
            return Turn("", reward=math.nan)

    env = NanEnv()
    env.reset(options={"task": "echo/1"})
    with pytest.raises(ValueError, match="NanEnv, task 'echo/1', turn 1: the reward is nan"):
        env.step("x")
