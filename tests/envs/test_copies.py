"""Environments are pickled and copied: with their settings, tasks and random state."""

import copy
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

from agentpeft.envs import ENV_IDS, Taskset
from agentpeft.envs.arithmetic.operations import Operation, register_operation

COPIES = {"pickle": lambda value: pickle.loads(pickle.dumps(value)), "deepcopy": copy.deepcopy}
SETTINGS = [
    *((env_id, {}) for env_id in ENV_IDS),
    ("AgentPEFT/Arithmetic-v0", {"num_digits": (1, 4), "adaptive": {"window": 1}}),
    ("AgentPEFT/Arithmetic-v0", {"operations": ("subtraction", "multiplication")}),
    ("AgentPEFT/DBBench-v0", {"database": "mysql"}),
    ("AgentPEFT/DBBench-v0", {"skills": ["insert"], "autocommit": False}),
]


@pytest.fixture(params=SETTINGS, ids=str)
def env(request):
    env_id, kwargs = request.param
    if "OS" in env_id:
        request.getfixturevalue("any_sandbox")
    if "database" in kwargs:
        kwargs = {"database": request.getfixturevalue("mysql_url")}
    env = gymnasium.make(env_id, **kwargs, max_turns=6, reward={"success": 3.0})
    yield env
    env.close()


def play(env):
    """Returns what two drawn episodes of a perfect agent look like."""
    texts = []
    for _ in range(2):
        texts.append(env.reset()[0])
        texts += [env.step(action) for action in env.unwrapped.oracle_actions(env.unwrapped.task)]
    assert texts[-1][4]["is_success"]
    return texts


@pytest.mark.parametrize("make_copy", COPIES.values(), ids=COPIES)
def test_a_copy_goes_on_as_its_original_does(env, make_copy):
    env.reset(seed=3)
    env.step("")
    duplicate = make_copy(env)
    with pytest.raises(ResetNeeded):
        duplicate.unwrapped.step("")
    assert play(duplicate) == play(env)
    duplicate.close()
    assert play(env)
    env.close()
    with pytest.raises(ClosedEnvironmentError):
        make_copy(env)


@pytest.mark.parametrize("make_copy", COPIES.values(), ids=COPIES)
def test_a_task_source_draws_as_its_copy_does(env, make_copy):
    source = env.unwrapped.task_source
    duplicate = make_copy(source)
    draws = [each.draw(np.random.default_rng(8)) for each in (source, duplicate)]
    assert draws[0] == draws[1]
    assert make_copy(Taskset(draws[:1]))[0] == draws[0]


def test_an_operation_is_pickled_by_its_name():
    remainder = Operation("remainder", "%", lambda a, b: a % b, lambda n: n, min_operand=1)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(remainder)
    register_operation(remainder)
    assert pickle.loads(pickle.dumps(remainder)) is remainder
