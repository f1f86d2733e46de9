"""How much of one small step over a bfloat16 base is computed, by learner and engine."""

import numpy as np
import pytest
import torch
from learner_parts import random_groups
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentpeft.policies.delivery.version import LORA_A, LORA_B, make_version
from agentpeft.policies.engines.fusing import merged_state, target_names
from agentpeft.policies.engines.transformers.engine import start_transformers
from agentpeft.policies.learning.learner import Learner
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.settings.config import Settings

VOCAB = 64


class Stops:
    stop_token_ids = ()


def make_settings(serving="auto"):
    return Settings.model_validate(
        {
            "training": {"lr": 1e-5},
            "learners": {"autocast": "bfloat16"},
            "env_runners": {"serving": serving, "max_new_tokens": 8},
        }
    )


def make_base():
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=512, intermediate_size=1024, num_hidden_layers=1,
        num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=256,
    )  # fmt: skip
    return PolicyBase(Qwen2ForCausalLM(config).bfloat16().train(False), None, "test")


@pytest.fixture(scope="module")
def learner():
    settings = make_settings()
    learner = Learner(settings, attach_lora(make_base(), settings.lora))
    learner.update(random_groups(vocab=VOCAB))
    return learner


def share(adapter, serve):
    """<change of each layer's outputs, exact change> / <exact, exact>, of random inputs.

    `serve` maps a layer's name, its base, its weights' exact change and inputs to outputs.
    """
    plain, served, exact = make_base().model, [], []
    for name in target_names(adapter):
        module = name.removesuffix(".weight")
        base = plain.get_submodule(module)
        x = torch.randn(1024, base.in_features, generator=torch.manual_seed(0)).bfloat16()
        up, down = (
            torch.tensor(adapter.weights[f"base_model.model.{module}{part}"])
            for part in (LORA_B, LORA_A)
        )
        change = up @ down * adapter.scaling
        with torch.no_grad():
            served.append((serve(module, base, change, x) - base(x)).float().flatten())
            exact.append((x.float() @ change.T).flatten())
    served, exact = torch.cat(served), torch.cat(exact)
    return float(served @ exact / (exact @ exact))


def of_model(model):
    return lambda module, base, change, x: model.get_submodule(module)(x)


@pytest.mark.parametrize("serving", ["auto", "fused"])
def test_a_first_step_over_a_bfloat16_base_is_served_whole(learner, serving):
    base, adapter = make_base(), learner.adapter()
    engine = start_transformers(make_settings(serving), base, Stops())
    engine.load_adapter(adapter)
    assert engine.served_effect == pytest.approx(1, abs=0.03)
    assert 0.95 < share(adapter, of_model(base.model)) < 1.05
    layer = base.model.model.layers[0].self_attn.q_proj
    assert (type(layer) is torch.nn.Linear) == (serving == "fused")
    engine.close()


def test_the_learner_computes_the_whole_step_too(learner):
    with torch.autocast("cpu", torch.bfloat16):
        assert 0.95 < share(learner.adapter(), of_model(learner.policy.base.model)) < 1.05


def test_an_adapter_of_zeros_changes_nothing_to_the_bit():
    policy = attach_lora(make_base(), make_settings().lora)
    ids = torch.arange(40)[None]
    with torch.no_grad():
        for name, bias in policy.model.named_parameters():
            if name.endswith("_proj.base_layer.bias"):
                bias.normal_()
        for is_cast in (False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
                with policy.reference():
                    plain = policy.model(ids).logits
                assert torch.equal(policy.model(ids).logits, plain)


ROUNDED_TWICE = {
    "weights": lambda _, base, change, x: torch.nn.functional.linear(
        x, (base.weight.float() + change).bfloat16(), base.bias
    ),
    "outputs": lambda _, base, change, x: base(x) + (x.float() @ change.T).bfloat16(),
}


@pytest.mark.parametrize("what", ROUNDED_TWICE)
def test_rounding_a_sum_with_what_is_rounded_already_would_lose_the_step(learner, what):
    assert share(learner.adapter(), ROUNDED_TWICE[what]) < 0.2


def test_the_engine_says_how_much_its_weights_hold():
    """2 * B A is 1 or 0: of that nothing is said."""
    base, layer = make_base().model, "model.layers.0.mlp.up_proj"
    for value, expected in ((0.25, 1.0), (0.0, np.nan)):
        ones = np.ones((2, 512), np.float32), np.full((1024, 2), value, np.float32)
        names = (f"base_model.model.{layer}{part}" for part in (LORA_A, LORA_B))
        adapter = make_version(1, "run", dict(zip(names, ones, strict=True)), 2.0)
        weights, effect = merged_state(base.state_dict(), adapter)
        np.testing.assert_allclose(effect.share, expected, atol=0.01)
        (name,) = weights
        before = base.state_dict()[name]
        assert torch.equal(weights[name], before) == (value == 0)
