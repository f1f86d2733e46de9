"""Engines that leave their memory to the learners: nothing that is sampled or learnt changes."""

import asyncio
import weakref

import numpy as np
import pytest
from faulty_parts import EngineAround, runner_with
from test_algorithm import SPREAD, without_times
from test_algorithm import TINY as SHORT_RUN
from test_transformers_engine import BASE, STOP, full_logprobs, make_model, prompt_of

from agentpeft.envs.core.errors import SettingsError
from agentpeft.policies.engines.transformers.engine import TransformersEngine
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import GenerationRequest
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides

SLEEPY = "env_runners.sleep_while_learning=true"
SHARED = ("env_runners.engine=vllm", "env_runners.shared_engines=an.app:sweep")
TINY = (*SHORT_RUN, SPREAD)


@pytest.fixture
def engine():
    engine = TransformersEngine(make_model(), [STOP], BASE)
    yield engine
    engine.close()


@pytest.fixture
def slept(monkeypatch):
    """The engines that were put to sleep, each time anew."""
    engines, put_to_sleep = [], TransformersEngine.sleep
    monkeypatch.setattr(
        TransformersEngine, "sleep", lambda own: engines.append(own) or put_to_sleep(own)
    )
    return engines


def kept_bytes(engine):
    """Of keys and values, of rows and of prompts."""
    cache = engine._batch._cache
    return [store.states.numel() for store in (cache.rows, cache.prompts)]


def storages_of(engine):
    """The memory of these, as long as anybody holds it."""
    cache = engine._batch._cache
    return [weakref.ref(store.states.untyped_storage()) for store in (cache.rows, cache.prompts)]


def test_keys_and_values_are_given_back_and_computed_again(engine):
    """In the middle of an episode, with a prompt that others share."""
    engine.update_sessions(opened=["a", "b"])
    prompt = prompt_of(30)

    async def play():
        turns, ids, prefix = [], prompt, "group"
        for turn in range(3):
            requests = [
                GenerationRequest(name, ids, (index, turn), 0.7, 5, prefix)
                for index, name in enumerate("ab")
            ]
            turns.append((ids, await asyncio.gather(*map(engine.generate, requests))))
            ids, prefix = np.concatenate([ids, prompt_of(7, turn)]), None
            assert [size > 0 for size in kept_bytes(engine)] == [True, turn == 0]
            before = storages_of(engine)
            engine.sleep()
            assert kept_bytes(engine) == [0, 0]
            assert [storage() for storage in before] == [None, None]
            engine.sleep()
        return turns

    for ids, completions in asyncio.run(play()):
        for completion in completions:
            expected = full_logprobs(make_model(), ids, completion.token_ids, 0.7)
            np.testing.assert_allclose(completion.logprobs, expected, atol=1e-5)


def test_an_engine_does_not_sleep_while_it_works(engine):
    engine.update_sessions(opened=["a"])

    async def ask():
        request = GenerationRequest("a", prompt_of(9), (0,), max_new_tokens=60)
        asked = asyncio.create_task(engine.generate(request))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="under way"):
            engine.sleep()
        return await asked

    assert len(asyncio.run(ask()).token_ids)


@pytest.mark.parametrize("algorithm", ["reinforce", "sft"])
def test_a_run_with_engines_that_sleep_is_the_same_to_the_bit(build, slept, algorithm):
    own = [f"training.algorithm={algorithm}"]
    own += ["training.group_size="] * (algorithm == "sft")
    runs = []
    for name, overrides in (("awake", ()), ("sleepy", (SLEEPY,))):
        algorithm_run = build(name, *own, *overrides)
        rows = []
        for _ in range(3):
            rows += [without_times(algorithm_run.train()), algorithm_run.evaluate()]
        runs.append(rows)
        assert len(slept) == (3 if overrides else 0)
    assert runs[0] == runs[1]


class SleeplessEngine(EngineAround):
    """Fails whenever it is to sleep."""

    def sleep(self):
        raise EngineError("wide awake")


def test_a_runner_that_cannot_sleep_is_replaced_by_one_that_does(build, slept):
    engines = []

    def around(engine):
        engines.append(engine)
        return SleeplessEngine(engine) if len(engines) == 1 else engine

    run = build("faulty", SLEEPY, env_runner_class=runner_with(around))
    assert run.train()["fault/num_env_runner_restarts"] == 1
    assert run.train()["fault/num_env_runner_restarts"] == 1
    assert len(engines) == 2 and slept == [engines[1]] * 2


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("env_runners.engine=scripted",), "no effect with engine 'scripted'"),
        (("max_adapter_lag=1", "env_runners.num_env_runners=1"), "max_adapter_lag > 0"),
        ((*SHARED, "env_runners.num_env_runners=1"), "other runs play"),
        (("env_runners.num_gpus_per_env_runner=0.5",), "share no GPU"),
        (
            ("env_runners.num_gpus_per_env_runner=0.8", "learners.num_gpus_per_learner=0.4"),
            "share no GPU",
        ),
    ],
)
def test_where_nothing_can_sleep_the_setting_is_refused(overrides, reason):
    own = tuple(each for each in TINY if not each.startswith("deterministic"))
    with pytest.raises(SettingsError, match=reason):
        Settings(**with_overrides({}, (*own, SLEEPY, *overrides)))
