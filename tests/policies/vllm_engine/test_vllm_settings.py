"""What a run's settings mean for vLLM, without starting it."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import pytest
from vllm_parts import CONTEXT, make_adapter

from agentpeft.envs import SettingsError
from agentpeft.policies.delivery.version import compute_hash
from agentpeft.policies.engines.vllm.cores import CoreClaim
from agentpeft.policies.engines.vllm.settings import VllmSettings, read_vllm_settings
from agentpeft.policies.engines.vllm.weight_files import read_adapter, write_adapter
from agentpeft.policies.errors import EngineError
from agentpeft.policies.models.base_files import find_base
from agentpeft.policies.models.load import load_base
from agentpeft.policies.settings.config import Settings

HOLD = """
import sys
from agentpeft.policies.engines.vllm.cores import CoreClaim
claim = CoreClaim(2, [90001, 90002, 90003])
print(sorted(claim.cores), flush=True)
sys.stdin.read()
"""


def read(folder, dtype="auto", num_threads=2, **own):
    limits, model = {"engine": "vllm", "max_new_tokens": 8, **own}, {"dtype": dtype}
    lora = {"rank": 24}
    settings = Settings(env_runners=limits, lora=lora, model=model, num_threads=num_threads)
    return read_vllm_settings(settings, folder)


def test_on_a_cpu_adapters_are_fused_into_float32_and_the_cache_is_small(folder):
    expected = VllmSettings("fused", "float32", CONTEXT, 256, 24, 1 << 30, 0.0, 2)
    assert read(folder) == expected
    own = read(folder, serving="native", kv_cache_gib=0.5, max_context_tokens=64, num_threads=1)
    assert own == VllmSettings("native", "float32", 64, 256, 24, 1 << 29, 0.0, 1)
    assert own.engine_args(folder)["max_lora_rank"] == 32


@pytest.mark.parametrize("serving", ["auto", "fused"])
def test_a_bfloat16_base_is_served_natively_unless_asked_otherwise(folder, serving):
    found = read(folder, dtype="bfloat16", serving=serving)
    expected = "native" if serving == "auto" else "fused"
    assert (found.serving, found.dtype) == (expected, "bfloat16")


def test_a_cache_larger_than_the_free_memory_is_refused(folder):
    with pytest.raises(SettingsError, match="GiB of memory that are free: lower it"):
        read(folder, kv_cache_gib=1e6)


@pytest.mark.parametrize("size", [16, 24, 144])
def test_heads_of_another_size_than_the_cpu_kernels_take_are_refused(size, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "odd")
    config = json.loads((folder / "config.json").read_text()) | {"head_dim": size}
    (tmp_path / "odd" / "config.json").write_text(json.dumps(config))
    with pytest.raises(SettingsError, match=rf"heads of 32, 48, .*, the model's have {size} \("):
        read(tmp_path / "odd")


def test_a_rank_without_a_slot_is_refused(folder):
    too_high = VllmSettings("native", "float32", CONTEXT, max_rank=513)
    with pytest.raises(SettingsError, match=r"up to 512, got 513.*'fused'"):
        too_high.engine_args(folder)
    fused = VllmSettings("fused", "float32", CONTEXT, max_rank=513)
    assert "max_lora_rank" not in fused.engine_args(folder)


def test_a_cache_of_given_size_needs_no_share_of_the_card_to_be_free_at_the_start():
    on_gpu = VllmSettings("native", "bfloat16", CONTEXT, gpu_share=0.5)
    assert on_gpu.engine_args("model")["gpu_memory_utilization"] == 0.01
    of_share = replace(on_gpu, kv_cache_bytes=None).engine_args("model")
    assert of_share["gpu_memory_utilization"] == 0.45
    assert "gpu_memory_utilization" not in replace(on_gpu, gpu_share=0.0).engine_args("model")


def test_only_a_cpu_takes_the_longest_conversation_in_one_step():
    for num_slots, of_cpu, of_gpu in ((256, 131_072, 8192), (10_000, 131_072, 10_000)):
        on_cpu = VllmSettings("native", "bfloat16", 131_072, num_slots)
        assert on_cpu.engine_args("model")["max_num_batched_tokens"] == of_cpu
        on_gpu = replace(on_cpu, gpu_share=1.0).engine_args("model")
        assert on_gpu["max_num_batched_tokens"] == of_gpu


def test_graphs_are_captured_for_full_slots_and_for_steps_with_prompts():
    on_cpu = VllmSettings("native", "bfloat16", CONTEXT, 100)
    assert "compilation_config" not in on_cpu.engine_args("model")
    for num_slots in (1, 100, 256, 2000):
        on_gpu = replace(on_cpu, gpu_share=0.5, max_concurrent=num_slots)
        found = on_gpu.engine_args("model")["compilation_config"]
        sizes = found["cudagraph_capture_sizes"]
        assert found.keys() == {"cudagraph_capture_sizes", "cudagraph_specialize_lora"}
        assert sizes == sorted(set(sizes)) and sizes[-1] == 512 and len(sizes) <= 25
        assert min(num_slots, 512) in sizes  # above the slots vLLM has no graph of a whole step
        # No step of the batches that are there is padded by more than half of it, but small ones
        pairs = list(pairwise(sizes))
        assert all(b <= max(1.5 * (a + 1), 16) for a, b in pairs if b <= num_slots)
        assert all(b - a <= 64 for a, b in pairs)


def test_adapter_files_carry_the_version_and_every_bit(tmp_path):
    adapter = make_adapter(7)
    write_adapter(adapter, tmp_path)
    found = read_adapter(tmp_path)
    assert (found.version, found.name, found.scaling) == (7, adapter.name, 2.0)
    assert compute_hash(found.weights) == found.sha256 == adapter.sha256


def test_a_truncated_adapter_file_is_an_error(tmp_path):
    write_adapter(make_adapter(7), tmp_path)
    weights = tmp_path / "adapter_model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1)
    with pytest.raises(EngineError, match="cannot be read"):
        read_adapter(tmp_path)


def test_cores_have_one_owner_until_it_is_killed():
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"[90001, 90002]\n"
        with closing(CoreClaim(1, [90001, 90002, 90003])) as claim:
            assert claim.cores == {90003}
            assert CoreClaim(1, [90003]).cores == set()
        assert CoreClaim(2, [90001, 90002, 90003]).cores == set()  # too few: none at all
        other.kill()
        other.wait()
    with closing(CoreClaim(3, [90001, 90002, 90003])) as claim:
        assert claim.cores == {90001, 90002, 90003}


def test_a_base_is_found_without_its_weights(folder, tmp_path):
    settings = Settings(
        tiny={"hidden_size": 32, "num_layers": 1},
        env_runners={"max_new_tokens": 8},
    )
    base = load_base(settings)
    path, tokenizer = find_base(settings)
    assert str(path) == base.name and tokenizer.get_vocab() == base.tokenizer.get_vocab()
    with pytest.raises(SettingsError, match="no folder of a model"):
        find_base(Settings(model={"name": str(tmp_path)}))
