import json

import numpy as np
import pytest
import torch
from lora_parts import IDS, logits, make_base
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file, save_file

from agentpeft.envs import SettingsError
from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.engines.fusing import merged_state
from agentpeft.policies.errors import CheckpointError, EngineError
from agentpeft.policies.models.lora.all_weights import FullPolicy
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.models.policy_base import FINGERPRINT_KEY, PolicyBase
from agentpeft.policies.settings.config import LoraSettings

LORA = LoraSettings(rank=4, alpha=8.0)


def make_policy(lora=LORA, **options):
    return attach_lora(make_base(), lora, **options)


def random_weights(policy, scale=0.1):
    rng = np.random.default_rng(0)
    shapes = {name: w.shape for name, w in policy.adapter_weights().items()}
    return {n: (scale * rng.normal(size=s)).astype(np.float32) for n, s in shapes.items()}


def test_new_adapter_changes_nothing_and_alone_is_trained():
    expected = logits(make_base().model)
    policy = make_policy()
    assert torch.equal(logits(policy.model), expected)
    trained = [n for n, p in policy.model.named_parameters() if p.requires_grad]
    assert len(trained) == len(policy.trainable_parameters()) == 2 * 7 * 2
    assert all("lora_" in name for name in trained)


def test_seed_decides_the_new_weights():
    first, same, other = (make_policy(seed=s).adapter_weights() for s in (0, 0, 1))
    name = next(name for name in first if "lora_A" in name)
    assert np.array_equal(first[name], same[name]) and not np.array_equal(first[name], other[name])


def test_weights_have_the_names_that_peft_saves():
    policy = make_policy()
    expected = get_peft_model_state_dict(policy.model)
    weights = policy.adapter_weights()
    assert weights.keys() == expected.keys()
    assert all(np.array_equal(weights[n], w.numpy()) for n, w in expected.items())


def test_weights_are_a_copy():
    policy = make_policy()
    weights = policy.adapter_weights()
    before = {name: w.copy() for name, w in weights.items()}
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.add_(1)
    assert all(np.array_equal(weights[name], before[name]) for name in weights)


def test_adapter_of_a_bfloat16_base_is_float32():
    base = make_base()
    base.model.to(dtype=torch.bfloat16)
    policy = attach_lora(base, LORA)
    assert {p.dtype for p in policy.trainable_parameters()} == {torch.float32}


@pytest.mark.parametrize("use_checkpointing", [False, True])
def test_gradients_reach_the_adapter(use_checkpointing):
    policy = make_policy(gradient_checkpointing=use_checkpointing)
    policy.load_weights(random_weights(policy))
    policy.model.train()
    policy.model(IDS).logits.square().mean().backward()
    assert all(p.grad is not None and p.grad.any() for p in policy.trainable_parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merged_state_is_what_peft_merges(dtype):
    base = make_base()
    base.model.to(dtype=dtype)
    state = {name: w.clone() for name, w in base.model.state_dict().items()}
    policy = attach_lora(base, LORA)
    policy.load_weights(random_weights(policy))
    version = make_version(1, "run", policy.adapter_weights(), policy.scaling)
    merged, _ = merged_state(state, version)
    expected = policy.model.merge_and_unload().state_dict()
    assert len(merged) == 14 and policy.scaling == 2.0
    for name, weight in merged.items():
        assert weight.dtype == dtype
        assert torch.allclose(weight.float(), expected[name].float(), atol=1e-6, rtol=8e-3)
        assert not torch.equal(weight, state[name])


def test_an_adapter_of_rslora_is_a_plain_one_of_a_larger_alpha(tmp_path):
    saved = make_policy()
    saved.load_weights(random_weights(saved))
    saved.save(tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "use_rslora": True}))
    plain = make_policy(LORA.model_copy(update={"alpha": 8.0 * 4**0.5}))
    plain.load(tmp_path)
    assert plain.scaling == 4.0
    by_peft = PeftModel.from_pretrained(make_base().model, str(tmp_path))
    assert torch.equal(logits(plain.model), logits(by_peft))
    with pytest.raises(SettingsError, match=r"lora\.alpha 16\.0, this run 8\.0"):
        saved.load(tmp_path)


@pytest.mark.parametrize("change", ["rename", "shape"])
def test_merged_state_refuses_what_does_not_fit(change):
    policy = make_policy()
    state = make_base().model.state_dict()
    weights = policy.adapter_weights()
    if change == "rename":
        weights = {name.replace("q_proj", "x_proj"): w for name, w in weights.items()}
    else:
        weights = {n: w[:-1] if n.endswith("lora_B.weight") else w for n, w in weights.items()}
    with pytest.raises(EngineError, match=r"_proj\.weight is"):
        merged_state(state, make_version(1, "run", weights, 2.0))


def test_saved_adapter_loads_with_plain_peft(tmp_path):
    policy = make_policy()
    policy.load_weights(random_weights(policy))
    policy.save(tmp_path)
    plain = PeftModel.from_pretrained(make_base().model, tmp_path)
    assert torch.equal(logits(plain), logits(policy.model))
    again = make_policy()
    again.load(tmp_path)
    assert torch.equal(logits(again.model), logits(policy.model))


def test_reference_of_a_new_adapter_is_the_base():
    expected = logits(make_base().model)
    policy = make_policy()
    policy.load_weights(random_weights(policy))
    trained = logits(policy.model)
    with policy.reference():
        assert torch.equal(logits(policy.model), expected)
    assert torch.equal(logits(policy.model), trained) and not torch.equal(trained, expected)


