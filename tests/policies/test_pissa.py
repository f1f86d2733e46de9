"""PiSSA against PEFT's own, which trains over another base."""

import json

import numpy as np
import pytest
import torch
from lora_parts import IDS, logits, make_base
from peft import LoraConfig, PeftModel, get_peft_model

from agentpeft.envs import SettingsError
from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.engines.fusing import merged_state
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.settings.config import LoraSettings

PISSA = LoraSettings(rank=4, alpha=8.0, use_pissa=True)


def make_policy(lora=PISSA, dtype=torch.float32):
    return attach_lora(make_base(dtype=dtype), lora)


def take_steps(model, parameters, num_steps=5):
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.0)
    for _ in range(num_steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(IDS).logits[0, :-1].float(), IDS[0, 1:]).backward()
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_begins_at_the_base_to_the_bit(dtype):
    expected = logits(make_base(dtype=dtype).model)
    assert torch.equal(logits(make_policy(dtype=dtype).model), expected)


@pytest.mark.parametrize("use_rslora", [False, True])
def test_it_learns_what_pefts_own_learns(use_rslora):
    lora = PISSA.model_copy(update={"use_rslora": use_rslora})
    policy = make_policy(lora)
    config = LoraConfig(
        r=4,
        lora_alpha=8,
        use_rslora=use_rslora,
        target_modules="all-linear",
        init_lora_weights="pissa",
        task_type="CAUSAL_LM",
    )
    expected = get_peft_model(make_base().model, config)
    assert torch.allclose(logits(expected), logits(policy.model), atol=1e-5)
    take_steps(expected, [p for p in expected.parameters() if p.requires_grad])
    take_steps(policy.model, policy.trainable_parameters())
    changed = logits(expected)
    assert not torch.allclose(changed, logits(make_base().model), atol=1e-2)
    assert torch.allclose(changed, logits(policy.model), atol=1e-4)
    plain = make_policy(lora.model_copy(update={"use_pissa": False}))
    take_steps(plain.model, plain.trainable_parameters())
    assert not torch.allclose(changed, logits(plain.model), atol=1e-2)


def test_only_the_change_is_trained_and_the_halves_stay_their_start_apart():
    policy = make_policy()
    before = policy.adapter_weights()
    take_steps(policy.model, policy.trainable_parameters())
    for name, after in policy.adapter_weights().items():
        first, second = np.split(after, 2, axis=int("lora_B" in name))
        if "lora_A" in name:
            assert np.array_equal(first, before[name][:4]) and second.any()
        else:
            assert np.allclose(second - first, before[name][:, 4:], atol=1e-6) and first.any()


def test_large_matrices_begin_at_as_large_a_part_of_the_weights(monkeypatch):
    exact = make_policy().adapter_weights()
    monkeypatch.setattr("agentpeft.policies.learning.options.pissa.MAX_EXACT", 8)
    near = make_policy().adapter_weights()
    for up in (name for name in exact if "lora_B" in name):
        down = up.replace("lora_B", "lora_A")
        best, found = (w[up][:, 4:] @ w[down][:4] for w in (exact, near))
        assert 0.99 * np.linalg.norm(best) < np.linalg.norm(found) <= np.linalg.norm(best) + 1e-6


def test_what_is_delivered_and_saved_is_plain_lora_of_twice_the_rank(tmp_path):
    policy = make_policy()
    take_steps(policy.model, policy.trainable_parameters())
    expected = logits(policy.model)
    merged, _ = merged_state(
        make_base().model.state_dict(), make_version(1, "run", policy.adapter_weights(), 2.0)
    )
    fused = make_base().model
    fused.load_state_dict(merged, strict=False)
    assert policy.scaling == 2.0 and torch.allclose(logits(fused), expected, atol=1e-5)
    policy.save(tmp_path)
    saved = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (saved["r"], saved["lora_alpha"], saved["init_lora_weights"]) == (8, 16.0, True)
    assert torch.equal(logits(PeftModel.from_pretrained(make_base().model, tmp_path)), expected)
    going_on = attach_lora(make_base(adapter_path=str(tmp_path)), PISSA.as_saved())
    assert torch.equal(logits(going_on.model), expected)
    with pytest.raises(SettingsError, match=r"begins a new adapter, and model\.name"):
        attach_lora(make_base(adapter_path=str(tmp_path)), PISSA)


def test_small_steps_are_not_lost_in_bfloat16():
    """Rounded as B A - B0 A0 they would be: a step of 1e-4 is less than a digit of B0's."""
    policy = make_policy()
    take_steps(policy.model, policy.trainable_parameters(), num_steps=1)
    weights = policy.adapter_weights()
    for up in (name for name in weights if "lora_B" in name):
        both = weights[up], weights[up.replace("lora_B", "lora_A")]
        rounded = [torch.from_numpy(w).bfloat16().double().numpy() for w in both]
        change, near = both[0] @ both[1], rounded[0] @ rounded[1]
        assert np.linalg.norm(change - near) < 0.01 * np.linalg.norm(change)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 40}, r"lora\.rank: .*q_proj needs a rank <= 32, the singular values, got 40"),
        ({"target_modules": ("embed_tokens",)}, "is for linear layers, and .*embed_tokens is none"),
    ],
)
def test_layers_without_so_many_components_are_refused(changes, message):
    with pytest.raises(SettingsError, match=message):
        make_policy(PISSA.model_copy(update=changes))
