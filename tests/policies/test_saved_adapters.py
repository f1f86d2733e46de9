"""Adapters that PEFT itself has saved: each is what PEFT makes of it, or refused in one true line.

PEFT's own logits are the measure, also of what a merged model computes.
"""

import json
import math
import os
import re
import shutil
from functools import partial
from pathlib import Path

import peft
import pytest
import torch
from lora_parts import SMALL, logits
from peft.tuners.lora.config import BdLoraConfig, KasaConfig, MontecloraConfig, VeloraConfig
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from agentpeft.envs import SettingsError
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.models.load import load_base, load_served_base
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.models.lora.open_adapters import merge_adapter, open_adapter, open_adapters
from agentpeft.policies.models.tiny import build_tiny
from agentpeft.policies.settings.config import LoraSettings, Settings

QV = ["q_proj", "v_proj"]
LORA = LoraSettings(rank=4, alpha=8.0, target_modules=tuple(QV))
BASES = {"untied": (LlamaConfig, False), "tied": (Qwen2Config, True)}
"""Llama without biases and a Qwen2 with them, whose output layer shares the embeddings."""
PLAIN = {
    "plain": {},
    "names in full": {
        "target_modules": [f"model.layers.{n}.self_attn.{m}" for n in (0, 1) for m in QV]
    },
    "pattern": {"target_modules": r".*\.(q|v)_proj"},
    "gaussian": {"init_lora_weights": "gaussian"},
    "orthogonal": {"init_lora_weights": "orthogonal"},
    "eva": {"init_lora_weights": "eva", "eva_config": peft.EvaConfig()},
    "dropout": {"lora_dropout": 0.3},
}
"""What training goes on from."""
ONLY_MERGED = {
    "alpha_pattern": {"alpha_pattern": {"q_proj": 2}},
    "rank_pattern": {"rank_pattern": {"q_proj": 2}},
    "one layer": {"layers_to_transform": [1]},
    "first layer": {"layers_to_transform": 0},
    "excluded": {"exclude_modules": ["v_proj"]},
    "parameters": {"target_parameters": ["mlp.up_proj.weight"]},
    "DoRA": {"use_dora": True},
    "all biases": {"bias": "all"},
    "biases": {"bias": "lora_only"},
    "head": {"modules_to_save": ["lm_head"]},
    "embeddings": {"modules_to_save": ["embed_tokens"]},
    "embeddings and head": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "tied copies": {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    "norms": {"modules_to_save": ["norm"]},
    "tokens": {"trainable_token_indices": [5, 7]},
    "tokens of both": {"trainable_token_indices": {"embed_tokens": [5, 9], "lm_head": [5, 6]}},
    "on embeddings": {"target_modules": [*QV, "embed_tokens"]},
    "on head": {"target_modules": [*QV, "lm_head"]},
    "on both": {"target_modules": [*QV, "embed_tokens", "lm_head"]},
    "on both alike": {"target_modules": [*QV, "embed_tokens"], "ensure_weight_tying": True},
    "DoRA on embeddings": {"target_modules": [*QV, "embed_tokens"], "use_dora": True},
    "PiSSA": {"init_lora_weights": "pissa"},
    "OLoRA": {"init_lora_weights": "olora"},
    "MiCA": {"init_lora_weights": "mica"},
    "KaSA": {"kasa_config": KasaConfig()},
    "blocks": {"use_bdlora": BdLoraConfig(["q_proj"], ["v_proj"], 2)},
    "Monte Carlo": {"monteclora_config": MontecloraConfig()},
    "VeLoRA": {"velora_config": VeloraConfig(2)},
    "QA-LoRA": {"use_qalora": True},
}
"""What is evaluated and merged, and then trained as a model."""


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """A folder for each of `BASES`."""
    tokenizer, folders = build_tiny(SMALL, ["some text 12"]).tokenizer, {}
    for name, (config_class, is_tied) in BASES.items():
        folders[name] = tmp_path_factory.mktemp("bases") / name
        shape = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": len(tokenizer)}
        ends = {"eos_token_id": tokenizer.eos_token_id, "tie_word_embeddings": is_tied}
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config_class(**shape, **heads, **ends))
        for parameter in model.parameters():
            parameter.data += 0.15 * torch.randn_like(parameter)
        model.save_pretrained(folders[name])
        tokenizer.save_pretrained(folders[name])
    return folders


