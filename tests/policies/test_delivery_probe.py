"""What an engine says of given tokens, and what is concluded from it at a delivery."""

import asyncio

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentpeft.policies.adapter_store import make_version
from agentpeft.policies.engines.transformers_engine import EngineSettings, TransformersEngine
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
