import json
import platform
import re
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from agentpeft.envs import SettingsError
from agentpeft.policies.models.base_files import find_base
from agentpeft.policies.models.load import (
    choose_device,
    choose_dtype,
    load_base,
    multiplies_bfloat16,
    uses_autocast,
)
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.models.tiny import build_tiny
from agentpeft.policies.settings.config import (
    LearnerSettings,
    LoraSettings,
    ModelSettings,
    Settings,
    TinySettings,
)

SMALL = TinySettings(hidden_size=32, num_layers=2)


def load(name, **model):
    return load_base(Settings(model=ModelSettings(name=str(name), **model)))


@pytest.fixture
def folder(tmp_path):
    base = build_tiny(SMALL, ["some text"])
    path = tmp_path / "model"
    base.model.save_pretrained(path)
    base.tokenizer.save_pretrained(path)
    return path


def test_local_folder_loads_in_the_type_asked_for(folder):
    base = load(folder)
    assert base.model.dtype == torch.float32 and not base.model.training
    assert (base.name, base.adapter_path, base.fingerprint) == (str(folder), None, None)
    assert load(folder, dtype="bfloat16").model.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_logits_in_bfloat16_are_not_rounded(folder, dtype):
    head = load(folder, dtype=dtype).model.get_output_embeddings()
    states = torch.randn(5, head.in_features, generator=torch.manual_seed(0)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        logits = head(states)
    assert torch.equal(logits, states.float() @ head.weight.float().T)
    assert not torch.equal(logits, logits.bfloat16())


def test_auto_dtype_follows_the_device():
    types = [choose_dtype(ModelSettings(), torch.device(kind)) for kind in ("cpu", "cuda")]
    assert types == [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("has_instructions", [False, True])
def test_updates_on_a_cpu_take_bfloat16_only_where_it_multiplies_it(monkeypatch, has_instructions):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_instructions)
    with torch.device("meta"):
        small, large = torch.nn.Linear(1000, 1000), torch.nn.Linear(10_000, 10_000)
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert uses_autocast(Settings(), large, cpu) == has_instructions
    assert not uses_autocast(Settings(), small, cpu)
    assert uses_autocast(Settings(), large, gpu)
    asked = Settings(learners=LearnerSettings(autocast="bfloat16"))
    assert uses_autocast(asked, small, cpu)


@pytest.mark.parametrize("has_instructions", [False, True])
def test_a_base_in_bfloat16_that_a_processor_lacks_instructions_for_is_warned_of(
    folder, monkeypatch, caplog, has_instructions
):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_instructions)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    for dtype in ("float32", "bfloat16"):
        load(folder, dtype=dtype)
    warned = [r.message for r in caplog.records if "set model.dtype to 'float32'" in r.message]
    assert len(warned) == (not has_instructions)


def test_what_a_processor_multiplies_is_known():
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    assert multiplies_bfloat16() == ("avx512_bf16" in flags)


def test_adapter_folder_loads_its_base_and_training_goes_on(folder, tmp_path):
    lora = LoraSettings(rank=4)
    policy = attach_lora(load(folder), lora)
    policy.save(tmp_path / "adapter")
    base = load(tmp_path / "adapter")
    assert (base.name, base.adapter_path) == (str(folder), str(tmp_path / "adapter"))
    attach_lora(base, lora)
    with pytest.raises(SettingsError, match=r"lora\.rank 4, this run 16"):
        attach_lora(load(tmp_path / "adapter"), LoraSettings())


def test_adapter_whose_base_is_gone_is_one_message(folder, tmp_path):
    attach_lora(load(folder), LoraSettings()).save(tmp_path / "adapter")
    folder.rename(tmp_path / "moved")
    with pytest.raises(SettingsError, match="which is not there"):
        load(tmp_path / "adapter")