def train(folder, output, options=None, config_class=peft.LoraConfig, **saving):
    """Has PEFT make and save an adapter on a base; returns what it computes with it."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    if config_class is peft.LoraConfig:
        options = {"r": 4, "lora_alpha": 8, "target_modules": QV} | (options or {})
    torch.manual_seed(1)
    model = peft.get_peft_model(model, config_class(task_type="CAUSAL_LM", **options))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.eval().save_pretrained(output, **saving)
    return logits(model)


def load(name, load_model=load_base):
    return load_model(Settings(model={"name": str(name)}))


def start(adapter, lora=LORA):
    """Returns the policy with which training begins from an adapter."""
    return attach_lora(load(adapter), lora)


@pytest.mark.parametrize("base", [pytest.param("untied", marks=pytest.mark.slow), "tied"])
@pytest.mark.parametrize("options", (PLAIN | ONLY_MERGED).values(), ids=PLAIN | ONLY_MERGED)
def test_an_opened_adapter_computes_what_peft_does_and_so_does_the_merged_model(
    bases, tmp_path, base, options
):
    expected = train(bases[base], tmp_path / "adapter", options)
    alone = load(bases[base], load_served_base).model
    before = logits(alone)
    assert not torch.allclose(expected, before, atol=0.1)
    served = load(tmp_path / "adapter", load_served_base)
    opened = open_adapter(served, tmp_path / "adapter")
    assert torch.equal(logits(opened), expected) and torch.equal(logits(served.model), expected)
    assert torch.equal(logits(alone), before)  # it has the same weights
    merged = merge_adapter(opened)
    assert torch.allclose(logits(merged), expected, atol=2e-5)
    merged.save_pretrained(tmp_path / "merged")
    read, info = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert torch.allclose(logits(read), expected, atol=2e-5)
    assert not any(info.values())
    head, embeddings = (
        m.weight for m in (read.get_output_embeddings(), read.get_input_embeddings())
    )
    assert (head is embeddings) == (base == "tied" and torch.equal(head, embeddings))


@pytest.mark.parametrize("options", PLAIN.values(), ids=PLAIN)
def test_training_goes_on_from_plain_lora_however_its_layers_are_named(bases, tmp_path, options):
    expected = train(bases["tied"], tmp_path, options)
    policy = start(tmp_path)
    assert torch.equal(logits(policy.model), expected)
    with policy.reference():
        assert torch.equal(logits(policy.model), expected)


@pytest.mark.parametrize("options", ONLY_MERGED.values(), ids=ONLY_MERGED)
def test_what_cannot_be_trained_further_is_to_be_merged(bases, tmp_path, options):
    train(bases["tied"], tmp_path, options)
    with pytest.raises(
        SettingsError, match=r"merge .* into its base \(agentpeft merge\)"
    ) as caught:
        start(tmp_path)
    assert "\n" not in str(caught.value)


def test_biases_of_an_adapter_need_layers_that_have_biases(bases, tmp_path):
    for base in BASES:
        expected = train(bases[base], tmp_path / base, {"lora_bias": True})
        opened = open_adapter(load(tmp_path / base), tmp_path / base)
        assert torch.equal(logits(opened), expected)
        with pytest.raises(SettingsError, match="where its layers have biases, merge it"):
            start(tmp_path / base)
        if base == "tied":
            assert torch.allclose(logits(merge_adapter(opened)), expected, atol=2e-5)
        else:
            with pytest.raises(CheckpointError, match=r"no bias.*evaluate plays it unmerged"):
                merge_adapter(opened)


OTHER_KINDS = {
    peft.IA3Config: {"target_modules": QV, "feedforward_modules": []},
    peft.LoHaConfig: {"target_modules": QV},
    peft.LoKrConfig: {"target_modules": QV},
    peft.OFTConfig: {"target_modules": QV, "oft_block_size": 4},
    peft.VeraConfig: {"target_modules": QV, "r": 4},
    peft.AdaLoraConfig: {"target_modules": QV, "total_step": 9},
    peft.LNTuningConfig: {"target_modules": ["input_layernorm"]},
    peft.TrainableTokensConfig: {"token_indices": [5]},
    peft.PrefixTuningConfig: {"num_virtual_tokens": 3},
    peft.PromptTuningConfig: {"num_virtual_tokens": 3},
    peft.PromptEncoderConfig: {"num_virtual_tokens": 3},
}


def refusals(adapter):
    """Returns what opening an adapter, and training from it, are refused with."""
    messages = []
    for use in (lambda: open_adapter(load(adapter), adapter), partial(start, adapter)):
        with pytest.raises((SettingsError, CheckpointError)) as caught:
            use()
        messages.append(str(caught.value))
        assert "\n" not in messages[-1] and str(adapter) in messages[-1]
    return messages


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_other_kinds_than_lora_are_refused(bases, tmp_path, kind):
    train(bases["untied"], tmp_path, OTHER_KINDS[kind], kind)
    for message in refusals(tmp_path):
        assert "and only Lora is supported: merge it with PEFT" in message


@pytest.mark.parametrize(
    "options",
    [
        {"layer_replication": [(0, 2), (0, 2)]},
        {"alora_invocation_tokens": [5, 6]},
        {"init_lora_weights": "pissa_niter_4"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_its_files_do_not_restore_or_cannot_be_merged_is_refused(bases, tmp_path, options):
    train(bases["untied"], tmp_path, options)
    for message in refusals(tmp_path):
        assert f"has {next(iter(options))} = " in message
        assert "merge it into its base" not in message


@pytest.mark.parametrize("start_name", ["corda", "loftq", "lora_ga"])
def test_starts_that_have_changed_the_base_are_refused(bases, tmp_path, start_name):
    train(bases["untied"], tmp_path)
    edit_config(tmp_path, init_lora_weights=start_name)
    for message in refusals(tmp_path):
        assert start_name in message or "scipy" in message  # which PEFT needs for LoftQ's


def test_a_pissa_adapter_that_peft_has_converted_is_plain(bases, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(bases["untied"])
    options = {"r": 4, "lora_alpha": 8, "target_modules": QV, "init_lora_weights": "pissa"}
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options))
    model.peft_config["default"].init_lora_weights = True
    model.save_pretrained(tmp_path / "begin")
    model.peft_config["default"].init_lora_weights = "pissa"
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter) * parameter.requires_grad
    begin = str(tmp_path / "begin")
    model.save_pretrained(tmp_path / "end", path_initial_model_for_weight_conversion=begin)
    policy = start(tmp_path / "end", LORA.model_copy(update={"rank": 8, "alpha": 16.0}))
    assert torch.allclose(logits(policy.model), logits(model.eval()), atol=2e-5)


def edit_config(adapter, **changes):
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


def edit(adapter, change):
    """Has `change` edit the tensors of an adapter's file."""
    path = adapter / "adapter_model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, {"format": "pt"})


