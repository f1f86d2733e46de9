"""Tokens of a packed row get what each sequence alone would give them."""

import numpy as np
import pytest
import torch
from learner_parts import gradients, make_learner, make_policy, random_groups
from torch import nn
from torch.nn import functional

from agentpeft.policies.learning.passes.packed_attention import Packing, Segment, _attend

CPU = torch.device("cpu")


def draw_segments(rng, num_groups):
    """Prompts with answers of many lengths, and sequences without a prompt between them."""
    segments, stop = [], 0

    def add(context, length):
        nonlocal stop
        places = np.arange(stop, stop + length)
        stop += length
        segments.append(Segment(context, places))
        return places

    for _ in range(num_groups):
        if rng.random() < 0.3:
            add(np.zeros(0, np.int64), int(rng.integers(1, 50)))
            continue
        prompt = add(np.zeros(0, np.int64), int(rng.integers(1, 80)))
        for _ in range(rng.integers(1, 7)):
            add(prompt, int(rng.integers(1, 120)))
    return segments, stop


def attend_plainly(segments, query, key, value, scale):
    """Every token with every other one, most pairs masked away."""
    is_seen = torch.zeros(len(query), len(query), dtype=torch.bool)
    for segment in segments:
        is_seen[np.ix_(segment.tokens, segment.context)] = True
        size = len(segment.tokens)
        is_seen[np.ix_(segment.tokens, segment.tokens)] = torch.ones(size, size).tril().bool()
    num_repeats = query.shape[1] // key.shape[1]
    states = [query, *(each.repeat_interleave(num_repeats, 1) for each in (key, value))]
    heads_first = (each.transpose(0, 1)[None] for each in states)
    result = functional.scaled_dot_product_attention(*heads_first, attn_mask=is_seen, scale=scale)
    return result[0].transpose(0, 1)


def attend_packed(segments, query, key, value, scale, dropout=0.0):
    module = nn.Module()
    module.num_key_value_groups = query.shape[1] // key.shape[1]
    packing = Packing(segments, CPU)
    states = (each.transpose(0, 1)[None] for each in (query, key, value))
    result, _ = _attend(module, *states, None, packing=packing, scaling=scale, dropout=dropout)
    return result[0]


def result_and_gradients(attend, segments, states, weights, **options):
    inputs = [each.clone().requires_grad_() for each in states]
    result = attend(segments, *inputs, 0.3, **options)
    return [result, *torch.autograd.grad(result, inputs, weights)]


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.06)]
)
@pytest.mark.parametrize("seed", range(5))
def test_results_and_gradients_are_those_of_a_masked_square(seed, dtype, limit):
    rng = np.random.default_rng(seed)
    segments, num_tokens = draw_segments(rng, num_groups=int(rng.integers(1, 6)))
    num_heads, num_repeats, size = rng.integers(1, 4), rng.integers(1, 4), 8 * rng.integers(1, 9)
    generator = torch.Generator().manual_seed(seed)
    heads = [num_heads * num_repeats, num_heads, num_heads, num_heads * num_repeats]
    *states, weights = (
        torch.randn(num_tokens, int(number), int(size), generator=generator).to(dtype)
        for number in heads
    )
    found = result_and_gradients(attend_packed, segments, states, weights)
    exact = [each.double() for each in (*states, weights)]
    expected = result_and_gradients(attend_plainly, segments, exact[:3], exact[3])
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        apart, scale = (one.double() - other).detach().abs().max(), other.detach().abs().max()
        assert apart <= limit * max(1.0, float(scale))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padding_that_would_overflow_harms_nothing(dtype):
    prompt, *answers = np.split(np.arange(10), [4, 5, 7])
    segments = [Segment(prompt[:0], prompt), *(Segment(prompt, each) for each in answers)]
    query, key, value = torch.zeros(3, 10, 1, 8, dtype=dtype)
    query[4], key[5:], value[:] = 100, 100, 1
    for each in result_and_gradients(attend_packed, segments, (query, key, value), value):
        assert each.isfinite().all()


def test_states_may_lie_in_memory_in_any_order():
    segments, num_tokens = draw_segments(np.random.default_rng(1), num_groups=3)
    states = torch.randn(3, num_tokens, 2, 8, generator=torch.Generator().manual_seed(0))
    plain = attend_packed(segments, *states, 0.3)
    odd = states.permute(0, 3, 2, 1).contiguous().permute(0, 3, 2, 1)
    assert torch.equal(attend_packed(segments, *odd, 0.3), plain)


def test_values_may_have_another_size_than_keys():
    segments, num_tokens = draw_segments(np.random.default_rng(1), num_groups=3)
    query, key, wide = torch.randn(3, num_tokens, 2, 16, generator=torch.Generator().manual_seed(0))
    states = query, key, wide[..., :8]
    found, expected = (
        result_and_gradients(attend, segments, states, wide[..., 8:])
        for attend in (attend_packed, attend_plainly)
    )
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_dropout_drops_pairs():
    segments, num_tokens = draw_segments(np.random.default_rng(1), num_groups=3)
    states = torch.randn(3, num_tokens, 2, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    dropped = attend_packed(segments, *states, 0.3, dropout=0.5)
    whole = attend_packed(segments, *states, 0.3)
    assert not torch.allclose(dropped, whole, atol=0.1)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_an_update_has_the_gradients_of_whole_sequences(checkpointing, algorithm):
    found = []
    for sharing in (True, False):
        policy = make_policy(nonzero=True, checkpointing=checkpointing)
        learners = {"max_tokens_per_micro_batch": 8192 if sharing else 1}
        learners |= {"gradient_checkpointing": checkpointing}
        learner = make_learner(policy, learners, algorithm=algorithm, max_grad_norm=1e9)
        found.append(gradients(learner, random_groups()))
    assert torch.allclose(*found, rtol=1e-5, atol=1e-6)
    assert found[0].abs().max() > 1e-4


def test_autocast_computes_in_its_own_type():
    segments, num_tokens = draw_segments(np.random.default_rng(1), num_groups=3)
    states = torch.randn(3, num_tokens, 2, 8, generator=torch.Generator().manual_seed(0))
    mixed = [states[0], states[1], states[2].bfloat16()]  # as after rotation in float32
    with torch.autocast("cpu", torch.bfloat16):
        result = attend_packed(segments, *mixed, 0.3)
    assert result.dtype == torch.bfloat16
    assert torch.allclose(result.float(), attend_packed(segments, *states, 0.3), atol=0.05)
