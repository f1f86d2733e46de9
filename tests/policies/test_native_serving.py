"""The transformers engine with the adapter in LoRA layers of its own, beside the base's weights."""

import asyncio

import numpy as np
import pytest

from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.engines.transformers.engine import start_transformers
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import GenerationRequest
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.models.tiny import build_tiny
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.settings.config import Settings, TinySettings

SMALL = TinySettings(hidden_size=32, num_layers=2)


def make_settings(serving):
    limits = {"serving": serving, "max_new_tokens": 8}
    return Settings(lora={"rank": 4, "alpha": 8.0}, env_runners=limits)


def make_adapter(number, scaling=2.0):
    rng = np.random.default_rng(number)
    policy = attach_lora(build_tiny(SMALL, ["text"]), make_settings("auto").lora)
    weights = {n: w + rng.normal(0, 0.2, w.shape) for n, w in policy.adapter_weights().items()}
    typed = {name: weight.astype(np.float32) for name, weight in weights.items()}
    return make_version(number, "run", typed, scaling)


def start(serving):
    base = build_tiny(SMALL, ["text"])
    engine = start_transformers(make_settings(serving), base, ChatFormat(base.tokenizer))
    engine.update_sessions(opened=["a"])
    return engine


def test_both_ways_serve_the_same_for_every_version():
    native, fused = start("native"), start("fused")
    request = GenerationRequest("a", np.arange(10, 30), (0,), 1.0, 8)
    seen = set()
    for number in (1, 2):
        for engine in (native, fused):
            assert engine.load_adapter(make_adapter(number)).version == number
        own, other = (asyncio.run(engine.generate(request)) for engine in (native, fused))
        np.testing.assert_array_equal(own.token_ids, other.token_ids)
        np.testing.assert_allclose(own.logprobs, other.logprobs, atol=1e-5)
        seen.add(own.logprobs.tobytes())
    assert len(seen) == 2
    native.close()
    fused.close()


def test_what_does_not_fit_the_layers_is_refused():
    engine, adapter = start("native"), make_adapter(1)
    shorter = {name: weight[:2] for name, weight in adapter.weights.items()}
    for wrong in (make_version(1, "run", shorter, 2.0), make_adapter(1, scaling=1.0)):
        with pytest.raises(EngineError, match=r"lora_A\.default\.weight is \(4, 32\), by 2, not"):
            engine.load_adapter(wrong)
    engine.close()
