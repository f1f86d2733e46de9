"""Merging: what is written, what is refused, and that both checks find what is wrong."""

import json
import re
import shutil

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_run import ANOTHER_MODEL, make_run
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentpeft.launch.evaluate import main as evaluate
from agentpeft.launch.evaluating import merging
from agentpeft.launch.merge import main
from agentpeft.launch.run.run_folder import find_adapter, shown
from agentpeft.launch.train import main as train

IDS = torch.arange(4, 40)[None]
QUERY = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTPEFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture
def merged(run_dir, tmp_path, capsys):
    """A merged model's folder, and what was said of it."""
    assert main([str(run_dir), "--output", str(tmp_path / "merged")]) == 0
    return tmp_path / "merged", json.loads(capsys.readouterr().out.splitlines()[-1])


def base_of(run_dir):
    config = json.loads((find_adapter(run_dir) / "adapter_config.json").read_text("utf-8"))
    return config["base_model_name_or_path"]


@torch.no_grad()
def logits(model):
    return model(IDS).logits


def test_merged_model_and_adapter_load_in_plain_transformers_and_agree(run_dir, merged):
    base = AutoModelForCausalLM.from_pretrained(base_of(run_dir))
    alone = logits(base)
    pair = logits(PeftModel.from_pretrained(base, find_adapter(run_dir)))
    found = logits(AutoModelForCausalLM.from_pretrained(merged[0]))
    assert torch.allclose(found, pair, atol=1e-4)
    assert not torch.allclose(found, alone, atol=1e-1)
    tokenizer = AutoTokenizer.from_pretrained(merged[0])
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(base_of(run_dir)).chat_template


def test_the_report_has_differences_and_sizes(merged):
    report = merged[1]
    assert report["agrees"] and report["max_logprob_difference"] < 1e-4
    assert report["adapter_effect"] > 0.1 and report["unmerge_error"] < 1e-6
    assert report["num_changed_weights"] == 2 * 7
    sizes = report["size_mib"]
    weights = sizes["merged"] - sum(p.stat().st_size for p in merged[0].glob("*.json")) / 2**20
    assert sizes["adapter"] < sizes["base"] == pytest.approx(weights, rel=0.05)


def test_bfloat16_halves_the_size(run_dir, merged, tmp_path, capsys):
    float_size = merged[1]["size_mib"]["base"]
    assert main([str(run_dir), "--output", str(tmp_path / "half"), "--dtype", "bfloat16"]) == 0
    weights = load_file(tmp_path / "half" / "model.safetensors")
    assert {w.dtype for w in weights.values()} == {torch.bfloat16}
    sizes = json.loads(capsys.readouterr().out.splitlines()[-1])["size_mib"]
    assert sizes["base"] == pytest.approx(0.5 * float_size, rel=0.01)


def test_the_reverse_check_passes_for_a_merged_model_only(run_dir, merged, capsys):
    command = [str(run_dir), "--check", str(merged[0])]
    assert main(command) == 0
    path = merged[0] / "model.safetensors"
    weights = load_file(path)
    weights[QUERY][0, 0] += 1e-3
    save_file(weights, path, {"format": "pt"})
    assert main(command) == 1
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    largest = weights[QUERY].abs().max().item()
    assert report["unmerge_error"] == pytest.approx(1e-3 / largest, rel=0.01)


