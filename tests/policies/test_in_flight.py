"""Adapters that take over turns in the middle: each token keeps the version that sampled it."""

import asyncio
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import word_env
from asking import Asking
from learner_parts import (
    flat_weights,
    make_group,
    make_learner,
    make_policy,
    make_trajectory,
)
from sleeping_runners import Simulation
from small_model import SMALL
from test_taken_work import OneIsLong, simulate
from test_transformers_engine import BASE, STOP, full_logprobs, make_model, prompt_of

from agentpeft.envs import SettingsError
from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.engines.player import make_player
from agentpeft.policies.engines.scripted import ScriptedEngine
from agentpeft.policies.engines.transformers.engine import TransformersEngine
from agentpeft.policies.errors import TrainingError
from agentpeft.policies.messages import Completion, GenerationRequest, StopReason
from agentpeft.policies.models.load import load_base
from agentpeft.policies.rollout.env_runner import EnvRunner
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.rollout.turn_sampler import join_parts
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides

IN_FLIGHT = ("max_adapter_lag=1", "in_flight_updates=true")
TURN = 120
TINY = (
    *SMALL,
    f"env_runners.max_new_tokens={TURN}",
    "environment.id=Tests/Word-v0",
    *IN_FLIGHT,
)


# The engine


@pytest.fixture
def engine():
    engine = TransformersEngine(make_model(), [STOP], BASE)
    yield engine
    engine.close()


def slow_steps(engine, monkeypatch):
    """Has a decoding step take some time; returns a list that grows with each."""
    steps, step = [], engine._batch.step

    def slow(stops):
        time.sleep(0.002)
        steps.append(stops)
        return step(stops)

    monkeypatch.setattr(engine._batch, "step", slow)
    return steps


@pytest.mark.parametrize("max_concurrent", [256, 3])
def test_an_interrupted_request_has_what_was_sampled_and_others_none(monkeypatch, max_concurrent):
    """With a shared prompt; of five requests, three of which may be decoded at once or all."""
    settings = BASE.__class__(max_concurrent, needs_adapter=False)
    engine = TransformersEngine(make_model(), [], settings)
    requests = [GenerationRequest(f"{i}", prompt_of(9), (i,), 0.7, 100, "group") for i in range(5)]
    steps = slow_steps(engine, monkeypatch)
    asking = Asking(engine, requests)
    while len(steps) < 10:
        time.sleep(0.001)
    engine.interrupt()
    answers = asking.finish()
    assert {answer.stop_reason for answer in answers} == {StopReason.INTERRUPTED}
    lengths = [len(answer.token_ids) for answer in answers]
    assert sum(length >= 10 for length in lengths) == min(max_concurrent, 5)
    assert all(length >= 10 or length == 0 for length in lengths) and max(lengths) < 100
    for request, answer in zip(requests, answers, strict=True):
        expected = full_logprobs(make_model(), request.prompt_ids, answer.token_ids, 0.7)
        np.testing.assert_allclose(answer.logprobs, expected, atol=1e-5)
    # What goes on is as if nothing had been: keys and values are where they were
    later = [
        GenerationRequest(r.session, np.concatenate([r.prompt_ids, a.token_ids]), (7,), 0.7, 5)
        for r, a in zip(requests, answers, strict=True)
    ]
    for request, answer in zip(later, Asking(engine, later).finish(), strict=True):
        assert answer.stop_reason is StopReason.MAX_NEW_TOKENS
        expected = full_logprobs(make_model(), request.prompt_ids, answer.token_ids, 0.7)
        np.testing.assert_allclose(answer.logprobs, expected, atol=1e-5)
    engine.close()


def test_an_idle_engine_is_interrupted_without_a_trace(engine):
    engine.interrupt()
    engine.update_sessions(opened=["a"])
    answer = asyncio.run(engine.generate(GenerationRequest("a", prompt_of(9), (0,), 1.0, 4)))
    assert answer.stop_reason is not StopReason.INTERRUPTED and len(answer.token_ids) > 0
    engine.load_adapter(make_version(1, "run", {}, 1.0))


# The runner


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTPEFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        return load_base(make_settings())


def make_settings(*overrides):
    return Settings(**with_overrides({}, (*TINY, *overrides)))


def make_runner(base, *overrides, make_engine=None):
    settings = make_settings(*overrides)
    return EnvRunner(settings, make_player(settings, base, make_engine))


