"""The commands take what a run on all weights leaves: a model of its own in place of an adapter."""

import json
from contextlib import redirect_stdout
from io import StringIO

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_run import TINY
from transformers import AutoModelForCausalLM

from agentpeft.apps.lab import export
from agentpeft.launch import evaluate, merge, train
from agentpeft.launch.run.run_folder import find_adapter, read_start
from agentpeft.policies.models.tiny_cache import load_tiny

ALL = ("lora.rank=0", "training.lr=3e-3")


def call(main, *words):
    """Returns a command's status, and its last line."""
    printed = StringIO()
    with redirect_stdout(printed):
        status = main(list(map(str, words)))
    lines = printed.getvalue().splitlines()
    return status, json.loads(lines[-1]) if lines else None


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run's folder and last line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTPEFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        folder = tmp_path_factory.mktemp("run")
        config = folder / "tiny.toml"
        config.write_text(TINY, encoding="utf-8")
        status, summary = call(train.main, config, f"output.dir={folder}", *ALL)
        assert status == 0
        (run_dir,) = (folder / "tiny").iterdir()
        yield run_dir, summary


@torch.no_grad()
def logits(model):
    return model(torch.arange(4, 40)[None]).logits


def test_the_checkpoint_is_the_model_as_it_was_evaluated(run, tmp_path):
    run_dir, summary = run
    words = (run_dir, "--policy", "base", "--modes", "both", "--output", tmp_path / "out")
    status, found = call(evaluate.main, *words)
    assert status == 0 and list(found["policies"]) == ["checkpoint-000002", "base"]
    for name, moment in (("checkpoint-000002", "after"), ("base", "before")):
        rate = summary[moment]["success_rate"]
        assert found["policies"][name]["success_rate"] == rate
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text("utf-8"))["policies"] == {
        "checkpoint-000002": ["whole", str(find_adapter(run_dir))],
        "base": ["base", "tiny"],
    }


def test_merging_writes_the_weights_as_they_are(run, tmp_path):
    status, report = call(merge.main, run[0], "--output", tmp_path / "merged")
    assert status == 0 and report["agrees"] and report["max_logprob_difference"] == 0
    saved = load_file(find_adapter(run[0]) / "model.safetensors")
    written = load_file(tmp_path / "merged" / "model.safetensors")
    assert written.keys() == saved.keys()
    assert all(torch.equal(written[name], saved[name]) for name in saved)
    base = load_tiny(read_start([str(run[0] / "config.toml")], []).settings).model
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert not torch.allclose(logits(model), logits(base), atol=1e-2)


def test_merging_may_round_and_its_check_finds_other_weights(run, tmp_path):
    half = tmp_path / "half"
    status, _ = call(merge.main, run[0], "--output", half, "--dtype", "bfloat16")
    weights = load_file(half / "model.safetensors")
    assert status == 0 and {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert call(merge.main, run[0], "--check", half, "--dtype", "bfloat16")[0] == 0
    weights["model.norm.weight"] += 1
    save_file(weights, half / "model.safetensors", {"format": "pt"})
    assert call(merge.main, run[0], "--check", half, "--dtype", "bfloat16")[0] == 1


def test_a_whole_model_has_no_base_to_merge_into(run, tmp_path, capsys):
    output = tmp_path / "merged"
    assert merge.main([str(run[0]), "--base", "tiny", "--output", str(output)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is a whole model, not an adapter: leave out --base tiny" in line


def test_its_episodes_are_exported(run, tmp_path):
    path = tmp_path / "rows.jsonl"
    status, found = call(export.main, run[0], "--format", "sft", "--output", path)
    assert status == 0 and len(path.read_text("utf-8").splitlines()) == found["rows"] > 0


def test_another_run_starts_from_its_model(run, tmp_path):
    config = tmp_path / "next.toml"
    own = [line for line in TINY.splitlines() if not line.startswith(("tiny", "warm_start"))]
    config.write_text("\n".join(own), encoding="utf-8")
    model = f"model.name={find_adapter(run[0])}"
    status, summary = call(train.main, config, model, f"output.dir={tmp_path}", *ALL)
    assert status == 0
    assert summary["before"]["success_rate"] == run[1]["after"]["success_rate"]
