"""Micro-batches compute what every sequence alone would."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from learner_parts import make_group, make_policy, make_trajectory, random_groups
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Qwen3Config,
)

from agentpeft.policies.learning.passes.micro_batches import compute_logits, make_micro_batches
from agentpeft.policies.learning.passes.packed_attention import can_pack, packed_attention
from agentpeft.policies.learning.samples import list_samples
from agentpeft.policies.models.linear_logprobs import linear_logprobs
from agentpeft.policies.models.scoring import token_entropy, token_logprobs

every_layout = pytest.mark.parametrize("is_packed", [True, False], ids=["packed", "padded"])


def make_batches(samples, max_tokens=10_000, is_packed=True):
    device = torch.device("cpu")
    return make_micro_batches(samples, max_tokens, is_packed=is_packed, device=device)


def compute_all(policy, samples, is_packed=True, max_tokens=10_000, has_logits=True):
    """Log-probabilities and entropies by member, from micro-batches, with logits or without."""
    head, found = policy.base.model.get_output_embeddings(), {}
    for batch in make_batches(samples, max_tokens, is_packed):
        with packed_attention(policy.base.model) if is_packed else nullcontext():
            logits, states = compute_logits(policy.model, head, batch, has_logits)
        if has_logits:
            logprobs = token_logprobs(logits, batch.slots, batch.targets)
            values = logprobs, token_entropy(logits, batch.slots)
        else:
            values = linear_logprobs(
                states, head, batch.slots, batch.targets, has_entropy_gradient=True
            )
        by_sample = zip(*(each.split(batch.num_tokens) for each in values), strict=True)
        found.update(zip(batch.order, by_sample, strict=True))
    return [found[number] for number in range(len(samples))]


def compute_alone(policy, member):
    """The same from one unpadded forward pass over the sequence."""
    t = member.trajectory
    ids = torch.tensor(np.concatenate([t.prompt_ids, t.token_ids]))[None]
    logprobs = policy.model(input_ids=ids).logits[0].log_softmax(-1)
    positions = torch.tensor(np.flatnonzero(t.loss_mask) + len(t.prompt_ids))
    rows = logprobs[positions - 1]
    return rows[range(len(rows)), ids[0, positions]], -(rows.exp() * rows).sum(-1)


@pytest.mark.parametrize("has_logits", [True, False])
@every_layout
@pytest.mark.parametrize("max_tokens", [1, 60, 10_000])
def test_logprobs_and_entropies_are_those_of_each_sequence_alone(is_packed, max_tokens, has_logits):
    policy, samples = make_policy(nonzero=True), list_samples(random_groups())
    found = compute_all(policy, samples, is_packed, max_tokens, has_logits)
    for member, got in zip(samples, found, strict=True):
        for values, expected in zip(got, compute_alone(policy, member), strict=True):
            assert torch.allclose(values, expected, atol=1e-5)


@pytest.mark.parametrize("has_gradient", [True, False])
def test_the_entropy_of_a_large_vocabulary_is_that_of_each_position(has_gradient):
    (batch,) = make_batches(list_samples(random_groups()))
    size = int(batch.slots.max()) + 1
    logits = torch.randn(size, 150_000, generator=torch.manual_seed(0)) * 5
    expected = torch.distributions.Categorical(logits=logits).entropy()[batch.slots]
    with torch.set_grad_enabled(has_gradient):
        found = token_entropy(logits.requires_grad_(), batch.slots)
    assert torch.allclose(found, expected, rtol=1e-4)
    assert found.requires_grad == has_gradient


@pytest.mark.parametrize("rank", [4, 0])
@pytest.mark.parametrize("has_logits", [True, False])
@every_layout
def test_gradients_are_those_of_each_sequence_alone(is_packed, has_logits, rank):
    policy, samples = make_policy(nonzero=True, rank=rank), list_samples(random_groups())
    parameters = policy.trainable_parameters()
    losses = [
        sum((a.square() + b).mean() / len(samples) for a, b in values)
        for values in (
            compute_all(policy, samples, is_packed, 100, has_logits),
            [compute_alone(policy, member) for member in samples],
        )
    ]
    got, expected = (torch.autograd.grad(loss, parameters) for loss in losses)
    for a, b in zip(got, expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_shared_prompt_and_equal_answers_run_once():
    answers = [[5, 6, 7], [5, 6, 7], [5, 6, 9], [8], []]
    group = make_group(0, [make_trajectory([1, 2, 3], answer, 1) for answer in answers])
    (batch,) = make_batches(list_samples([group]))
    assert batch.token_ids.tolist() == [[1, 2, 3, 5, 6]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4]]
    assert sorted(batch.order) == [0, 1, 2, 3]
    assert len(batch.needed) == 3


def test_answers_of_one_token_need_no_rows():
    group = make_group(0, [make_trajectory([1, 2], [token], 1) for token in (3, 4)])
    policy, samples = make_policy(nonzero=True), list_samples([group])
    for member, got in zip(samples, compute_all(policy, samples), strict=True):
        assert torch.allclose(got[0], compute_alone(policy, member)[0], atol=1e-5)


@every_layout
def test_micro_batches_keep_within_the_budget(is_packed):
    samples = list_samples(random_groups(num_groups=6))
    batches = make_batches(samples, 60, is_packed)
    assert len(batches) > 1
    assert all(batch.token_ids.numel() <= 60 for batch in batches)
    assert sorted(n for b in batches for n in b.order) == list(range(len(samples)))


SMALL = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LlamaConfig(**SMALL), True),
        (Qwen3Config(**SMALL, head_dim=4), True),
        (MistralConfig(**SMALL, sliding_window=None), True),
        (MistralConfig(**SMALL, sliding_window=4096), False),
        (Gemma2Config(**SMALL, head_dim=4), False),  # a window in every other layer
        (Gemma2Config(**SMALL, head_dim=4, layer_types=["full_attention"] * 2), False),  # soft cap
        (BloomConfig(vocab_size=50, hidden_size=16, n_layer=2, n_head=4), False),  # distances
        (GptOssConfig(**SMALL, head_dim=4, layer_types=["full_attention"] * 2), False),  # sinks
        (MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2), False),
    ],
    ids=lambda value: value.model_type if not isinstance(value, bool) else "",
)
def test_models_are_packed_where_attention_sees_all_that_was_before_and_no_more(config, expected):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    before = model.config._attn_implementation
    assert can_pack(model, model) == expected
    assert model.config._attn_implementation == before


class _WithoutPositions(torch.nn.Module):
    """Gives each token the position of its place in the row, and all logits 5 more."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, position_ids=None, **options):
        output = self.model(input_ids=input_ids, **options)
        output.logits = output.logits + 5
        return output


