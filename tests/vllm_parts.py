"""A tiny saved model, adapters for it, and what transformers says of them."""

import asyncio
from dataclasses import replace

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.engines.fusing import merged_state
from agentpeft.policies.engines.vllm.settings import VllmSettings
from agentpeft.policies.messages import GenerationRequest

STOP, VOCAB, CONTEXT = 39, 40, 128
SETTINGS = VllmSettings("fused", "float32", CONTEXT, 32, 8, 1 << 26, num_threads=1)
BOTH = {way: replace(SETTINGS, serving=way) for way in ("fused", "native")}
LAYERS = [f"self_attn.{name}_proj" for name in "qkvo"] + ["mlp.up_proj", "mlp.down_proj"]


def make_model(**shape):
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 64}
    config = Qwen2Config(
        **sizes,
        **heads,
        **shape,
        vocab_size=VOCAB,
        max_position_embeddings=CONTEXT,
        dtype=torch.float32,
    )
    model = Qwen2ForCausalLM(config)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.2)  # far from uniform, biases too
    return model.train(False)


def make_adapter(number, scale=0.1, rank=4, layers=LAYERS):
    """An adapter of some layers only, with a B that is far from zero."""
    rng, state, weights = np.random.default_rng(number), make_model().state_dict(), {}
    for name in [f"model.layers.{i}.{layer}" for i in range(2) for layer in layers]:
        rows, columns = state[f"{name}.weight"].shape
        for part, shape in (("A", (rank, columns)), ("B", (rows, rank))):
            value = rng.normal(0, scale, shape).astype(np.float32)
            weights[f"base_model.model.{name}.lora_{part}.weight"] = value
    return make_version(number, "run", weights, 2.0)


def full_logprobs(adapter, ids, temperature=1.0):
    """Of every id but the first, by one plain forward pass of transformers."""
    model = make_model()
    model.load_state_dict(merged_state(model.state_dict(), adapter)[0], strict=False)
    with torch.no_grad():
        logits = model(torch.tensor(ids)[None]).logits[0, :-1].float() / temperature
    return logits.log_softmax(-1).numpy()[np.arange(len(ids) - 1), ids[1:]]


def prompt_of(length, seed=0):
    return np.random.default_rng(seed).integers(0, STOP, length)


def ask(engine, *requests):
    """Completions of one wave of requests, of sessions that are open for it."""
    sessions = [request.session for request in requests]
    engine.update_sessions(opened=sessions)

    async def gather():
        return await asyncio.gather(*(engine.generate(request) for request in requests))

    try:
        return asyncio.run(gather())
    finally:
        engine.update_sessions(closed=sessions)


def request_of(name="a", length=20, **fields):
    return GenerationRequest(name, prompt_of(length), **{"seed": (0,), **fields})