def rename(weights, old, new):
    for name in [name for name in weights if old in name]:
        weights[name.replace(old, new)] = weights.pop(name)


def spoil(weights, value, at=-1):
    weights[sorted(weights)[at]].view(-1)[-1] = value


DAMAGES = {
    "one lacks": (lambda w: w.pop(sorted(w)[0]), "lack|missing"),
    "one layer lacks": (lambda w: [w.pop(n) for n in [*w] if "layers.1." in n], "lack|missing"),
    "no B": (lambda w: [w.pop(n) for n in [*w] if "lora_B" in n], "lack|missing"),
    "none": (lambda w: w.clear(), "lack|missing"),
    "other names": (lambda w: rename(w, "layers", "blocks"), "not in this|missing"),
    "no prefix": (lambda w: rename(w, "base_model.model.", ""), "not in this|missing"),
    "names twice": (
        lambda w: w.update({f"x.{n}": t.clone() for n, t in w.items()}),
        "not in this m",
    ),
    "another model's layers": (lambda w: rename(w, "layers.1", "layers.7"), "not in this|missing"),
    "other modules": (lambda w: rename(w, "q_proj", "k_proj"), "not in this|missing"),
    "one more": (lambda w: w.update({"some.weight": torch.ones(2)}), "not in this|missing"),
    "wrong shapes": (
        lambda w: [w.update({n: t[:, :3].contiguous()}) for n, t in w.items()],
        "shape|size",
    ),
    "flat": (lambda w: [w.update({n: t.flatten()}) for n, t in w.items()], "shape|size"),
    "NaN": (lambda w: spoil(w, float("nan")), "has NaN or infinity in .*v_proj.lora_B"),
    **{
        f"{dtype} tensors": (
            lambda w, dtype=dtype: [w.update({n: t.to(dtype)}) for n, t in w.items()],
            f"as {dtype}, and weights are floating-point",
        )
        for dtype in (torch.int8, torch.uint8, torch.bool, torch.int64, torch.complex64)
    },
    "infinity": (lambda w: spoil(w, float("-inf"), 0), "has NaN or infinity in .*q_proj.lora_A"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_adapter_whose_tensors_are_not_its_own_is_refused(bases, tmp_path, damage):
    train(bases["untied"], tmp_path)
    change, message = DAMAGES[damage]
    edit(tmp_path, change)
    for refusal in refusals(tmp_path):
        assert re.search(message, refusal)


def test_biases_that_an_adapter_names_and_lacks_are_missed(bases, tmp_path):
    train(bases["tied"], tmp_path, {"bias": "lora_only"})
    edit(
        tmp_path,
        lambda w: w.pop(next(name for name in w if name.endswith("q_proj.base_layer.bias"))),
    )
    with pytest.raises(CheckpointError, match=r"files lack .*bias \(and 0 more\)"):
        open_adapter(load(tmp_path), tmp_path)


@pytest.mark.parametrize("name", ["head", "embeddings", "tokens", "DoRA", "on embeddings"])
def test_every_tensor_of_an_adapter_is_needed(bases, tmp_path, name):
    train(bases["untied"], tmp_path / "whole", ONLY_MERGED[name])
    names = list(load_file(tmp_path / "whole" / "adapter_model.safetensors"))
    for number, key in enumerate(names):
        if "base_layer" in key:
            continue  # PEFT saves the base's own embeddings beside those of an adapter
        adapter = shutil.copytree(tmp_path / "whole", tmp_path / str(number))
        edit(adapter, lambda weights, key=key: weights.pop(key))
        with pytest.raises(CheckpointError, match="does not fit: .*" + re.escape(key)):
            open_adapter(load(adapter), adapter)


def test_embeddings_of_ones_own_that_peft_saves_too_are_played(bases, tmp_path):
    expected = train(bases["untied"], tmp_path, {"target_modules": QV}, save_embedding_layers=True)
    opened = open_adapter(load(tmp_path), tmp_path)
    assert torch.equal(logits(opened), expected)
    edit(tmp_path, lambda w: w.update({n: 2 * t for n, t in w.items() if "lm_head" in n}))
    alone = load(bases["untied"], load_served_base).model
    doubled = open_adapter(load(tmp_path, load_served_base), tmp_path)
    assert torch.allclose(logits(doubled), 2 * expected, atol=1e-5)
    assert torch.equal(logits(alone), logits(load(bases["untied"]).model))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_adapters_of_other_types_are_read(bases, tmp_path, dtype):
    expected = train(bases["untied"], tmp_path)
    edit(tmp_path, lambda w: [w.update({n: t.to(dtype)}) for n, t in w.items()])
    for model in (open_adapter(load(tmp_path), tmp_path), start(tmp_path).model):
        assert torch.allclose(logits(model), expected, atol=0.05)


def test_a_pickled_adapter_is_read_in_evaluation_and_in_training(bases, tmp_path):
    expected = train(bases["untied"], tmp_path, safe_serialization=False)
    assert not (tmp_path / "adapter_model.safetensors").exists()
    for model in (open_adapter(load(tmp_path), tmp_path), start(tmp_path).model):
        assert torch.equal(logits(model), expected)


PICKLES = {
    "cut pickle": None,
    "code": Path("x"),
    "a list": [1],
    "no tensors": {"a": 1},
    "numbers as names": {1: torch.ones(1)},
}


@pytest.mark.parametrize("kind", ["in two files", "without weights", "cut", *PICKLES])
def test_weights_that_are_not_one_whole_file_are_refused(bases, tmp_path, kind):
    train(bases["untied"], tmp_path, safe_serialization=kind not in PICKLES)
    (path,) = tmp_path.glob("adapter_model.*")
    if kind == "in two files":
        weights = list(load_file(path).items())
        for number in (0, 1):
            part = tmp_path / f"adapter_model-0000{number + 1}-of-00002.safetensors"
            save_file(dict(weights[number::2]), part)
    if kind in ("in two files", "without weights"):
        path.unlink()
    elif kind in PICKLES and "cut" not in kind:
        torch.save(PICKLES[kind], path)
    else:
        path.write_bytes(path.read_bytes()[:-100])
    for refusal in refusals(tmp_path):
        assert "cannot be read" in refusal
        assert kind != "in two files" or "adapter_model-00001-of-00002.safetensors" in refusal


CONFIGS = {
    "another kind": {"peft_type": "NEW_LORA"},
    "no number": {"r": "four"},
    "no rank": {"r": 0},
    "another rank": {"r": 5},
    "another scale": {"lora_alpha": "8"},
    "no scale": {"lora_alpha": math.nan},
}


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_a_config_that_is_not_the_weights_is_refused(bases, tmp_path, changes):
    train(bases["untied"], tmp_path)
    edit_config(tmp_path, **changes)
    refusals(tmp_path)


@pytest.mark.parametrize("targets", [["nothing"], [], 5, "(", "nothing"])
def test_targets_that_the_base_has_not_are_refused(bases, tmp_path, targets):
    train(bases["untied"], tmp_path)
    edit_config(tmp_path, target_modules=targets)
    with pytest.raises(CheckpointError, match="does not fit"):
        open_adapter(load(tmp_path), tmp_path)


@pytest.mark.parametrize("where", ["base", "./base", "base/", "../base", "~/base", "linked"])
def test_a_base_is_found_by_a_relative_name_and_is_the_adapters(
    bases, tmp_path, monkeypatch, where
):
    adapter, base = tmp_path / "adapter", tmp_path / "base"
    shutil.copytree(bases["untied"], base)
    (tmp_path / "linked").symlink_to(base)
    expected = train(base, adapter)
    monkeypatch.setenv("HOME", str(tmp_path))
    edit_config(adapter, base_model_name_or_path=where)
    folders = [adapter] if where == "../base" else [tmp_path]  # of the adapter, and of the caller
    for folder in folders:
        monkeypatch.chdir(folder)
        for path in (adapter, Path(os.path.relpath(adapter))):
            assert torch.equal(logits(open_adapter(load(path), path)), expected)
            assert torch.equal(logits(start(path).model), expected)
    monkeypatch.chdir(tmp_path.parent)
    if where == "../base":
        assert torch.equal(logits(start(adapter).model), expected)


def test_another_base_says_what_to_do_where_it_may_be_the_same(bases, tmp_path):
    train(bases["untied"], tmp_path)
    edit_config(tmp_path, base_model_name_or_path="owner/name")
    with pytest.raises(SettingsError, match=r"wrong base.*owner/name.*--same-base"):
        open_adapter(load(bases["untied"]), tmp_path)
    open_adapter(load(bases["untied"]), tmp_path, is_trusted=True)
    settings = Settings(model={"name": str(bases["untied"]), "adapter": str(tmp_path)})
    with pytest.raises(SettingsError, match=r"owner/name.*name it so in its adapter_config\.json"):
        attach_lora(load_base(settings), LORA)


@pytest.mark.parametrize("name", ["DoRA", "head", "PiSSA", "biases", "tokens"])
def test_adapters_that_change_more_than_lora_layers_do_not_share_a_base(bases, tmp_path, name):
    train(bases["untied"], tmp_path / "one")
    train(bases["untied"], tmp_path / "other", ONLY_MERGED[name])
    with pytest.raises(SettingsError, match="several adapters on one base cannot"):
        open_adapters(load(bases["untied"]), [tmp_path / "one", tmp_path / "other"])


@pytest.mark.parametrize(
    "layers", [("lm_head", "q_proj"), ("embed_tokens",), ("q_proj", "embed_tokens")]
)
@pytest.mark.parametrize("base", BASES)
def test_embeddings_and_output_layer_are_not_trained(bases, base, layers):
    lora = LoraSettings(target_modules=layers)
    with pytest.raises(SettingsError, match=r"lora\.target_modules .* is none within"):
        attach_lora(load(bases[base]), lora)
