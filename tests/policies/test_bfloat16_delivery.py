"""Adapters travel in bfloat16 where their readers would round them to it anyway."""

import numpy as np
import pytest
import torch
from learner_parts import random_groups
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentpeft.policies.delivery.deliver import pack
from agentpeft.policies.delivery.version import ack_of, make_version
from agentpeft.policies.engines.adapter_slots import slot_effect, slot_state
from agentpeft.policies.engines.fusing import merged_state, tensor_of
from agentpeft.policies.engines.vllm.weight_files import read_adapter, write_adapter
from agentpeft.policies.learning.learner import Learner
from agentpeft.policies.learning.passes.model_runner import ModelRunner
from agentpeft.policies.learning.samples import list_samples
from agentpeft.policies.models.load import travels_in_bfloat16
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.settings.config import Settings

VOCAB = 64


def make_learner(autocast="bfloat16", **sections):
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    base = PolicyBase(Qwen2ForCausalLM(config).bfloat16().train(False), None, "test")
    given = {"model": {"dtype": "bfloat16"}, "training": {"lr": 1e-3}, **sections}
    settings = Settings(learners={"autocast": autocast}, **given)
    return Learner(settings, attach_lora(base, settings.lora))


def travels(learner):
    return travels_in_bfloat16(learner.settings, learner.policy.model)


def score(learner, samples):
    return ModelRunner(learner.settings, learner.policy).score(samples)


@pytest.fixture(scope="module")
def learner():
    learner = make_learner()
    for seed in range(2):
        learner.update(random_groups(vocab=VOCAB, seed=seed))
    return learner


def test_an_adapter_travels_in_bfloat16_where_learner_and_base_are():
    assert travels(make_learner())
    assert not travels(make_learner("off"))
    assert not travels(make_learner("auto"))  # small models on CPUs: off
    assert not travels(make_learner(model={"dtype": "float32"}))
    assert not travels(make_learner(lora={"rank": 0}))
    on_gpu = {"num_gpus_per_env_runner": 0.5}  # of a runner: here there may be none
    assert travels(make_learner(model={"dtype": "auto"}, env_runners=on_gpu))


def test_the_learner_says_the_same_to_the_bit_with_the_weights_that_it_sends(learner):
    exact, sent = learner.adapter(), learner.adapter(in_bfloat16=True)
    rounded = {name: tensor_of(bits).float().numpy() for name, bits in sent.weights.items()}
    assert any((rounded[name] != exact.weights[name]).any() for name in rounded)
    samples = list_samples(random_groups(vocab=VOCAB, seed=7))
    before = score(learner, samples)
    other = make_learner()
    other.policy.load_weights(rounded)
    after = score(other, samples)
    for one, two in zip(before, after, strict=True):
        np.testing.assert_array_equal(one.logprobs, two.logprobs)


def test_it_takes_half_the_bytes_and_arrives_as_it_was_sent(learner, tmp_path):
    exact, sent = learner.adapter(), learner.adapter(in_bfloat16=True)
    sizes = [sum(w.nbytes for w in each.weights.values()) for each in (exact, sent)]
    assert sizes[0] == 2 * sizes[1] and sent.sha256 != exact.sha256
    write_adapter(sent, tmp_path)
    read = read_adapter(tmp_path)
    assert ack_of(read).sha256 == sent.sha256 == ack_of(sent).sha256
    weights = {name: tensor_of(weight) for name, weight in read.weights.items()}
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert slot_effect(weights, sent).share == 1.0
    halved = {name: weight / 2 for name, weight in weights.items()}
    assert slot_effect(halved, sent).share == 0.25  # of A and of B


def test_engines_serve_the_same_of_an_adapter_in_either_type(learner):
    sent = learner.adapter(in_bfloat16=True)
    wide = {name: tensor_of(bits).float().numpy() for name, bits in sent.weights.items()}
    same = make_version(sent.version, "wide", wide, sent.scaling)
    base = make_learner()
    plain = {
        n.replace(".base_layer", ""): w for n, w in base.policy.base.model.state_dict().items()
    }
    scaling = base.policy.scaling
    for serve in (merged_state, lambda state, adapter: slot_state(state, adapter, scaling)):
        state = plain if serve is merged_state else base.policy.base.model.state_dict()
        (one, effect), (other, _) = (serve(state, adapter) for adapter in (sent, same))
        assert one.keys() == other.keys() and 0.9 < effect.share < 1.1
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_pack_holds_the_type_that_the_settings_mean():
    for autocast, dtype in (("bfloat16", np.uint16), ("off", np.float32)):
        learner = make_learner(autocast, fault_tolerance={"probe_interval": 0})
        adapter, receipt, probe = pack(learner)
        assert {weight.dtype for weight in adapter.weights.values()} == {np.dtype(dtype)}
        assert receipt == ack_of(adapter) and probe is None
