"""Log-probabilities and entropies without logits are those with them, and so are the gradients."""

from itertools import product

import numpy as np
import pytest
import torch
from learner_parts import make_policy, random_groups
from torch import nn
from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM

from agentpeft.policies.learning.passes.model_runner import ModelRunner
from agentpeft.policies.learning.samples import list_samples
from agentpeft.policies.models import linear_logprobs as module
from agentpeft.policies.models.linear_logprobs import gives_logits, linear_logprobs
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.models.scoring import use_float_head
from agentpeft.policies.settings.config import LoraSettings, Settings

NUM_ROWS, NUM_TOKENS, WIDTH, VOCABULARY = 40, 100, 32, 1000
SMALL = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip


def compute_plainly(states, weight, bias, rows, targets, temperature):
    logprobs = (nn.functional.linear(states, weight, bias) / temperature).log_softmax(-1)
    return logprobs[rows, targets], -(logprobs.exp() * logprobs).sum(-1)[rows]


def draw(dtype=torch.float32, has_bias=False, is_frozen=True):
    """A layer whose odds are peaked here and flat there, what it reads, and what is asked."""
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(WIDTH, VOCABULARY, bias=has_bias)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(generator=generator)
    head.to(dtype).requires_grad_(not is_frozen)
    scales = torch.linspace(0.01, 3, NUM_ROWS)[:, None]
    states = (torch.randn(NUM_ROWS, WIDTH, generator=generator) * scales).to(dtype)
    rows = torch.randint(0, NUM_ROWS - 3, (NUM_TOKENS,), generator=generator)  # three have none
    targets = torch.randint(0, VOCABULARY, (NUM_TOKENS,), generator=generator)
    return head, states.requires_grad_(), rows, targets


def differentiate(outputs, inputs, has_entropy_gradient):
    weights = [torch.randn(NUM_TOKENS, generator=torch.Generator().manual_seed(n)) for n in (1, 2)]
    loss = (outputs[0] * weights[0]).sum()
    if has_entropy_gradient:
        loss = loss + (outputs[1] * weights[1]).sum()
    return torch.autograd.grad(loss, inputs)


@pytest.mark.parametrize("num_logits", [1, 2**14, 2**20])
@pytest.mark.parametrize(
    ("is_frozen", "has_bias", "has_entropy_gradient"), list(product([True, False], repeat=3))
)
def test_values_and_gradients_are_those_of_plain_logits_in_double_precision(
    monkeypatch, num_logits, is_frozen, has_bias, has_entropy_gradient
):
    monkeypatch.setattr(module, "MAX_LOGITS", {"cpu": num_logits, "cuda": 1})
    monkeypatch.setattr(module, "_MIN_SLICE", 7)  # the last slice is a shorter one
    monkeypatch.setattr(module, "MAX_ROWS", {"cpu": 7 if num_logits == 2**14 else 2**30, "cuda": 1})
    head, states, rows, targets = draw(has_bias=has_bias, is_frozen=is_frozen)
    found = linear_logprobs(
        states, head, rows, targets, 0.7, has_entropy_gradient=has_entropy_gradient
    )
    inputs = [states, *(() if is_frozen else head.parameters())]
    exact = [x.detach().double().requires_grad_() for x in (states, *head.parameters())]
    bias = exact[2] if has_bias else None
    expected = compute_plainly(exact[0], exact[1], bias, rows, targets, 0.7)
    for values, right in zip(found, expected, strict=True):
        assert torch.allclose(values.double(), right, rtol=1e-6, atol=1e-5)
    assert found[1].requires_grad == has_entropy_gradient
    got = differentiate(found, inputs, has_entropy_gradient)
    right = differentiate(expected, exact[: len(inputs)], has_entropy_gradient)
    # 3e-6 with one thread; with two, kernels for such narrow slices round to 3e-5
    for a, b in zip(got, right, strict=True):
        assert (a - b).abs().max() <= 1e-4 * b.abs().max()


@pytest.mark.parametrize("is_frozen", [True, False])
def test_layers_of_16_bits_compute_in_float32(is_frozen):
    head, states, rows, targets = draw(torch.bfloat16, is_frozen=is_frozen)
    found = linear_logprobs(states, head, rows, targets)
    wide = states.detach().float().requires_grad_()
    expected = compute_plainly(wide, head.weight.detach().float(), None, rows, targets, 1.0)
    assert found[0].dtype == torch.float32
    assert torch.allclose(found[0], expected[0], atol=1e-4)
    (got,) = differentiate(found, [states], False)
    (right,) = differentiate(expected, [wide], False)
    assert got.dtype == torch.bfloat16
    assert torch.allclose(got.float(), right, rtol=0.01, atol=0.01)  # of 8 bits