def adapter_of(base, number):
    """One that changes the model's answers."""
    rng, weights = np.random.default_rng(number), {}
    for name, tensor in base.model.state_dict().items():
        if name.endswith("mlp.up_proj.weight"):
            rows, columns = tensor.shape
            for part, shape in (("A", (4, columns)), ("B", (rows, 4))):
                key = f"base_model.model.{name.removesuffix('.weight')}.lora_{part}.weight"
                weights[key] = rng.normal(0, 0.3, shape).astype(np.float32)
    return make_version(number, "run", weights, 2.0)


def until_tokens(engine, number):
    """Waits until a turn that is under way has so many tokens, or none is."""
    state = engine._batch._state
    while engine._jobs and state["count"][: engine._batch.num_active].max(initial=0) < number:
        time.sleep(0.001)


def test_each_token_has_the_log_probability_and_the_version_of_who_sampled_it(base):
    """Three adapters come while two groups of several turns are played."""
    word_env.HEARD.clear()
    word_env.FAULTS.clear()
    runner = make_runner(base, "env_runners.max_concurrent_episodes=6")
    adapters = {number: adapter_of(base, number) for number in range(4)}
    runner.load_adapter(adapters[0])
    runner.take([GroupRequest(0, 4), GroupRequest(1, 4)])
    for number in (1, 2, 3):
        until_tokens(runner._engine, 8)
        runner.load_adapter(adapters[number])
    played = {}
    while len(played) < 2:
        _, finished = runner.collect(2, until_room=False)
        played |= {each.request.group_id: each for each in finished}
    trajectories = [t for each in played.values() for t in each.group.trajectories]
    mixed = [t for t in trajectories if t.token_versions is not None]
    assert any(len(set(t.token_versions[t.loss_mask])) > 1 for t in mixed)
    assert sum(each.counts.num_interruptions for each in played.values()) > 0
    for each in played.values():
        group = each.group
        assert each.is_whole and each.version == group.adapter_version
        versions = [t.token_versions for t in group.trajectories if t.token_versions is not None]
        assert max(map(np.max, versions)) == group.adapter_version
    scores = {}
    for number, adapter in adapters.items():
        runner.load_adapter(adapter)
        ids = [np.concatenate([t.prompt_ids, t.token_ids]) for t in mixed]
        scores[number] = asyncio.run(runner._engine.score(ids))
    for place, t in enumerate(mixed):
        sampled = t.token_versions[t.loss_mask]
        assert (np.diff(sampled) >= 0).all()
        assert not t.token_versions[~t.loss_mask].any()
        by_version = np.stack([scores[n][place][-len(t.token_ids) :] for n in sorted(scores)])
        own = by_version[t.token_versions, np.arange(len(t.token_ids))][t.loss_mask]
        np.testing.assert_allclose(t.sampling_logprobs[t.loss_mask], own, atol=1e-4)
        other = by_version[(t.token_versions + 1) % 4, np.arange(len(t.token_ids))][t.loss_mask]
        assert np.abs(other - own).max() > 1e-2  # another version would be noticed
        starts = [0, *t.turn_ends]
        turns = [t.loss_mask[begin:end].sum() for begin, end in pairwise(starts)]
        assert max(turns) <= TURN
    runner.close()


def test_an_adapter_does_not_wait_for_the_turns_under_way(base):
    class Endless(ScriptedEngine):
        is_interrupted = False

        async def generate(self, request):
            while request.session.startswith("train") and not self.is_interrupted:
                await asyncio.sleep(0.005)
            return await super().generate(request)

        def interrupt(self):
            self.is_interrupted = True

    def make_engine(settings, base, chat):
        return Endless(chat, lambda session, turn: "hello")

    runner = make_runner(base, make_engine=make_engine)
    runner.take([GroupRequest(0, 2)])
    time.sleep(0.1)
    start_s = time.monotonic()
    runner.load_adapter(make_version(1, "run", {}, 1.0))
    assert time.monotonic() - start_s < 5
    _, (played,) = runner.collect(1, until_room=False)
    assert played.group.adapter_version == 1
    runner.close()


