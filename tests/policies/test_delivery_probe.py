"""What an engine says of given tokens, and what is concluded from it at a delivery."""

import asyncio
import re

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentpeft.policies.delivery.probe import (
    Probe,
    Proof,
    compute_delivery_metrics,
    find_problem,
)
from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.engines.transformers.engine import EngineSettings, TransformersEngine
from agentpeft.policies.errors import EngineError

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 40}


def make_model():
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, **heads, max_position_embeddings=128))


def make_adapter(number, value):
    name = "base_model.model.model.layers.0.mlp.up_proj.lora_{}.weight"
    ones = np.ones((2, 32), np.float32), np.full((64, 2), value, np.float32)
    weights = dict(zip((name.format("A"), name.format("B")), ones, strict=True))
    return make_version(number, "run", weights, 2.0)


def test_an_engine_scores_under_the_weights_that_it_serves():
    engine, plain = TransformersEngine(make_model(), [], EngineSettings()), make_model()
    ids = np.random.default_rng(0).integers(0, 40, 12)
    with pytest.raises(EngineError, match="no adapter"):
        asyncio.run(engine.score([ids]))
    engine.load_adapter(make_adapter(1, 0.25))
    with torch.no_grad():  # W + 2 * 0.25 * (two ones) = W + 1
        plain.model.layers[0].mlp.up_proj.weight.add_(1.0)
        logprobs = plain(torch.tensor(ids)[None]).logits[0].log_softmax(-1)
    expected = [logprobs[at, token] for at, token in enumerate(ids[1:])]
    longer, shorter = asyncio.run(engine.score([ids, ids[:5]]))
    np.testing.assert_allclose(longer, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(shorter, longer[:4], rtol=0, atol=1e-5)
    engine.close()


def compare(learner, engine, base=0.0, sampling=0.0, served=np.nan):
    """The metrics of log-probabilities around 50 random ones, and what is concluded."""
    noise = np.random.default_rng(0).normal(size=50).astype(np.float32)
    probe = Probe((), noise + np.float32(learner), noise + np.float32(base), 1e-3)
    proof = Proof(noise + np.float32(engine), sampling, served)
    metrics = compute_delivery_metrics(probe, proof)
    return metrics, find_problem(metrics, probe)


@pytest.mark.parametrize(
    ("engine", "sampling", "problem"),
    [
        (0.5, 0.0, None),
        (0.5004, 0.0004, None),
        (0.502, 0.0, r"probe_mean is 0.002 \(limit 0.001\)"),
        (0.5, 0.002, "sampling_mean is 0.002"),
        (np.nan, 0.0, "probe_mean is nan"),
    ],
)
def test_learner_and_engine_may_differ_up_to_the_limit(engine, sampling, problem):
    found = compare(0.5, engine, sampling=sampling)[1]
    assert found is None if problem is None else re.match(problem, found)


def test_the_canary_is_the_share_of_the_effect_that_the_engine_shows():
    effect = np.tile([0.0008, -0.0008], 25)  # below the limit: the difference alone is too small
    for share, problem in ((1.0, None), (0.6, None), (0.0, "canary is -?0.00")):
        metrics, found = compare(effect, share * effect)
        assert metrics["canary"] == pytest.approx(share, abs=1e-3)
        assert metrics["learner_effect"] == pytest.approx(0.0008, rel=1e-2)
        assert found is None if problem is None else re.match(problem, found)


def test_nothing_is_said_of_an_effect_that_is_lost_in_noise():
    for learner in (0.0, 0.0001):  # of 50 tokens
        metrics, found = compare(learner, 0.0)
        assert "canary" not in metrics and found is None
    assert compare(0.00012, 0.0)[1] is not None


def test_an_effect_as_large_as_bfloat16_rounds_is_not_held_against_an_engine():
    rng = np.random.default_rng(0)
    for effect_size, noise in ((0.02, 0.025), (0.01, 0.02)):  # as seen of a model of 0.5 billion
        effect = rng.normal(scale=effect_size, size=180)
        given = 0.5 * effect + rng.normal(scale=noise, size=180)
        probe = Probe((), effect, np.zeros(180), 0.05)
        metrics = compute_delivery_metrics(probe, Proof(given, 0.0, 1.0))
        assert "canary" not in metrics and find_problem(metrics, probe) is None


@pytest.mark.parametrize(
    ("served", "problem"),
    [(1.0, None), (0.8, None), (0.79, r"served_effect is 0.79 \(limit 0.8\)"), (np.nan, None)],
)
def test_the_served_weights_must_hold_the_step_however_small_it_is(served, problem):
    metrics, found = compare(1e-7, 1e-7, served=served)
    assert metrics.get("served_effect", np.nan) == pytest.approx(served, nan_ok=True)
    assert found is None if problem is None else re.match(problem, found)