@pytest.mark.parametrize("is_frozen", [True, False])
def test_gradients_are_the_same_to_the_bit_with_several_threads(is_frozen):
    head = draw(is_frozen=is_frozen)[0]
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(64, WIDTH, generator=generator, requires_grad=True)
    rows = torch.arange(40_000) % 64  # many tokens of a row: more than a thread's share
    targets = torch.randint(0, VOCABULARY, (len(rows),), generator=generator)
    weights = torch.randn(len(rows), generator=generator)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        found = set()
        for _ in range(20):
            logprobs, _ = linear_logprobs(states, head, rows, targets)
            (grad,) = torch.autograd.grad((logprobs * weights).sum(), [states])
            found.add(grad.numpy().tobytes())
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


def test_autocast_changes_nothing():
    head, states, rows, targets = draw()
    plain = linear_logprobs(states, head, rows, targets, has_entropy_gradient=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = linear_logprobs(states, head, rows, targets, has_entropy_gradient=True)
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))


def test_nothing_is_kept_where_no_gradient_is_wanted():
    head, states, rows, targets = draw()
    with torch.no_grad():
        logprobs, entropy = linear_logprobs(states, head, rows, targets)
    assert not logprobs.requires_grad and not entropy.requires_grad
    kept = linear_logprobs(states, head, rows, targets)
    assert torch.equal(kept[0], logprobs) and torch.equal(kept[1], entropy)


def test_logits_that_are_no_numbers_are_seen_in_the_result():
    head, states, rows, targets = draw()
    with torch.no_grad():
        head.weight[500] = torch.nan
        assert linear_logprobs(states, head, rows, targets)[0].isnan().all()


def with_lora(model, **settings):
    use_float_head(model)
    return attach_lora(PolicyBase(model, None, "test"), LoraSettings(rank=2, **settings))


def is_plain(policy):
    return gives_logits(policy.base.model.get_output_embeddings(), policy.model)


def test_models_that_change_their_logits_are_found():
    assert is_plain(make_policy())
    plain = {**SMALL, "final_logit_softcapping": None}
    assert is_plain(with_lora(Gemma2ForCausalLM(Gemma2Config(**plain))))
    capped = {**SMALL, "final_logit_softcapping": 5.0}
    assert not is_plain(with_lora(Gemma2ForCausalLM(Gemma2Config(**capped))))
    capped = {name: value for name, value in SMALL.items() if name != "head_dim"}
    assert not is_plain(with_lora(CohereForCausalLM(CohereConfig(**capped, logit_scale=0.5))))


def test_the_probe_sees_what_is_changed_in_place_and_leaves_the_model_as_it_was():
    class Scaled(Gemma2ForCausalLM):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits.mul_(0.25)
            return output

    assert not is_plain(with_lora(Scaled(Gemma2Config(**SMALL, final_logit_softcapping=None))))
    policy = make_policy()
    policy.model.train(False)
    policy.model.training = True  # as PEFT leaves it
    modes = [part.training for part in policy.model.modules()]
    assert is_plain(policy)
    assert [part.training for part in policy.model.modules()] == modes


@pytest.mark.parametrize("cap", [None, 5.0])
def test_scores_are_those_of_the_models_own_logits(cap):
    policy = with_lora(Gemma2ForCausalLM(Gemma2Config(**SMALL, final_logit_softcapping=cap)))
    settings = Settings.model_validate({"env_runners": {"temperature": 0.5}})
    sample, *_ = list_samples(random_groups())
    (scores,) = ModelRunner(settings, policy).score([sample])
    prompt, tokens = sample.trajectory.prompt_ids, sample.trajectory.token_ids
    ids = torch.from_numpy(np.concatenate([prompt, tokens]))
    with torch.no_grad():
        logprobs = (policy.model(input_ids=ids[None]).logits[0] / 0.5).log_softmax(-1)
    places = len(prompt) + np.flatnonzero(sample.trajectory.loss_mask)
    assert np.allclose(scores.logprobs, logprobs[places - 1, ids[places]], atol=1e-5)
