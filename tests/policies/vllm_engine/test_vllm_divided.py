"""A vLLM engine whose layers are divided over two processes, as over two GPUs."""

import asyncio
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from process_parts import children_of, seconds_until_gone
from vllm_parts import (
    BOTH,
    SETTINGS,
    STOP,
    ask,
    full_logprobs,
    make_adapter,
    prompt_of,
    request_of,
)

from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.engines.vllm.settings import divide_gpus
from agentpeft.policies.engines.vllm.start import start_engine
from agentpeft.policies.errors import EngineError

pytestmark = pytest.mark.timeout(900)  # an engine starts four processes
OWNER = """
import sys
from pathlib import Path
from agentpeft.policies.engines.vllm.settings import VllmSettings
from agentpeft.policies.engines.vllm.start import start_engine
settings = VllmSettings("fused", "float32", 128, 32, 8, 1 << 26, num_threads=1, num_parts=2)
engine = start_engine(Path(sys.argv[1]), [39], settings)
print("started", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("num_gpus", "share", "parts"), [(0.0, 0.0, 1), (0.5, 0.5, 1), (1.0, 1.0, 1), (4.0, 1.0, 4)]
)
def test_several_gpus_are_as_many_parts_and_one_gpu_may_be_shared(num_gpus, share, parts):
    assert divide_gpus(num_gpus) == (share, parts)


def test_parts_are_vllms_tensor_parallelism(folder):
    one, two = (replace(SETTINGS, num_parts=n).engine_args(folder) for n in (1, 2))
    assert (one["tensor_parallel_size"], two["tensor_parallel_size"]) == (1, 2)
    assert one["distributed_executor_backend"] == "uni"
    assert two["distributed_executor_backend"] == "mp"


@pytest.fixture(scope="module", params=BOTH)
def divided(vllm, folder, request):
    """An engine of each kind, over two processes."""
    engine = start_engine(folder, [STOP], replace(BOTH[request.param], num_parts=2))
    yield engine
    engine.close()


@pytest.mark.slow
@pytest.mark.long
def test_each_version_reaches_all_parts_and_is_served_and_scored(divided):
    for number in (1, 2):
        adapter = make_adapter(number)
        ack = divided.load_adapter(adapter)
        assert (ack.version, ack.sha256) == (number, adapter.sha256)
        assert divided.served_effect == pytest.approx(1, abs=1e-4)
        (completion,) = ask(divided, request_of(length=70, temperature=0.7, max_new_tokens=40))
        ids = np.concatenate([prompt_of(70), completion.token_ids])
        expected = full_logprobs(adapter, ids, 0.7)[69:]
        assert completion.adapter_version == number
        assert np.abs(completion.logprobs - expected).mean() < 1e-4
        (scores,) = asyncio.run(divided.score([ids]))
        assert np.abs(scores - full_logprobs(adapter, ids)).mean() < 1e-4


@pytest.mark.slow
@pytest.mark.long
def test_an_adapter_that_does_not_fit_is_refused_and_the_next_one_served(divided):
    weights = make_adapter(3).weights
    renamed = {name.replace("q_proj", "x_proj"): weight for name, weight in weights.items()}
    with pytest.raises(EngineError, match="x_proj"):
        divided.load_adapter(make_version(3, "run", renamed, 2.0))
    adapter = make_adapter(4, layers=["mlp.gate_proj", "self_attn.k_proj"])
    divided.load_adapter(adapter)
    ids = prompt_of(50)
    (scores,) = asyncio.run(divided.score([ids]))
    assert np.abs(scores - full_logprobs(adapter, ids)).mean() < 1e-4


@pytest.mark.slow
@pytest.mark.long
def test_all_parts_end_with_their_owner_when_it_is_killed(vllm, folder):
    words = [sys.executable, "-c", OWNER, str(folder)]
    owner = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout.readline() == "started\n"
    parts = children_of(owner.pid)
    assert len(parts) >= 3  # the engine, and a worker for each part
    owner.kill()
    owner.wait()
    assert seconds_until_gone(parts, 15) < 15
    owner.stdin.close()
    owner.stdout.close()