def test_a_model_without_the_adapter_fails_the_check(run_dir, capsys):
    assert main([str(run_dir), "--check", base_of(run_dir)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["max_logprob_difference"] == pytest.approx(report["adapter_effect"], rel=1e-5)


def wrong_base(run_dir, folder, change):
    """Returns a copy of the base with other weights, or another name alone."""
    shutil.copytree(base_of(run_dir), folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    change(config)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return str(folder)


def test_a_wrong_base_is_refused(run_dir, tmp_path, capsys):
    base = wrong_base(run_dir, tmp_path / "b", lambda c: c.update(agentpeft_fingerprint="other"))
    output = tmp_path / "merged"
    assert main([str(run_dir), "--base", base, "--same-base", "--output", str(output)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: wrong base: the adapter") and base in line
    assert not output.exists()


def test_a_base_of_another_name_needs_trust(run_dir, tmp_path, capsys):
    base = wrong_base(run_dir, tmp_path / "b", lambda c: c.pop("agentpeft_fingerprint"))
    command = [str(run_dir), "--base", base, "--output", str(tmp_path / "merged")]
    assert main(command) == 2
    assert "wrong base" in capsys.readouterr().err
    assert main([*command, "--same-base"]) == 0


def test_an_adapter_of_other_shapes_is_refused(run_dir, tmp_path, capsys):
    adapter = tmp_path / "adapter"
    shutil.copytree(find_adapter(run_dir), adapter)
    path = adapter / "adapter_model.safetensors"
    save_file({n: w[:, :1].contiguous() for n, w in load_file(path).items()}, path)
    assert main([str(adapter), "--output", str(tmp_path / "a" / "merged")]) == 1
    assert "does not fit" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_a_merge_that_fails_names_the_folder_that_was_asked_for(
    run_dir, tmp_path, capsys, monkeypatch
):
    def check(settings, adapter, merged, is_trusted):
        return {"agrees": False, "merged": shown(merged)}

    monkeypatch.setattr(merging, "check_merged", check)
    monkeypatch.chdir(tmp_path)
    assert main([str(run_dir), "--output", "merged"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not the same policy" in line
    assert "'merged': 'merged'" in line
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "content"),
    [("model.safetensors", b"junk"), ("config.json", b"{}"), ("tokenizer.json", b"")],
)
def test_a_damaged_merged_model_is_one_line(run_dir, merged, capsys, name, content):
    folder, _ = merged
    (folder / name).write_bytes(content)
    assert main([str(run_dir), "--check", str(folder)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{folder} is no model: " in line
    assert main([str(run_dir), "--check", "nowhere"]) == 2


def test_a_merged_model_has_the_bases_tokenizer_or_none(run_dir, merged, capsys):
    folder, _ = merged
    text = (folder / "tokenizer.json").read_text("utf-8")
    vocabulary = json.loads(text)
    words = vocabulary["model"]["vocab"]
    first, second = sorted(words, key=words.get)[100:102]
    words[first], words[second] = words[second], words[first]
    (folder / "tokenizer.json").write_text(json.dumps(vocabulary), "utf-8")
    assert main([str(run_dir), "--check", str(folder)]) == 1
    assert "has another tokenizer than the base" in capsys.readouterr().err
    for path in folder.glob("*token*"):
        path.unlink()
    assert main([str(run_dir), "--check", str(folder)]) == 0


def rename(weights):
    return {name.replace("layers", "blocks"): weight for name, weight in weights.items()}


DAMAGES = {
    "names of another model": (rename, "blocks.* is not in this model"),
    "one lacks": (lambda w: {n: w[n] for n in sorted(w)[1:]}, "files lack .*lora_A.weight"),
    "NaN": (lambda w: {n: weight * float("nan") for n, weight in w.items()}, "NaN or infinity"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_adapter_that_is_none_of_the_bases_is_neither_merged_nor_played(
    run_dir, tmp_path, capsys, damage
):
    change, message = DAMAGES[damage]
    adapter = shutil.copytree(find_adapter(run_dir), tmp_path / "adapter")
    path = adapter / "adapter_model.safetensors"
    save_file(change(load_file(path)), path, {"format": "pt"})
    assert main([str(adapter), "--output", str(tmp_path / "merged")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line) and str(adapter) in line
    assert not (tmp_path / "merged").exists()
    config = str(run_dir / "config.toml")
    words = ["--adapter", str(adapter), "--output", str(tmp_path / "played")]
    assert evaluate([config, "evaluation.num_tasks=1", *words]) == 1
    assert re.search(message, capsys.readouterr().err)


KINDS = {
    "DoRA": {"use_dora": True},
    "biases": {"lora_bias": True},
    "embeddings": {"target_modules": ["q_proj", "embed_tokens"]},
    "tokens": {"trainable_token_indices": [5, 6]},
    "head": {"modules_to_save": ["lm_head"]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_training_advises_to_merge_is_merged(run_dir, tmp_path, capsys, kind):
    base = AutoModelForCausalLM.from_pretrained(base_of(run_dir))
    options = {"target_modules": ["q_proj"], "task_type": "CAUSAL_LM"} | KINDS[kind]
    model = get_peft_model(base, LoraConfig(**options))
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter) * parameter.requires_grad
    model.eval().save_pretrained(tmp_path / "adapter")
    words = [f"model.name={tmp_path / 'adapter'}", f"output.dir={tmp_path}", *ANOTHER_MODEL]
    assert train([str(run_dir / "config.toml"), *words]) == 2
    assert "into its base (agentpeft merge)" in capsys.readouterr().err
    merged = str(tmp_path / "merged")
    assert main([str(tmp_path / "adapter"), "--output", merged]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["agrees"] and report["adapter_effect"] > 0.01
    assert report["num_changed_weights"] >= 2
    assert torch.allclose(
        logits(AutoModelForCausalLM.from_pretrained(merged)), logits(model), atol=1e-4
    )
    assert main([str(tmp_path / "adapter"), "--check", merged]) == 0
    assert main([str(tmp_path / "adapter"), "--check", base_of(run_dir)]) == 1


@pytest.mark.parametrize("kind", ["nothing", "existing"])
def test_wrong_input_is_one_line_and_status_2(run_dir, tmp_path, capsys, kind):
    words = [str(tmp_path)] if kind == "nothing" else [str(run_dir), "--output", str(tmp_path)]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert ("no adapter_config.json" if kind == "nothing" else "exists") in line
