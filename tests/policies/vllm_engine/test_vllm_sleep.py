"""vLLM's engine sleeps: its cache's memory is given back, and it wakes whatever it is asked."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from process_parts import children_of, wait_until
from vllm_parts import SETTINGS, ask, full_logprobs, make_adapter, prompt_of, request_of

from agentpeft.policies.errors import EngineError

CACHE_KIB = SETTINGS.kv_cache_bytes >> 10
NEXT = {
    "sample": lambda engine: ask(engine, request_of()),
    "score": lambda engine: asyncio.run(engine.score([prompt_of(30)])),
    "load": lambda engine: engine.load_adapter(make_adapter(2)),
    "sleep": lambda engine: engine.sleep(),
}


def resident_kib():
    """Of vLLM's process, the greatest of this one's children."""
    lines = [Path(f"/proc/{pid}/status").read_text() for pid in children_of(os.getpid())]
    return max(int(text.split("VmRSS:")[1].split()[0]) for text in lines if "VmRSS:" in text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", ["fused", pytest.param("native", marks=pytest.mark.long)], indirect=True
)
def test_the_memory_of_the_cache_is_given_back(engine):
    """All of it is resident at first, since vLLM has written zeros."""
    engine.load_adapter(make_adapter(1))
    awake_kib = resident_kib()
    engine.sleep()
    assert wait_until(lambda: awake_kib - resident_kib() > 0.9 * CACHE_KIB)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", NEXT)
def test_whatever_it_is_asked_wakes_it_and_is_of_the_right_weights(engine, name):
    adapter = make_adapter(1)
    engine.load_adapter(adapter)
    (before,) = ask(engine, request_of(length=50))
    engine.sleep()
    NEXT[name](engine)
    served = make_adapter(2) if name == "load" else adapter
    (completion,) = ask(engine, request_of(length=50))
    assert name == "load" or completion.token_ids.tolist() == before.token_ids.tolist()
    ids = np.concatenate([prompt_of(50), completion.token_ids])
    expected = full_logprobs(served, ids)
    assert np.abs(completion.logprobs - expected[49:]).mean() < 1e-4
    (scores,) = asyncio.run(engine.score([ids]))
    assert np.abs(scores - expected).mean() < 1e-4


@pytest.mark.long
@pytest.mark.slow
def test_many_that_ask_at_once_wake_it_once(engine):
    adapter = make_adapter(4)
    engine.load_adapter(adapter)
    requests = [request_of(f"{i}", 10 + i, seed=(i,), max_new_tokens=8) for i in range(12)]
    before = [c.token_ids.tolist() for c in ask(engine, *requests)]
    engine.sleep()
    assert [c.token_ids.tolist() for c in ask(engine, *requests)] == before


@pytest.mark.long
@pytest.mark.slow
def test_it_does_not_sleep_while_requests_are_under_way(engine):
    engine.load_adapter(make_adapter(5))
    engine.update_sessions(opened=["a"])

    async def play():
        asked = asyncio.create_task(engine.generate(request_of(max_new_tokens=90)))
        await asyncio.sleep(0.01)
        with pytest.raises(EngineError, match="under way"):
            engine.sleep()
        completion = await asked
        scored = asyncio.create_task(engine.score([prompt_of(100)] * 32))
        while not engine._process._num_under_way:
            await asyncio.sleep(0)
        with pytest.raises(EngineError, match="under way"):
            engine.sleep()
        return completion, await scored

    completion, scores = asyncio.run(play())
    assert len(completion.token_ids) and [len(each) for each in scores] == [99] * 32
    engine.update_sessions(closed=["a"])


@pytest.mark.long
@pytest.mark.slow
def test_memory_that_cannot_be_given_back_or_taken_is_an_engines_error(engine, monkeypatch):
    engine.load_adapter(make_adapter(6))

    async def fail():
        raise Exception("Call to wake_up method failed: CUDA out of memory")

    engine.sleep()
    with monkeypatch.context() as patch:
        patch.setattr(engine._process._llm, "wake_up", fail)
        with pytest.raises(EngineError, match="out of memory"):
            ask(engine, request_of())
    assert ask(engine, request_of())[0].adapter_version == 6
    with monkeypatch.context() as patch:
        patch.setattr(engine._process._llm, "sleep", fail)
        with pytest.raises(EngineError, match="out of memory"):
            engine.sleep()
    assert ask(engine, request_of())[0].adapter_version == 6


@pytest.mark.parametrize("sleeps", [True, False])
def test_on_a_gpu_memory_that_can_be_given_back_is_asked_for(tmp_path, sleeps):
    own = replace(SETTINGS, gpu_share=0.5, sleeps=sleeps)
    assert own.engine_args(tmp_path)["enable_sleep_mode"] is sleeps
    assert "enable_sleep_mode" not in SETTINGS.engine_args(tmp_path)