@pytest.mark.parametrize("scale", [1, 5])  # with 1 positions say less than bfloat16 rounds off
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_takes_no_positions_is_not_packed(dtype, scale):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL | {"vocab_size": 500}))
    for parameter in model.parameters():
        parameter.data *= scale
    model = model.to(dtype).eval()
    assert can_pack(model, model)
    assert not can_pack(model, _WithoutPositions(model))


def test_rounding_to_16_bits_in_many_layers_hinders_no_packing():
    torch.manual_seed(0)
    config = LlamaConfig(**SMALL | {"num_hidden_layers": 24, "vocab_size": 20_000})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").bfloat16().eval()
    assert can_pack(model, model)


def count_tokens(batches):
    return sum(batch.token_ids.numel() for batch in batches)


def spread_groups(prompt, lengths, num_groups=3):
    rng = np.random.default_rng(0)

    def draw(length):
        return rng.integers(0, 20, length)

    return [
        make_group(g, [make_trajectory(first, draw(length), 1) for length in lengths])
        for g, first in enumerate(draw(prompt) for _ in range(num_groups))
    ]


@pytest.mark.parametrize(
    ("prompt", "lengths"), [(20, [3, 4, 90, 95]), (2, [5, 30, 60, 90]), (30, [2, 40, 300, 290])]
)
def test_nothing_is_padded_or_computed_twice(prompt, lengths):
    samples = list_samples(spread_groups(prompt, lengths))
    batches = make_batches(samples, 1000)
    assert count_tokens(batches) == 3 * (prompt + sum(length - 1 for length in lengths))
    policy = make_policy(nonzero=True)
    for member, got in zip(samples, compute_all(policy, samples, max_tokens=1000), strict=True):
        for values, expected in zip(got, compute_alone(policy, member), strict=True):
            assert torch.allclose(values, expected, atol=1e-5)


@pytest.mark.parametrize("seed", range(10))
def test_packing_never_computes_more_tokens_than_padding(seed):
    rng = np.random.default_rng(seed)
    prompt, longest = int(rng.integers(1, 40)), int(rng.integers(3, 40))
    samples = list_samples(spread_groups(prompt, rng.integers(2, longest, 6), 5))
    for max_tokens in (1, 100, 10_000):
        packed, padded = (
            count_tokens(make_batches(samples, max_tokens, layout)) for layout in (True, False)
        )
        assert packed <= padded