def test_reference_of_a_trained_adapter_is_its_frozen_copy(tmp_path):
    first = make_policy()
    first.load_weights(random_weights(first))
    first.save(tmp_path)
    policy = attach_lora(make_base(adapter_path=str(tmp_path)), LORA)
    start = logits(policy.model)
    assert torch.equal(start, logits(first.model))
    policy.load_weights(random_weights(policy, scale=0.3))
    with policy.reference():
        assert torch.equal(logits(policy.model), start)
    assert not torch.equal(logits(policy.model), start)
    assert all(p.requires_grad for p in policy.trainable_parameters())
    assert not any(p.requires_grad for n, p in policy.model.named_parameters() if "reference" in n)


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        (LoraSettings(rank=8, alpha=8.0), "lora.rank 4, this run 8"),
        (LoraSettings(rank=4, alpha=4.0), "lora.alpha 8.0, this run 4.0"),
        (LoraSettings(rank=4, alpha=8.0, target_modules=("q_proj",)), r"this run \['q_proj'\]"),
    ],
)
def test_adapter_of_another_kind_is_refused(tmp_path, lora, message):
    make_policy().save(tmp_path)
    with pytest.raises(SettingsError, match=message):
        make_policy(lora).load(tmp_path)


def test_adapter_of_another_base_is_refused(tmp_path):
    make_policy().save(tmp_path)
    with pytest.raises(SettingsError, match="base model base-0, this run base-1"):
        attach_lora(make_base(seed=1), LORA).load(tmp_path)


def test_built_in_bases_are_compared_by_fingerprint_not_by_place(tmp_path):
    first, moved, other = make_base(), make_base(), make_base()
    for base, mark in ((first, "aa"), (moved, "aa"), (other, "bb")):
        base.model.config.update({FINGERPRINT_KEY: mark})
    attach_lora(first, LORA).save(tmp_path)
    attach_lora(PolicyBase(moved.model, moved.tokenizer, "elsewhere"), LORA).load(tmp_path)
    with pytest.raises(SettingsError, match="base model aa, this run bb"):
        attach_lora(other, LORA).load(tmp_path)


def test_weights_that_do_not_fit_are_refused():
    policy = make_policy()
    weights = policy.adapter_weights()
    name = next(iter(weights))
    with pytest.raises(CheckpointError, match="is missing"):
        policy.load_weights({n: w for n, w in weights.items() if n != name})
    with pytest.raises(CheckpointError, match="not in this model"):
        policy.load_weights({**weights, "extra": weights[name]})
    with pytest.raises(CheckpointError, match="has the shape"):
        policy.load_weights({**weights, name: weights[name][:-1]})


@pytest.mark.parametrize("damage", ["adapter_config.json", "adapter_model.safetensors"])
def test_damaged_adapter_is_a_checkpoint_error(tmp_path, damage):
    make_policy().save(tmp_path)
    (tmp_path / damage).write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        make_policy().load(tmp_path)


def test_unknown_target_modules_are_refused():
    with pytest.raises(SettingsError, match=r"lora\.target_modules"):
        make_policy(LoraSettings(target_modules=("nothing",)))


def test_config_notes_the_base(tmp_path):
    make_policy().save(tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["r"]) == ("base-0", 4)


def test_full_policy_trains_all_weights_and_delivers_them(tmp_path):
    policy = make_policy(LoraSettings(rank=0))
    assert isinstance(policy, FullPolicy)
    policy.load_weights(random_weights(policy))
    version = make_version(1, "run", policy.adapter_weights(), policy.scaling)
    other = make_base().model
    other.load_state_dict(merged_state(other.state_dict(), version)[0], strict=False)
    assert torch.equal(logits(other), logits(policy.model))
    policy.save(tmp_path)
    again = make_policy(LoraSettings(rank=0))
    again.load(tmp_path)
    assert torch.equal(logits(again.model), logits(policy.model))


def save_adapter(folder, changes=None, dtype=torch.float32):
    """Writes a trained adapter as another program might; returns its weights."""
    policy = make_policy()
    policy.load_weights(random_weights(policy))
    policy.save(folder)
    path = folder / "adapter_model.safetensors"
    save_file({n: w.to(dtype) for n, w in load_file(path).items()}, path)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | (changes or {})))
    return policy.adapter_weights()


@pytest.mark.parametrize(
    "changes",
    [
        {"alpha_pattern": {"q_proj": 2.0}},
        {"rank_pattern": {"q_proj": 2}},
        {"use_dora": True},
        {"bias": "all"},
        {"lora_bias": True},
        {"modules_to_save": ["lm_head"]},
        {"layers_to_transform": [0]},
        {"init_lora_weights": "pissa"},
        {"trainable_token_indices": [1]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_an_adapter_that_computes_otherwise_is_refused_by_name(tmp_path, changes):
    save_adapter(tmp_path, changes)
    (name,) = changes
    with pytest.raises(SettingsError, match=f"has {name} = .* not supported"):
        attach_lora(make_base(adapter_path=str(tmp_path)), LORA)


@pytest.mark.parametrize("changes", [{"init_lora_weights": "gaussian"}, {"lora_dropout": 0.1}])
def test_what_does_nothing_to_a_trained_adapter_is_no_hindrance(tmp_path, changes):
    save_adapter(tmp_path, changes)
    attach_lora(make_base(adapter_path=str(tmp_path)), LORA)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_adapter_in_16_bits_is_taken_over(tmp_path, dtype):
    expected = save_adapter(tmp_path, dtype=dtype)
    weights = attach_lora(make_base(adapter_path=str(tmp_path)), LORA).adapter_weights()
    for name, weight in expected.items():
        assert np.allclose(weights[name], weight, atol=2e-3) and weights[name].dtype == np.float32
