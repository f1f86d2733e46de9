"""A run on a 4-bit base: the learner's is quantized, the engine serves its copy."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agentpeft.launch.evaluate import main as evaluate
from agentpeft.launch.run.metric_writers import read_metrics
from agentpeft.launch.train import main
from agentpeft.policies.models.base_files import find_served_base
from agentpeft.policies.models.load import load_base, load_served_base
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.models.tiny import build_tiny
from agentpeft.policies.settings.config import LoraSettings, Settings, TinySettings

CONFIG = """
experiment = "four_bits"
num_threads = 1
environment = {kwargs = {num_digits = 1, prompt = "compact"}}
model = {name = "./base", dtype = "nf4"}
env_runners = {num_env_runners = 0, max_new_tokens = 4}
training = {num_iterations = 3, num_groups = 4, group_size = 2, lr = 1e-2, entropy_coeff = 0.01}
fault_tolerance = {probe_interval = 1}
evaluation = {num_tasks = 4}
output = {loggers = ["episodes"]}
"""


@pytest.fixture
def folder(tmp_path):
    tiny = TinySettings(hidden_size=64, num_layers=2)
    base = build_tiny(tiny, ["1+2=3"])
    base.model.save_pretrained(tmp_path / "base")
    base.tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.mark.slow
def test_an_engine_s_copy_computes_what_the_learner_s_base_does(folder, bitsandbytes):
    quantized = Settings(model={"name": str(folder), "dtype": "nf4"})
    learner = attach_lora(load_base(quantized), LoraSettings()).model
    whole = load_base(Settings(model={"name": str(folder)})).model
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        models = whole, learner, load_served_base(quantized).model
        exact, four_bits, copy = (model(ids).logits for model in models)
    assert torch.equal(four_bits, copy)
    assert 1e-4 < (exact - copy).abs().max() < 1


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["transformers", "vllm"])
@pytest.mark.usefixtures("vllm")
def test_what_is_served_of_a_4_bit_base_is_proven_and_evaluated(
    engine, folder, monkeypatch, capsys, bitsandbytes
):
    monkeypatch.setenv("AGENTPEFT_CACHE", str(folder.parent / "cache"))
    monkeypatch.chdir(folder.parent)
    Path("four_bits.toml").write_text(CONFIG, "utf-8")
    assert main(["four_bits.toml", f"env_runners.engine={engine}"]) == 0
    (run_dir,) = Path("outputs/four_bits").iterdir()
    proofs = [row["delivery/probe_max"] for row in read_metrics(run_dir)[1:4]]
    assert all(proof < 1e-4 for proof in proofs)
    capsys.readouterr()
    assert evaluate([str(run_dir), "evaluation.num_tasks=2"]) == 0
    (found,) = json.loads(capsys.readouterr().out.splitlines()[-1])["policies"].values()
    assert found["num_episodes"] == 2


@pytest.mark.slow
def test_the_copy_for_vllm_is_made_once_for_each_state_of_the_base(
    tmp_path, folder, monkeypatch, bitsandbytes
):
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path / "cache"))
    settings = Settings(model={"name": str(folder), "dtype": "nf4"})
    with ThreadPoolExecutor(3) as pool:  # as the runners of one machine
        found = list(pool.map(find_served_base, [settings] * 3))
    (copy,) = {path for path, _ in found}
    weights = copy / "model.safetensors"
    made_ns = weights.stat().st_mtime_ns
    expected = load_served_base(settings).model.state_dict()
    assert all(torch.equal(expected[name], v) for name, v in load_file(weights).items())
    assert find_served_base(settings)[0] == copy
    assert weights.stat().st_mtime_ns == made_ns
    (folder / "model.safetensors").touch()
    assert find_served_base(settings)[0] != copy
