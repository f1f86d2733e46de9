import json
import shutil
import sys

import pytest
import torch

from agentpeft.envs import SettingsError
from agentpeft.policies.models.load import choose_device, choose_dtype, load_base
from agentpeft.policies.models.lora import attach_lora
from agentpeft.policies.models.tiny import build_tiny
from agentpeft.policies.settings.config import LoraSettings, ModelSettings, Settings, TinySettings

SMALL = TinySettings(hidden_size=32, num_layers=2, num_heads=2, intermediate_size=48)


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
        load(folder, load_in_4bit=True)


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
