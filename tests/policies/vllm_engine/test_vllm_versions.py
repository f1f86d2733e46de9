"""Several adapters in one engine: each request has its own, and one comes while others play."""

import asyncio
import sys
import tomllib
from dataclasses import replace

import numpy as np
import pytest
import ray
from faulty_parts import EngineAround, runner_with
from vllm_parts import BOTH, STOP, ask, full_logprobs, make_adapter, make_model, request_of

from agentpeft.policies.delivery.deliver import send_and_prove
from agentpeft.policies.engines.vllm.start import start_engine
from agentpeft.policies.engines.wrapping import RoutingEngine
from agentpeft.policies.errors import EngineError
from agentpeft.policies.rollout.groups import GroupRequest, SampleReport
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.learner_group import LearnerGroup
from agentpeft.policies.workers.runner_group import EnvRunnerGroup

pytestmark = pytest.mark.slow

OVERLAPPED = """
max_adapter_lag = 1
environment = {kwargs = {num_digits = 1, prompt = "compact", reward = {length_cost = 0.1}}}
num_threads = 1
tiny = {hidden_size = 64, num_layers = 1}
lora = {rank = 2}
training = {num_groups = 4, group_size = 3, lr = 1e-2}
[env_runners]
engine = "vllm"
serving = "native"
kv_cache_gib = 0.05
max_new_tokens = 4
"""
for name in (__name__, "faulty_parts"):  # actors cannot import them
    ray.cloudpickle.register_pickle_by_value(sys.modules[name])
ADAPTERS = {number: make_adapter(number) for number in (1, 2, 3, 4)}


@pytest.fixture(scope="module")
def engine(vllm, tmp_path_factory):
    """Has room for two."""
    folder = tmp_path_factory.mktemp("model")
    make_model().save_pretrained(folder)
    engine = start_engine(folder, [STOP], replace(BOTH["native"], num_adapters=2))
    yield engine
    engine.close()


def difference(request, completion):
    """How far what was sampled is from what the adapter of the request samples."""
    ids = np.concatenate([request.prompt_ids, completion.token_ids])
    expected = full_logprobs(ADAPTERS[request.adapter_version], ids)
    return np.abs(completion.logprobs - expected[len(request.prompt_ids) - 1 :]).max()


def requests_of(versions, **fields):
    """Long ones, of as many sessions; the prompts are the same."""
    fields = {"max_new_tokens": 60, **fields}
    return [
        request_of(f"s{index}", seed=(index,), adapter_version=version, **fields)
        for index, version in enumerate(versions)
    ]


def test_sessions_of_two_versions_play_at_once(engine):
    for number in (1, 2):
        assert engine.load_adapter(ADAPTERS[number]).version == number
    requests = requests_of([1, 2] * 8)
    completions = ask(engine, *requests)
    assert [c.adapter_version for c in completions] == [1, 2] * 8
    assert max(map(difference, requests, completions)) < 1e-4
    (newest,) = ask(engine, request_of())
    assert newest.adapter_version == 2


def test_a_bank_in_the_slots_answers_as_each_adapter_does_alone(engine):
    bank = RoutingEngine(engine, lambda ids: 1 + len(ids) % 2)
    fields = {"temperature": 0.0, "max_new_tokens": 30}
    requests = [request_of(f"s{n}", 20 + n, adapter_version=0, **fields) for n in range(8)]
    together = ask(bank, *requests)
    for request, answer in zip(requests, together, strict=True):
        own = replace(request, adapter_version=1 + len(request.prompt_ids) % 2)
        (alone,) = ask(engine, own)
        assert difference(own, answer) < 1e-4
        assert answer.token_ids.tolist() == alone.token_ids.tolist()
    assert {answer.adapter_version for answer in together} == {0}


def test_an_adapter_is_loaded_and_scored_while_others_play(engine):
    requests = requests_of([2] * 16, max_new_tokens=100)

    async def play():
        engine.update_sessions(opened=[request.session for request in requests])
        playing = asyncio.ensure_future(asyncio.gather(*map(engine.generate, requests)))
        await asyncio.sleep(0.01)
        ack = await asyncio.to_thread(engine.load_adapter, ADAPTERS[3])
        (scores,) = await engine.score([requests[0].prompt_ids])
        assert not playing.done()
        return ack, scores, await playing

    ack, scores, completions = asyncio.run(play())
    engine.update_sessions(closed=[request.session for request in requests])
    assert (ack.version, ack.sha256) == (3, ADAPTERS[3].sha256)
    assert np.abs(scores - full_logprobs(ADAPTERS[3], requests[0].prompt_ids)).max() < 1e-4
    assert max(map(difference, requests, completions)) < 1e-4


def test_the_oldest_one_makes_room_and_is_served_no_more(engine):
    with pytest.raises(EngineError, match=r"adapter 1 is not served, but \[2, 3\]"):
        ask(engine, *requests_of([1]))
    engine.load_adapter(ADAPTERS[4])
    requests = requests_of([3, 4])
    assert max(map(difference, requests, ask(engine, *requests))) < 1e-4


def test_one_that_is_played_does_not_make_room(engine):
    (request,) = requests_of([3], max_new_tokens=100)

    async def play():
        engine.update_sessions(opened=[request.session])
        playing = asyncio.ensure_future(engine.generate(request))
        await asyncio.sleep(0.01)
        with pytest.raises(EngineError, match="requests are under way"):
            engine.load_adapter(make_adapter(5))
        return await playing

    assert difference(request, asyncio.run(play())) < 1e-4
    engine.update_sessions(closed=[request.session])


def test_what_does_not_fit_leaves_the_newest_one(engine):
    with pytest.raises(EngineError):
        engine.load_adapter(make_adapter(6, rank=16))
    (completion,) = ask(engine, request_of(adapter_version=4))
    assert difference(request_of(adapter_version=4), completion) < 1e-4


class WaitingEngine(EngineAround):
    """Has episodes wait while a file is there; the proof of a delivery does not."""

    def __init__(self, engine, path):
        super().__init__(engine)
        self.path = path

    async def generate(self, request):
        while self.path.exists() and not request.session.startswith("probe"):
            await asyncio.sleep(0.02)
        return await self.engine.generate(request)


@pytest.mark.long
def test_a_delivery_is_proven_in_the_middle_of_a_round(vllm, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path))
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    settings = Settings(**tomllib.loads(OVERLAPPED))
    wait = tmp_path / "wait"
    kind = runner_with(lambda engine: WaitingEngine(engine, wait))
    learner, runners = LearnerGroup(settings), EnvRunnerGroup(settings, kind=kind)
    send_and_prove(learner.pack_adapter(), runners)
    requests = [GroupRequest(position, 3) for position in range(4)]
    learner.receive(runners.sample(requests)[0])
    learner.update()
    wait.touch()
    played = []
    runners.ask(played.append, requests)
    metrics = send_and_prove(learner.pack_adapter(), runners)
    wait.unlink()
    assert metrics["probe_max"] < 1e-4 and metrics["engine_effect"] > 0
    while len(played) < len(requests):
        runners.play()
    assert SampleReport(played).adapter_versions == (0, 0, 0, 0)
    assert runners.sample(requests)[1].adapter_versions == (1, 1, 1, 1)
    for group in (runners, learner):
        group.close()
    ray.shutdown()