def test_an_engine_that_cannot_be_interrupted_is_waited_for(base):
    """As those around others are, by which a run's episodes are played again."""

    class Slow(ScriptedEngine):
        async def generate(self, request):
            await asyncio.sleep(0.3)
            return await super().generate(request)

    def make_engine(settings, base, chat):
        return Slow(chat, lambda session, turn: "hello")

    runner = make_runner(base, make_engine=make_engine)
    runner.take([GroupRequest(0, 1)])
    time.sleep(0.1)
    runner.load_adapter(make_version(1, "run", {}, 1.0))
    _, (played,) = runner.collect(1, until_room=False)
    (trajectory,) = played.group.trajectories
    assert (played.group.adapter_version, played.counts.num_interruptions) == (1, 0)
    assert set(trajectory.token_versions[trajectory.loss_mask]) == {0, 1}
    runner.close()


def test_parts_are_joined_with_the_version_of_each_token():
    def part(ids, reason, version):
        logprobs = np.array([-i for i in ids], np.float32)
        return Completion(np.array(ids, np.int64), logprobs, reason, version)

    cut, end = StopReason.INTERRUPTED, StopReason.STOP_TOKEN
    alone = part([5], end, 2)
    assert join_parts([alone]) is alone
    joined = join_parts(
        [part([], cut, 0), part([1, 2], cut, 1), part([], cut, 2), part([3], end, 4)]
    )
    assert joined.token_ids.tolist() == [1, 2, 3]
    assert joined.logprobs.tolist() == [-1, -2, -3]
    assert joined.token_versions.tolist() == [1, 1, 4]
    assert (joined.stop_reason, joined.adapter_version) == (end, 4)


# The learner


def versioned(trajectory, versions):
    return replace(trajectory, token_versions=np.array(versions, np.int64))


def make_versioned_groups(versions=None):
    rng = np.random.default_rng(3)
    episodes = [make_trajectory([1, 2], rng.integers(0, 20, 6), n % 2) for n in range(4)]
    if versions is not None:
        episodes[0] = versioned(episodes[0], versions)
    return [make_group(0, episodes)]


def test_the_learner_tells_how_old_tokens_are_and_learns_from_all():
    """What corrects older ones is the importance of each, which follows from log-probabilities."""
    lags, weights = [], []
    for versions in (None, [2, 2, 3, 3, 4, 5]):
        learner = make_learner(make_policy(nonzero=True), max_adapter_lag=1, algorithm="grpo")
        learner.version = 5
        metrics = learner.update(make_versioned_groups(versions))
        lags.append((metrics["train/adapter_lag_mean"], metrics["train/adapter_lag_max"]))
        weights.append(flat_weights(learner))
    assert lags == [(5, 5), (pytest.approx((18 * 5 + 3 + 3 + 2 + 2 + 1) / 24), 5)]
    np.testing.assert_array_equal(*weights)
    assert "train/adapter_lag_mean" not in make_learner().update(make_versioned_groups())


# Whole runs


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def test_a_world_that_always_fails_ends_the_run_in_flight_too(tmp_path):
    settings = ["env_runners.max_concurrent_episodes=2", "env_runners.episode_timeout_s=0.05"]
    with pytest.raises(TrainingError, match="groups failed in their environment"):
        simulate(tmp_path, Simulation(1.0, 1.0, 0.0), 1, *IN_FLIGHT, *settings)


def test_an_episode_longer_than_any_lag_is_learnt_from(tmp_path):
    groups, metrics = simulate(tmp_path, OneIsLong(0.01, 1.2, 0.2), 8, *IN_FLIGHT)
    (late,) = (number for number, each in enumerate(groups) if 1 in each)
    assert late >= 3 and late - groups[late][1] <= 1  # of the adapter that has ended it
    num_stale = [m["sample/num_stale_groups"] for m in metrics]
    assert [len(each) for each in groups] == [4 + n for n in num_stale]
    assert sum(num_stale) <= 1  # where the long one ends there is one too many
    assert sum(m["sample/num_interruptions"] for m in metrics) >= late - 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["max_adapter_lag=0"], "in_flight_updates has no effect with max_adapter_lag 0"),
        (["env_runners.engine=scripted"], "no effect with env_runners.engine = 'scripted'"),
        (
            ["env_runners.engine=vllm", "env_runners.shared_engines=an.app:x"],
            "turns of env_runners.shared_engines are not interrupted",
        ),
    ],
)
def test_what_cannot_be_interrupted_is_refused(overrides, message):
    with pytest.raises(SettingsError, match=message):
        make_settings(*overrides)


def test_slots_serve_one_version_in_flight_and_all_within_the_lag_else():
    assert make_settings("max_adapter_lag=3").num_served_versions == 1
    assert make_settings("max_adapter_lag=3", "in_flight_updates=false").num_served_versions == 4
