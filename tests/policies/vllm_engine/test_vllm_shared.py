"""Engines of several runs over one vLLM: versions of one number, each run's own adapter."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm_parts import (
    BOTH,
    CONTEXT,
    STOP,
    VOCAB,
    full_logprobs,
    make_adapter,
    make_model,
    prompt_of,
    request_of,
)

from agentpeft.policies.engines.vllm.start import start_process
from agentpeft.policies.errors import EngineError

pytestmark = pytest.mark.slow


def adapter_of(run, version):
    return replace(make_adapter(10 * run + version), version=version)


@pytest.fixture(scope="module")
def process(vllm, tmp_path_factory):
    """Has room for the adapters of two runs, two versions each."""
    folder = tmp_path_factory.mktemp("model")
    make_model().save_pretrained(folder)
    process = start_process(folder, replace(BOTH["native"], num_adapters=4))
    yield process
    process.close()


@pytest.fixture
def engines(process):
    from agentpeft.policies.engines.vllm.engine import VllmEngine

    own = replace(BOTH["native"], num_adapters=2)
    made = [VllmEngine(process, [STOP], own, owns_process=False) for _ in range(2)]
    yield made
    for engine in made:
        engine.close()


def play(engines, requests):
    """The completions of the same requests by each engine, all at once."""

    async def gather():
        asked = [engine.generate(request) for request in requests for engine in engines]
        return await asyncio.gather(*asked)

    sessions = [request.session for request in requests]
    for engine in engines:
        engine.update_sessions(opened=sessions)
    found = asyncio.run(gather())
    for engine in engines:
        engine.update_sessions(closed=sessions)
    return [found[number :: len(engines)] for number in range(len(engines))]


def difference(adapter, request, completion):
    ids = np.concatenate([request.prompt_ids, completion.token_ids])
    expected = full_logprobs(adapter, ids)[len(request.prompt_ids) - 1 :]
    return np.abs(completion.logprobs - expected).max()


def test_runs_with_equal_versions_sessions_and_prompts_have_their_own_adapters(engines):
    for version in (1, 2, 3):  # the first one's slot is filled again
        adapters = [adapter_of(run, version) for run in (0, 1)]
        for engine, adapter in zip(engines, adapters, strict=True):
            ack = engine.load_adapter(adapter)
            assert (ack.version, ack.sha256) == (version, adapter.sha256)
        requests = [request_of(f"s{n}", seed=(n,), max_new_tokens=40) for n in range(6)]
        for adapter, own in zip(adapters, play(engines, requests), strict=True):
            assert {completion.adapter_version for completion in own} == {version}
            assert (
                max(difference(adapter, *pair) for pair in zip(requests, own, strict=True)) < 1e-4
            )


def test_a_runs_adapter_is_loaded_while_the_others_requests_are_under_way(engines):
    first, second = engines
    first.load_adapter(adapter_of(0, 1))
    request = request_of("long", max_new_tokens=100)

    async def load_meanwhile():
        first.update_sessions(opened=["long"])
        playing = asyncio.ensure_future(first.generate(request))
        await asyncio.sleep(0.01)
        await asyncio.to_thread(second.load_adapter, adapter_of(1, 1))
        assert not playing.done()
        return await playing

    assert difference(adapter_of(0, 1), request, asyncio.run(load_meanwhile())) < 1e-4
    first.update_sessions(closed=["long"])


@pytest.mark.long
def test_a_llama_is_scored_while_others_play(vllm, tmp_path):
    """vLLM has LoRA on its output layer, whose kernel for CPUs takes no prompt beside others."""
    from agentpeft.policies.engines.vllm.engine import VllmEngine

    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    limits = {"vocab_size": VOCAB, "max_position_embeddings": CONTEXT}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**sizes, **heads, **limits)).save_pretrained(tmp_path)
    process = start_process(tmp_path, replace(BOTH["native"], num_adapters=2))
    own = replace(BOTH["native"], num_adapters=1)
    first, second = [VllmEngine(process, [STOP], own, owns_process=False) for _ in range(2)]
    for run, engine in enumerate((first, second)):
        engine.load_adapter(adapter_of(run, 1))
    prompts = [prompt_of(length) for length in (10, 20, 30)]
    requests = [request_of(f"s{n}", seed=(n,), max_new_tokens=100) for n in range(4)]

    async def score_meanwhile():
        alone = await second.score(prompts)
        first.update_sessions(opened=[request.session for request in requests])
        playing = asyncio.ensure_future(asyncio.gather(*map(first.generate, requests)))
        await asyncio.sleep(0.01)
        beside = await second.score(prompts)
        assert not playing.done()
        await playing
        return alone, beside

    for alone, beside in zip(*asyncio.run(score_meanwhile()), strict=True):
        assert np.abs(alone - beside).max() < 1e-5
    process.close()


@pytest.mark.long
def test_an_engine_that_is_closed_leaves_its_slots_to_the_next(engines, process):
    from agentpeft.policies.engines.vllm.engine import VllmEngine

    first, second = engines
    for version in (1, 2):
        for run, engine in enumerate(engines):
            engine.load_adapter(adapter_of(run, version))
    first.close()
    with pytest.raises(EngineError, match="closed"):
        play([first], [request_of()])
    own = replace(BOTH["native"], num_adapters=2)
    third = VllmEngine(process, [STOP], own, owns_process=False)
    for version in (1, 2):
        third.load_adapter(adapter_of(2, version))
    request = request_of()
    (one,), (other,) = play([second, third], [request])
    assert difference(adapter_of(1, 2), request, one) < 1e-4
    assert difference(adapter_of(2, 2), request, other) < 1e-4
    third.close()


@pytest.mark.long
def test_an_adapter_that_does_not_fit_takes_no_slot(engines):
    first, second = engines
    wide = replace(make_adapter(7, rank=16), version=1)
    for _ in range(5):
        with pytest.raises(EngineError):
            first.load_adapter(wide)
    assert first.load_adapter(adapter_of(0, 2)).version == 2
    assert second.load_adapter(adapter_of(1, 1)).version == 1