@pytest.mark.parametrize("content", ["{", "{}"])
def test_adapter_without_a_base_name_is_one_message(tmp_path, content):
    (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(SettingsError, match="names no base model"):
        load(tmp_path)


def test_missing_or_empty_folder_is_one_message(tmp_path):
    for path in (tmp_path, tmp_path / "nothing", "./nothing"):
        with pytest.raises(SettingsError, match="is no folder of a model"):
            load(path)


def test_hub_name_that_cannot_be_had_is_one_message(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SettingsError, match=r"'nobody/nothing' is no folder, .* no network, nor"):
        load("nobody/nothing")


def test_hub_model_in_the_cache_needs_no_network(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    cached = tmp_path / "hub" / "models--some--model"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("abc")
    shutil.copytree(folder, cached / "snapshots" / "abc")
    assert load("some/model").name == "some/model"


@pytest.mark.parametrize("config", [{"model_type": "t5"}, {"model_type": "nonsense"}, {}])
def test_what_is_no_causal_model_is_one_message(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SettingsError, match="cannot be loaded") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_damaged_weights_are_one_message(folder):
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(SettingsError, match="cannot be loaded"):
        load(folder)


def edit(folder, change, **config):
    """Edits the tensors of a model's file, and its config.json."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, {"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | config), "utf-8")


EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"
QUERY, SHORT = "model.layers.0.self_attn.q_proj.weight", "has the shape (16, 32) in its files, and"
DAMAGES = {
    "untied, no head": (lambda w: None, {"tie_word_embeddings": False}, f"lack {HEAD} (and 0"),
    "no embeddings": (lambda w: w.pop(EMBEDDINGS), {}, "lack "),
    "one lacks": (lambda w: w.pop(QUERY), {}, f"lack {QUERY} (and 0"),
    "a layer lacks": (lambda w: None, {"num_hidden_layers": 3}, "lack model.layers.2."),
    "other biases": (lambda w: w.pop(QUERY.replace("weight", "bias")), {}, "q_proj.bias (and 0"),
    "other names": (lambda w: [w.update({f"x.{n}": w.pop(n)}) for n in [*w]], {}, "lack "),
    "nothing": (lambda w: w.clear(), {}, "lack "),
    "shape": (lambda w: w.update({QUERY: w[QUERY][:16].clone()}), {}, SHORT),
    "wider": (lambda w: None, {"intermediate_size": 64}, "(32, 88) in its files"),
    "tied, another head": (
        lambda w: w.update({HEAD: w[EMBEDDINGS] + 1}),
        {},
        "tie_word_embeddings",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_base_whose_files_are_not_its_config_is_refused(folder, damage):
    change, config, message = DAMAGES[damage]
    edit(folder, change, **config)
    with pytest.raises(SettingsError, match=re.escape(message)) as caught:
        load(folder)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.update({HEAD: w[EMBEDDINGS].clone()}),
        lambda w: w.update({HEAD: w.pop(EMBEDDINGS)}),
        lambda w: w.update({"vision_tower.weight": torch.ones(2)}),
        lambda w: [w.update({n.removeprefix("model."): w.pop(n)}) for n in [*w]],
    ],
    ids=["tied twice", "tied under the other name", "more than needed", "without a prefix"],
)
def test_a_base_that_transformers_reads_whole_is_loaded(folder, change):
    expected = load(folder).model.state_dict()
    edit(folder, change)
    weights = load(folder).model.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in expected.items())


@pytest.mark.parametrize("damage", ["shard gone", "no index", "cut"])
def test_a_base_in_parts_needs_all_of_them(folder, damage):
    whole = load(folder).model
    (folder / "model.safetensors").unlink()
    whole.save_pretrained(folder, max_shard_size="20KB")
    *_, last = sorted(folder.glob("model-*.safetensors"))
    assert load(folder).model.state_dict().keys() == whole.state_dict().keys()
    if damage == "cut":
        last.write_bytes(last.read_bytes()[:-9])
    else:
        (last if damage == "shard gone" else folder / "model.safetensors.index.json").unlink()
    with pytest.raises(SettingsError, match="cannot be loaded"):
        load(folder)


def without_vocabulary(folder, **config):
    """Leaves a tokenizer's template and special tokens alone."""
    (folder / "tokenizer.json").unlink()
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | config), "utf-8")


def empty_vocabulary(folder):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text("utf-8"))
    content["model"] |= {"vocab": {}, "merges": []}
    path.write_text(json.dumps(content), "utf-8")


@pytest.mark.parametrize(
    "damage",
    [
        without_vocabulary,
        partial(without_vocabulary, tokenizer_class="LlamaTokenizer"),
        partial(without_vocabulary, tokenizer_class="Qwen2Tokenizer"),
        partial(without_vocabulary, tokenizer_class="GPT2Tokenizer"),
        empty_vocabulary,
    ],
    ids=["none", "Llama", "Qwen2", "GPT-2", "empty"],
)
@pytest.mark.parametrize("find", [load, lambda f: find_base(Settings(model={"name": str(f)}))])
def test_a_tokenizer_without_a_vocabulary_is_one_message(folder, damage, find):
    damage(folder)
    with pytest.raises(SettingsError, match="okenizer") as caught:
        find(folder)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


def test_a_tokenizer_of_more_tokens_than_the_model_is_another_models(folder):
    texts = [f"and other words, number {number}" for number in range(50)]
    larger = build_tiny(SMALL, texts).tokenizer
    num_own = len(load(folder).tokenizer)
    assert len(larger) > num_own
    edit(
        folder,
        lambda w: w.update({EMBEDDINGS: w[EMBEDDINGS][:num_own].clone()}),
        vocab_size=num_own,
    )
    load(folder)
    larger.save_pretrained(folder)
    with pytest.raises(SettingsError, match=f"its tokenizer has {len(larger)} tokens, .*{num_own}"):
        load(folder)


def test_gpu_is_refused_where_none_is():
    if torch.cuda.is_available():
        assert choose_device(0.5).type == "cuda"
    else:
        with pytest.raises(SettingsError, match=r"a GPU is asked for \(0.5\)"):
            choose_device(0.5)
    assert choose_device(0.0).type == "cpu"


def test_four_bits_without_their_package_name_the_extra(folder, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "bitsandbytes", raising=False)
    with pytest.raises(SettingsError, match=r"needs bitsandbytes: pip install 'agentpeft\[quan"):
        load(folder, dtype="nf4")


OWN_CLASS = """
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own"

class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig

AutoConfig.register("own", OwnConfig)
AutoModelForCausalLM.register(OwnConfig, OwnModel)
"""


def test_own_architecture_is_registered_by_its_module(folder, tmp_path, monkeypatch):
    (tmp_path / "own_llama.py").write_text(OWN_CLASS)
    monkeypatch.syspath_prepend(tmp_path)
    import own_llama

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = own_llama.OwnConfig(vocab_size=512, intermediate_size=48, **sizes)
    own_llama.OwnModel(config).save_pretrained(tmp_path / "own")
    build_tiny(SMALL, ["some text"]).tokenizer.save_pretrained(tmp_path / "own")
    base = load(f"own_llama:{tmp_path / 'own'}")
    assert type(base.model) is own_llama.OwnModel
    assert len(attach_lora(base, LoraSettings()).trainable_parameters()) == 14


def test_module_that_is_not_there_is_one_message():
    with pytest.raises(SettingsError, match="No module named 'no_such_module'"):
        load("no_such_module:folder")
