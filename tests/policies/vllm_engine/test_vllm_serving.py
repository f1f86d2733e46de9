"""What vLLM serves is what transformers computes, for every adapter version and in both ways.

One engine of each kind for the whole file; the tests run in their order.
"""

import asyncio

import numpy as np
import pytest
from vllm_parts import ask, full_logprobs, make_adapter, prompt_of, request_of

from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import GenerationRequest, StopReason


def test_without_an_adapter_nothing_is_served(engine):
    with pytest.raises(EngineError, match="no adapter"):
        ask(engine, request_of())


@pytest.mark.parametrize("number", [1, 2, 3])
def test_each_version_is_received_served_and_scored(engine, number):
    adapter = make_adapter(number)
    ack = engine.load_adapter(adapter)
    assert (ack.version, ack.sha256) == (number, adapter.sha256)
    assert engine.served_effect == pytest.approx(1, abs=1e-4)
    (completion,) = ask(engine, request_of(length=70, temperature=0.7, max_new_tokens=40))
    ids = np.concatenate([prompt_of(70), completion.token_ids])  # the same prompt each time
    expected = full_logprobs(adapter, ids, 0.7)[69:]
    assert completion.adapter_version == number
    assert np.abs(completion.logprobs - expected).mean() < 1e-4
    for part, scores in zip(
        parts := [ids, ids[:20]], asyncio.run(engine.score(parts)), strict=True
    ):
        assert np.abs(scores - full_logprobs(adapter, part)).mean() < 1e-4


def test_an_adapter_of_other_layers_leaves_nothing_of_the_last_one(engine):
    adapter = make_adapter(4, layers=["mlp.gate_proj", "self_attn.k_proj"])
    engine.load_adapter(adapter)
    ids = prompt_of(50)
    (scores,) = asyncio.run(engine.score([ids]))
    assert np.abs(scores - full_logprobs(adapter, ids)).mean() < 1e-4


def test_many_sessions_play_turns_at_once(engine):
    adapter = make_adapter(5)
    engine.load_adapter(adapter)
    engine.update_sessions(opened=[f"s{index}" for index in range(100)])

    async def play(index):
        ids = prompt_of(5 + index % 7, index)
        for turn in range(2):
            own = GenerationRequest(f"s{index}", ids, (index, turn), 1.0, 3 + index % 5)
            completion = await engine.generate(own)
            expected = full_logprobs(adapter, np.concatenate([ids, completion.token_ids]))
            found = np.abs(completion.logprobs - expected[len(ids) - 1 :])
            ids = np.concatenate([ids, completion.token_ids, prompt_of(1 + index % 4, turn)])
        return found.mean()

    async def gather():
        return await asyncio.gather(*(play(index) for index in range(100)))

    assert max(asyncio.run(gather())) < 1e-4
    engine.update_sessions(closed=[f"s{index}" for index in range(100)])


def test_a_sample_follows_from_its_seed_and_not_from_its_batch(engine):
    requests = [request_of(f"{i}", 10 + i, seed=(i, 7), max_new_tokens=8) for i in range(12)]
    together = ask(engine, *requests)
    alone = [ask(engine, request)[0] for request in requests]
    assert [c.token_ids.tolist() for c in together] == [c.token_ids.tolist() for c in alone]
    (other,) = ask(engine, request_of("x", 10, seed=(99,), max_new_tokens=8))
    assert other.token_ids.tolist() != alone[0].token_ids.tolist()


@pytest.mark.parametrize("change", ["rename", "shape", "lost B"])
def test_what_does_not_fit_is_refused_and_then_nothing_is_served(engine, change):
    weights = dict(make_adapter(6).weights)
    if change == "rename":
        weights = {name.replace("q_proj", "x_proj"): w for name, w in weights.items()}
    elif change == "shape":
        weights = {n: w[:-1] if n.endswith("lora_B.weight") else w for n, w in weights.items()}
    else:
        weights.pop(next(name for name in weights if name.endswith("lora_B.weight")))
    with pytest.raises(EngineError, match=r"fit together|_proj"):
        engine.load_adapter(make_version(6, "run", weights, 2.0))
    with pytest.raises(EngineError, match="no adapter"):
        ask(engine, request_of())
    engine.load_adapter(make_adapter(7))
    assert ask(engine, request_of())[0].adapter_version == 7


def test_temperature_zero_is_greedy_with_logprobs_of_temperature_one(engine):
    adapter = make_adapter(8)
    engine.load_adapter(adapter)
    twice = ask(engine, *(request_of(n, temperature=0.0, seed=(i,)) for i, n in enumerate("ab")))
    assert twice[0].token_ids.tolist() == twice[1].token_ids.tolist()
    ids = np.concatenate([prompt_of(20), twice[0].token_ids])
    expected = full_logprobs(adapter, ids)[19:]
    assert np.abs(twice[0].logprobs - expected).mean() < 1e-4


def test_every_way_to_end_is_named(engine):
    sampled = [ask(engine, request_of(seed=(i,), max_new_tokens=60))[0] for i in range(8)]
    stopped = [c for c in sampled if c.stop_reason is StopReason.STOP_TOKEN]
    assert stopped and all(c.token_ids[-1] == 39 and 39 not in c.token_ids[:-1] for c in stopped)
    cases = [(20, 1, 1, "max_new_tokens"), (126, 5, 2, "context_full"), (128, 5, 0, "context_full")]
    for length, limit, num_tokens, reason in cases:
        for seed in range(4):
            own = request_of("b", length, seed=(seed,), max_new_tokens=limit)
            (completion,) = ask(engine, own)
            if completion.stop_reason is not StopReason.STOP_TOKEN:
                assert (len(completion.token_ids), completion.stop_reason) == (num_tokens, reason)
