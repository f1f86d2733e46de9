"""Attention by a GPU's kernels: the sums around them, with exact kernels in their places."""

import math

import numpy as np
import pytest
import torch
from learner_parts import gradients, make_learner, make_policy, random_groups
from test_shared_attention import attend_plainly, draw_segments

from agentpeft.policies.learning.passes import packed_attention, varlen_attention
from agentpeft.policies.learning.passes.varlen_attention import RowRuns, attend_to_runs

CPU = torch.device("cpu")


def scores_of(query, key, is_causal, scale):
    """The scores (H, Q, K) of one run, and the queries' and keys' repeats."""
    repeats = query.shape[1] // key.shape[1]
    scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(repeats, 1)) * scale
    if is_causal:
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores, repeats


def cut(tensor, runs):
    return torch.tensor_split(tensor, runs.bounds[1:-1].long())


def attend(row, queries, keys, *, is_causal, scale):
    """As FlashAttention's kernel for runs: what sees no key has 0, and an LSE of +inf."""
    query, key, value = row
    assert queries.bounds.dtype == torch.int32
    assert queries.longest == queries.bounds.diff().max()
    assert keys.longest == keys.bounds.diff().max()
    assert queries.bounds[-1] == len(query)
    assert keys.bounds[-1] == len(key)
    results, lses = [], []
    for q, k, v in zip(cut(query, queries), cut(key, keys), cut(value, keys), strict=True):
        scores, repeats = scores_of(q, k, is_causal, scale)
        if len(k):
            results.append(
                torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.repeat_interleave(repeats, 1))
            )
            lses.append(scores.logsumexp(-1))
        else:
            results.append(torch.zeros_like(q))
            lses.append(torch.full((q.shape[1], len(q)), math.inf, dtype=q.dtype))
    return torch.cat(results), torch.cat(lses, 1), torch.zeros(2)


def attend_backward(whole, row, queries, keys, *, is_causal, scale):
    """As the kernel's: the odds are those of the LSE that is given."""
    gradient, result, lse, _ = whole
    query, key, value = row
    assert gradient.is_contiguous()
    found = []
    parts = (cut(each, queries) for each in (gradient, result, lse.T, query))
    for g, r, given, q, k, v in zip(*parts, cut(key, keys), cut(value, keys), strict=True):
        assert len(q) or not len(k), "the kernel reads beyond such a run"
        scores, repeats = scores_of(q, k, is_causal, scale)
        odds = (scores - given.T[..., None]).exp()
        of_odds = torch.einsum("qhd,khd->hqk", g, v.repeat_interleave(repeats, 1))
        of_scores = odds * (of_odds - (g * r).sum(-1).T[..., None]) * scale
        of_query = torch.einsum("hqk,khd->qhd", of_scores, k.repeat_interleave(repeats, 1))
        wide = torch.einsum("hqk,qhd->khd", of_scores, q), torch.einsum("hqk,qhd->khd", odds, g)
        found.append((of_query, *(each.unflatten(1, (-1, repeats)).sum(2) for each in wide)))
    return [torch.cat(each) for each in zip(*found, strict=True)]


@pytest.fixture(autouse=True)
def exact_kernels(monkeypatch):
    monkeypatch.setattr(varlen_attention, "_attend", attend)
    monkeypatch.setattr(varlen_attention, "_attend_backward", attend_backward)


@pytest.mark.parametrize("seed", range(8))
def test_results_and_gradients_are_those_of_a_masked_square(seed):
    rng = np.random.default_rng(seed)
    segments, num_tokens = draw_segments(rng, num_groups=int(rng.integers(1, 6)))
    num_heads, num_repeats, size = (int(n) for n in rng.integers(1, 4, 3))
    heads = [num_heads * num_repeats, num_heads, num_heads, num_heads * num_repeats]
    generator = torch.Generator().manual_seed(seed)
    *states, weights = (
        torch.randn(num_tokens, number, size, generator=generator, dtype=torch.float64)
        for number in heads
    )
    runs, found = RowRuns(segments, CPU), []
    for is_ours in (True, False):
        row = [each.clone().requires_grad_() for each in states]
        result = attend_to_runs(row, runs, 0.3) if is_ours else attend_plainly(segments, *row, 0.3)
        found.append([result, *torch.autograd.grad(result, row, weights)])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_an_update_has_the_gradients_of_whole_sequences(monkeypatch, checkpointing, algorithm):
    monkeypatch.setattr(packed_attention, "_MANY_PAIRS", 0)  # on a CPU large groups alone ask
    asked = []
    found = []
    for serves in (True, False):
        monkeypatch.setattr(
            packed_attention,
            "find_kernel",
            lambda *of, serves=serves: asked.append(of) or ("varlen" if serves else None),
        )
        policy = make_policy(nonzero=True, checkpointing=checkpointing)
        learners = {"max_tokens_per_micro_batch": 8192 if serves else 1}
        learners |= {"gradient_checkpointing": checkpointing}
        learner = make_learner(policy, learners, algorithm=algorithm, max_grad_norm=1e9)
        found.append(gradients(learner, random_groups()))
    assert torch.allclose(*found, rtol=1e-5, atol=1e-6)
    assert found[0].abs().max() > 1e-4
    assert asked


@pytest.mark.parametrize("damage", ["raises", "forwards", "backwards", None])
def test_a_kernel_that_fails_or_is_wrong_is_not_used(monkeypatch, damage):
    def wrong(*args, **options):
        result, lse, note = attend(*args, **options)
        if damage == "raises":
            raise NotImplementedError
        return result, lse + 0.3 * (damage == "forwards"), note

    def wrong_backward(*args, is_causal, **options):
        found = attend_backward(*args, is_causal=is_causal, **options)
        return [each * (1.5 if is_causal and damage == "backwards" else 1) for each in found]

    monkeypatch.setattr(varlen_attention, "_attend", wrong)
    monkeypatch.setattr(varlen_attention, "_attend_backward", wrong_backward)
    assert varlen_attention.is_right(CPU, torch.float32, 64, 2) == (damage is None)


def test_a_trial_in_inference_mode_says_the_same():
    with torch.inference_mode():
        assert varlen_attention.is_right(CPU, torch.float32, 64, 2)


def test_processors_and_exact_numbers_are_not_asked():
    assert packed_attention.find_kernel(CPU, torch.bfloat16, 64, 2) == "shared"
    assert packed_attention.find_kernel(torch.device("cuda"), torch.float32, 64, 2) is None
