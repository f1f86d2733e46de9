"""Turns that are interrupted for a new adapter: what each has, and who sampled it."""

import time
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from asking import Asking
from vllm_parts import full_logprobs, make_adapter, request_of

from agentpeft.policies.loop.algorithm import Algorithm
from agentpeft.policies.messages import StopReason
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides

pytestmark = pytest.mark.slow
ADAPTERS = {number: make_adapter(number) for number in (1, 2, 3)}
LONG = {"max_new_tokens": 90, "length": 20}


def until_sampled(engine, number):
    """Waits until each of so many requests has three tokens."""
    states = engine._process._llm.output_processor.request_states
    while sum(len(each.detokenizer.output_token_ids) > 2 for each in [*states.values()]) < number:
        time.sleep(0.001)


def check(requests, answers, adapter):
    for request, answer in zip(requests, answers, strict=True):
        ids = np.concatenate([request.prompt_ids, answer.token_ids])
        expected = full_logprobs(adapter, ids)[len(request.prompt_ids) - 1 :]
        np.testing.assert_allclose(answer.logprobs, expected, atol=1e-4)


@pytest.mark.parametrize(
    "engine", ["fused", pytest.param("native", marks=pytest.mark.long)], indirect=True
)
def test_turns_go_on_with_the_next_adapter_after_the_tokens_that_they_have(engine):
    """Fused and in slots; the second part is computed without the first one's keys and values."""
    requests = [request_of(f"s{n}", seed=(n,), **LONG) for n in range(6)]
    parts = []
    for number in (1, 2, 3):
        engine.load_adapter(ADAPTERS[number])
        asking = Asking(engine, requests)
        if number < 3:
            until_sampled(engine, 2)
            engine.interrupt()
        answers = asking.finish()
        assert {answer.adapter_version for answer in answers} == {number}
        check(requests, answers, ADAPTERS[number])
        parts.append(answers)
        requests = [
            replace(
                request,
                seed=(*request.seed, number),
                prompt_ids=np.concatenate([request.prompt_ids, answer.token_ids]),
                max_new_tokens=max(request.max_new_tokens - len(answer.token_ids), 1),
            )
            for request, answer in zip(requests, answers, strict=True)
        ]
    reasons = [{answer.stop_reason for answer in answers} for answers in parts]
    assert StopReason.INTERRUPTED in reasons[0] & reasons[1]
    assert StopReason.INTERRUPTED not in reasons[2]
    lengths = [len(a.token_ids) for a in parts[0] if a.stop_reason is StopReason.INTERRUPTED]
    assert 0 < max(lengths) < 90


@pytest.mark.parametrize(
    "engine", ["fused", pytest.param("native", marks=pytest.mark.long)], indirect=True
)
def test_a_request_that_has_just_been_asked_is_interrupted_too(engine):
    """vLLM itself ignores what it has not been told of."""
    engine.load_adapter(ADAPTERS[1])
    requests = [request_of(f"s{n}", seed=(n,), **LONG) for n in range(8)]
    asking = Asking(engine, requests)
    while not any(engine._sessions.values()):
        pass
    engine.interrupt()
    answers = asking.finish()
    # Those that were asked after the interruption go on
    assert StopReason.INTERRUPTED in {answer.stop_reason for answer in answers}
    check(requests, answers, ADAPTERS[1])
    engine.interrupt()  # nothing is under way
    asking = Asking(engine, [request_of("later", max_new_tokens=4)])
    assert asking.finish()[0].stop_reason is not StopReason.INTERRUPTED
    assert not engine._process._tickets


RUN = """
max_adapter_lag = 1
in_flight_updates = true
environment = {kwargs = {num_digits = 1, prompt = "compact", reward = {length_cost = 0.1}}}
num_threads = 1
tiny = {hidden_size = 64, num_layers = 1}
lora = {rank = 2}
training = {num_groups = 4, group_size = 3, lr = 1e-2}
evaluation = {num_tasks = 0}
[env_runners]
engine = "vllm"
kv_cache_gib = 0.05
max_new_tokens = 150
"""


@pytest.mark.long
@pytest.mark.parametrize("serving", ["fused", "native"])
def test_deliveries_of_a_run_are_proven_while_its_turns_are_interrupted(
    vllm, tmp_path, monkeypatch, serving
):
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path))
    settings = Settings(**with_overrides(tomllib.loads(RUN), [f"env_runners.serving={serving}"]))
    with Algorithm(settings, tmp_path / "run") as run:
        metrics = [run.train() for _ in range(5)]
    assert sum(m["sample/num_interruptions"] for m in metrics) > 0
    assert all(m["delivery/probe_max"] < 1e-4 for m in metrics)
    assert max(m["train/adapter_lag_max"] for m in metrics) >= 1
