"""vLLM serves versions of all weights: what transformers computes, and nothing of the last one."""

import asyncio

import numpy as np
import pytest
import torch
from learner_parts import random_groups
from vllm_parts import SETTINGS, STOP, ask, make_adapter, make_model, prompt_of, request_of

from agentpeft.policies.delivery.deliver import send_and_prove
from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.engines.fusing import merged_state
from agentpeft.policies.engines.vllm.start import start_engine
from agentpeft.policies.errors import EngineError
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.learner_group import LearnerActor, LearnerGroup
from agentpeft.policies.workers.runner_group import EnvRunnerGroup

pytestmark = pytest.mark.slow

SHAPES = {"tied": {"tie_word_embeddings": True}, "untied": {"tie_word_embeddings": False}}
"""The output layer is the embedding, or has weights of its own."""


@pytest.fixture(scope="module", params=["tied", pytest.param("untied", marks=pytest.mark.long)])
def shape(request):
    return SHAPES[request.param]


@pytest.fixture(scope="module")
def engine(vllm, shape, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model(**shape).save_pretrained(folder)
    engine = start_engine(folder, [STOP], SETTINGS)
    yield engine
    engine.close()


def make_whole(number, shape):
    """A version in which every weight differs from the base's."""
    rng = np.random.default_rng(number)
    weights = {
        name: (weight.detach().numpy() + rng.normal(0, 0.05, weight.shape)).astype(np.float32)
        for name, weight in make_model(**shape).named_parameters()
    }
    return make_version(number, "run", weights, 1.0)


def logprobs_of(version, shape, ids):
    """Of every id but the first, by one plain forward pass of transformers."""
    model = make_model(**shape)
    model.load_state_dict(merged_state(model.state_dict(), version)[0], strict=False)
    with torch.no_grad():
        logits = model(torch.tensor(ids)[None]).logits[0, :-1].float()
    return logits.log_softmax(-1).numpy()[np.arange(len(ids) - 1), ids[1:]]


def assert_serves(engine, version, shape):
    (completion,) = ask(engine, request_of(length=70, max_new_tokens=40))
    ids = np.concatenate([prompt_of(70), completion.token_ids])
    expected = logprobs_of(version, shape, ids)
    assert np.abs(completion.logprobs - expected[69:]).mean() < 1e-4
    (scores,) = asyncio.run(engine.score([ids]))
    assert np.abs(scores - expected).mean() < 1e-4


@pytest.mark.long
@pytest.mark.parametrize("number", [1, 2])
def test_each_version_of_all_weights_is_received_and_served(engine, shape, number):
    version = make_whole(number, shape)
    ack = engine.load_adapter(version)
    assert (ack.version, ack.sha256) == (number, version.sha256)
    assert engine.served_effect == pytest.approx(1, abs=1e-4)
    assert_serves(engine, version, shape)


@pytest.mark.long
def test_an_adapter_after_it_stands_on_the_base_again(engine, shape):
    for version in (make_adapter(3), make_whole(4, shape), make_adapter(5)):
        engine.load_adapter(version)
        assert_serves(engine, version, shape)


@pytest.mark.long
@pytest.mark.parametrize("change", ["rename", "shape"])
def test_what_does_not_fit_is_refused_and_then_nothing_is_served(engine, shape, change):
    weights = dict(make_whole(6, shape).weights)
    if change == "rename":
        weights["model.other.weight"] = weights.pop("model.norm.weight")
    else:
        weights["model.norm.weight"] = weights["model.norm.weight"][:-1]
    with pytest.raises(EngineError, match=r"model\.(other|norm)\.weight is"):
        engine.load_adapter(make_version(6, "run", weights, 1.0))
    with pytest.raises(EngineError, match="no adapter"):
        ask(engine, request_of())
    engine.load_adapter(make_whole(7, shape))
    assert_serves(engine, make_whole(7, shape), shape)


class Steps(LearnerActor):
    """Learns from groups that a test makes."""

    def learn_from(self, groups):
        self.learner.update(groups)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
def test_what_a_learner_trains_is_delivered_whole_and_proven(vllm, tmp_path, monkeypatch, dtype):
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path))
    settings = Settings(
        environment={"kwargs": {"num_digits": 1, "prompt": "compact"}},
        model={"dtype": dtype},
        tiny={"hidden_size": 64, "num_layers": 2},
        lora={"rank": 0},
        env_runners={
            "num_env_runners": 0,
            "engine": "vllm",
            "kv_cache_gib": 0.05,
            "max_new_tokens": 4,
        },
        training={"lr": 1e-3 if dtype == "float32" else 1e-5},
        num_threads=1,
    )
    learner, runners = LearnerGroup(settings, Steps), EnvRunnerGroup(settings)
    send_and_prove(learner.pack_adapter(), runners)
    learner.call(Steps.learn_from, random_groups(vocab=300))
    metrics = send_and_prove(learner.pack_adapter(), runners)
    assert metrics["served_effect"] == pytest.approx(1, abs=0.03)
    if dtype == "float32":
        assert metrics["probe_max"] < 1e-4 and metrics["canary"] == pytest.approx(1, abs=0.01)
    _, report = runners.sample([GroupRequest(position, 3) for position in range(4)])
    assert report.adapter_versions == (1, 1, 1, 1)
    for group in (runners, learner):
        group.close()
