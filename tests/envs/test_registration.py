"""What every registered environment keeps, whatever it is. Needs the base install and pytest."""

import subprocess
import sys
import warnings

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from agentpeft.envs import (
    ENV_IDS,
    RewardConfig,
    SettingsError,
    TextEnv,
    TextVectorEnv,
    UnknownTaskError,
    check_text_env,
)

VECTORIZATIONS = {
    None: {},
    "vector_entry_point": {},
    "sync": {},
    "async": {"vector_kwargs": {"shared_memory": False}},
}


@pytest.fixture(params=ENV_IDS)
def env_id(request):
    """A registered id whose environment works here; all do where a sandbox does."""
    if request.param == "AgentPEFT/OSInteraction-v0":
        request.getfixturevalue("any_sandbox")
    return request.param


@pytest.fixture
def env(env_id):
    env = gymnasium.make(env_id)
    yield env
    env.close()


def test_the_module_before_an_id_is_agentpeft_envs(tmp_path):
    code = """
import gymnasium as gym
try:
    gym.make("agentpeft:AgentPEFT/Arithmetic-v0")
except gym.error.NamespaceNotFound as error:
    assert "Namespace AgentPEFT not found" in str(error), error
gym.make("agentpeft.envs:AgentPEFT/Arithmetic-v0").reset()
gym.make_vec("agentpeft.envs:AgentPEFT/Arithmetic-v0", num_envs=2).reset()
"""
    run_python(code, tmp_path)


def play(env, actions):
    """Returns what an episode shows, from the prompt to its end."""
    return [env.step(action) for action in actions]


def run_python(code, cwd):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_gymnasiums_checker_has_nothing_to_say(env_id):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(env_id).unwrapped
        assert isinstance(env, TextEnv)
        check_env(env)
        env.close()


def test_the_suites_own_checker_passes(env):
    check_text_env(env, seed=100)


def test_two_copies_with_one_seed_are_identical(env_id):
    first, second = gymnasium.make(env_id), gymnasium.make(env_id)
    for seed in (3, None, None):
        assert first.reset(seed=seed) == second.reset(seed=seed)
        actions = first.unwrapped.oracle_actions(first.unwrapped.task)
        assert actions == second.unwrapped.oracle_actions(second.unwrapped.task)
        assert play(first, actions) == play(second, actions)
    first.close()
    second.close()


def test_different_seeds_give_different_tasks(env):
    assert len({env.reset(seed=seed)[0] for seed in range(20)}) > 10


@pytest.mark.parametrize("mode", VECTORIZATIONS)
def test_oracles_succeed_in_every_vectorization(env_id, mode):
    single = gymnasium.make(env_id)
    venv = gymnasium.make_vec(env_id, num_envs=3, vectorization_mode=mode, **VECTORIZATIONS[mode])
    assert isinstance(venv, TextVectorEnv) == (mode in (None, "vector_entry_point"))
    observations, _ = venv.reset(seed=11)
    assert observations == tuple(single.reset(seed=seed)[0] for seed in (11, 12, 13))
    plans = [list(single.unwrapped.oracle_actions(task)) for task in venv.get_attr("task")]
    succeeded = [False] * 3
    for turn in range(max(map(len, plans))):
        actions = tuple(plan[turn] if turn < len(plan) else "" for plan in plans)
        infos = venv.step(actions)[4]
        succeeded = [a or bool(b) for a, b in zip(succeeded, infos["is_success"], strict=True)]
    assert succeeded == [True] * 3
    venv.close()
    single.close()


def test_async_with_shared_memory_is_refused_with_the_way_out(env_id):
    with pytest.raises(TypeError, match="shared_memory=False"):
        gymnasium.make_vec(env_id, num_envs=2, vectorization_mode="async")


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"max_turns": 7, "invalid_ends": False, "episode_timeout_s": 30.0},
        {"reward": {"preset": "os", "turn_cost": 0.125}},
        {"reward": RewardConfig(success=2.0, timeout=-1.0)},
    ],
)
def test_a_spec_survives_json(env_id, kwargs):
    env = gymnasium.make(env_id, **kwargs)
    restored = gymnasium.make(EnvSpec.from_json(env.spec.to_json()))
    assert restored.unwrapped.reward_config == env.unwrapped.reward_config
    assert restored.unwrapped.config.max_turns == env.unwrapped.config.max_turns
    assert restored.reset(seed=5) == env.reset(seed=5)
    env.close()
    restored.close()


def test_make_needs_no_import(env_id, tmp_path):
    code = f"import gymnasium; e = gymnasium.make('agentpeft.envs:{env_id}'); e.reset(seed=0)"
    run_python(code, tmp_path)


def test_the_import_is_light(tmp_path):
    heavy = "{'torch', 'ray', 'sqlglot', 'mysql', 'docker', 'datasets', 'pyarrow', 'pandas'}"
    code = f"import agentpeft.envs, sys; print(sorted({heavy} & set(sys.modules)))"
    assert run_python(code, tmp_path) == "[]"


def test_no_environment_loads_an_extra_by_default(tmp_path, any_sandbox):
    code = (
        "import gymnasium, sys, agentpeft.envs as e\n"
        "for i in e.ENV_IDS: gymnasium.make(i).reset(seed=0)\n"
        "print(sorted({'torch', 'ray', 'mysql', 'docker', 'datasets'} & set(sys.modules)))"
    )
    assert run_python(code, tmp_path) == "[]"


@pytest.mark.parametrize("make", [gymnasium.make, gymnasium.make_vec])
def test_an_unknown_setting_is_refused_with_a_suggestion(env_id, make):
    with pytest.raises(SettingsError, match="unknown setting 'max_turn'; did you mean 'max_turns'"):
        make(env_id, max_turn=3)


def test_an_unknown_id_is_refused_with_a_suggestion():
    with pytest.raises(gymnasium.error.NameNotFound, match="Did you mean: `DBBench`"):
        gymnasium.make("agentpeft.envs:AgentPEFT/DBBnch-v0")


def test_an_unknown_task_is_refused(env):
    with pytest.raises(UnknownTaskError, match="no/such/task"):
        env.reset(options={"task": "no/such/task"})


def test_a_task_is_found_again_by_its_id(env):
    prompt, info = env.reset(seed=21)
    assert env.reset(options={"task": info["task_id"]})[0] == prompt


def test_step_after_the_end_needs_a_reset(env):
    env.reset(seed=0)
    for action in env.unwrapped.oracle_actions(env.unwrapped.task):
        terminated = env.step(action)[2]
    assert terminated
    with pytest.raises(ResetNeeded):
        env.step("")


def test_random_actions_are_observations_and_never_exceptions(env):
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(300):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        assert env.observation_space.contains(observation)
        assert (type(reward), truncated) == (float, False)
        if terminated:
            env.reset()


def test_close_is_idempotent_before_and_after_an_episode(env):
    env.close()
    again = gymnasium.make(env.spec)
    again.reset(seed=0)
    again.close()
    again.close()
