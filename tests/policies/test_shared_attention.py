"""Answers that read their prompt's keys where they are get what copies of them would give."""

import numpy as np
import pytest
import torch
from learner_parts import gradients, make_learner, make_policy, random_groups
from torch import nn
from torch.nn import functional

from agentpeft.policies.learning.passes import packed_attention, shared_attention
from agentpeft.policies.learning.passes.packed_attention import Packing, Segment, _attend

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def share_always(monkeypatch):
    """Prompts and answers of a few tokens are shared too."""
    monkeypatch.setattr(packed_attention, "_MANY_PAIRS", 0)


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
    assert len(packing.large_groups) == len({s.context[0] for s in segments if len(s.context)})
    states = (each.transpose(0, 1)[None] for each in (query, key, value))
    result, _ = _attend(module, *states, None, packing=packing, scaling=scale, dropout=dropout)
    return result[0]


def result_and_gradients(attend, segments, states, weights, **options):
    inputs = [each.clone().requires_grad_() for each in states]
    result = attend(segments, *inputs, 0.3, **options)
    return [result, *torch.autograd.grad(result, inputs, weights)]


@pytest.mark.parametrize("has_kernel", [True, False], ids=["kernel", "copies"])
@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.06)]
)
@pytest.mark.parametrize("seed", range(5))
def test_results_and_gradients_are_those_of_a_masked_square(
    monkeypatch, seed, dtype, limit, has_kernel
):
    if not has_kernel:
        monkeypatch.setattr(packed_attention, "find_kernel", lambda *_: None)
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("size", "num_repeats"), [(16, 1), (64, 7), (80, 4), (128, 5), (256, 16)])
def test_processors_have_a_kernel_for_every_type(dtype, size, num_repeats):
    with torch.inference_mode():
        assert shared_attention.is_right(CPU, dtype, size, num_repeats)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("damage", ["raises", "forwards", "backwards"])
def test_a_kernel_that_fails_or_is_wrong_is_not_used(monkeypatch, damage, dtype):
    attend, attend_backward = shared_attention._attend, shared_attention._attend_backward

    def wrong(*args, **options):
        result, lse = attend(*args, **options)
        if damage == "raises":
            raise NotImplementedError
        return result, lse + 0.1 * (damage == "forwards")

    def wrong_backward(*args, is_causal, **options):
        gradients = attend_backward(*args, is_causal=is_causal, **options)
        return [each * (1.1 if is_causal and damage == "backwards" else 1) for each in gradients]

    monkeypatch.setattr(shared_attention, "_attend", wrong)
    monkeypatch.setattr(shared_attention, "_attend_backward", wrong_backward)
    assert not shared_attention.is_right(CPU, dtype, 64, 2)


def test_want_of_memory_says_nothing_of_kernels(monkeypatch):
    def want(*_, **__):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(shared_attention, "_attend", want)
    with pytest.raises(torch.OutOfMemoryError):
        shared_attention.is_right(CPU, torch.float32, 64, 2)


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


def test_dropout_falls_on_copies():
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
        packed_attention.find_kernel.cache_clear()  # the first pass is the one that asks
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


def test_few_pairs_are_masked_and_many_are_shared(monkeypatch):
    monkeypatch.undo()
    small, large = ([np.arange(n), np.arange(n, 2 * n), np.arange(2 * n, 3 * n)] for n in (50, 300))
    for prompt, *answers in (small, large):
        segments = [Segment(prompt[:0], prompt), *(Segment(prompt, each) for each in answers)]
        cut = Packing(segments, CPU).cut(shares_prompts=True)
        assert len(cut.groups) == (len(prompt) == 300)
        num_keys = sum(block.keys.numel() for block in cut.blocks)
        assert num_keys == (300 if cut.groups else 50 + 2 * 100)
