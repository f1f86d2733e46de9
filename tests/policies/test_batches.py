"""Micro-batches compute what every sequence alone would."""

import numpy as np
import pytest
import torch
from learner_parts import make_group, make_policy, make_trajectory, random_groups
from transformers import Gemma2Config, Qwen2Config

from agentpeft.policies.learning.batches import make_micro_batches
from agentpeft.policies.learning.model_runner import (
    can_share_prompts,
    compute_logits,
)
from agentpeft.policies.learning.samples import list_members
from agentpeft.policies.models.linear_logprobs import linear_logprobs
from agentpeft.policies.models.scoring import token_entropy, token_logprobs


def compute_all(policy, members, share, max_tokens=10_000, has_logits=True):
    """Log-probabilities and entropies by member, from micro-batches, with logits or without."""
    head, found = policy.base.model.get_output_embeddings(), {}
    for batch in make_micro_batches(members, max_tokens, share, torch.device("cpu")):
        logits, states = compute_logits(policy.model, head, batch, has_logits)
        if has_logits:
            logprobs = token_logprobs(logits, batch.slots, batch.targets)
            values = logprobs, token_entropy(logits, batch.slots)
        else:
            values = linear_logprobs(
                states, head, batch.slots, batch.targets, has_entropy_gradient=True
            )
        by_member = zip(*(each.split(batch.num_tokens) for each in values), strict=True)
        found.update(zip(batch.order, by_member, strict=True))
    return [found[number] for number in range(len(members))]


def compute_alone(policy, member):
    """The same from one unpadded forward pass over the sequence."""
    t = member.trajectory
    ids = torch.tensor(np.concatenate([t.prompt_ids, t.token_ids]))[None]
    logprobs = policy.model(input_ids=ids).logits[0].log_softmax(-1)
    positions = torch.tensor(np.flatnonzero(t.loss_mask) + len(t.prompt_ids))
    rows = logprobs[positions - 1]
    return rows[range(len(rows)), ids[0, positions]], -(rows.exp() * rows).sum(-1)


@pytest.mark.parametrize("has_logits", [True, False])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("max_tokens", [1, 60, 10_000])
def test_logprobs_and_entropies_are_those_of_each_sequence_alone(share, max_tokens, has_logits):
    policy, members = make_policy(nonzero=True), list_members(random_groups())
    found = compute_all(policy, members, share, max_tokens, has_logits)
    for member, got in zip(members, found, strict=True):
        for values, expected in zip(got, compute_alone(policy, member), strict=True):
            assert torch.allclose(values, expected, atol=1e-5)


@pytest.mark.parametrize("has_gradient", [True, False])
def test_the_entropy_of_a_large_vocabulary_is_that_of_each_position(has_gradient):
    (batch,) = make_micro_batches(list_members(random_groups()), 10_000, True, torch.device("cpu"))
    size = int(batch.slots.max()) + 1
    logits = torch.randn(size, 150_000, generator=torch.manual_seed(0)) * 5
    expected = torch.distributions.Categorical(logits=logits).entropy()[batch.slots]
    with torch.set_grad_enabled(has_gradient):
        found = token_entropy(logits.requires_grad_(), batch.slots)
    assert torch.allclose(found, expected, rtol=1e-4)
    assert found.requires_grad == has_gradient


@pytest.mark.parametrize("use_lora", [True, False])
@pytest.mark.parametrize("has_logits", [True, False])
@pytest.mark.parametrize("share", [True, False])
def test_gradients_are_those_of_each_sequence_alone(share, has_logits, use_lora):
    policy, members = make_policy(nonzero=True, use_lora=use_lora), list_members(random_groups())
    parameters = policy.trainable_parameters()
    losses = [
        sum((a.square() + b).mean() / len(members) for a, b in values)
        for values in (
            compute_all(policy, members, share, 100, has_logits),
            [compute_alone(policy, member) for member in members],
        )
    ]
    got, expected = (torch.autograd.grad(loss, parameters) for loss in losses)
    for a, b in zip(got, expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_shared_prompt_and_equal_answers_run_once():
    answers = [[5, 6, 7], [5, 6, 7], [5, 6, 9], [8], []]
    group = make_group(0, [make_trajectory([1, 2, 3], answer, 1) for answer in answers])
    (batch,) = make_micro_batches(list_members([group]), 1000, True, torch.device("cpu"))
    assert batch.prompt_ids.tolist() == [[1, 2, 3]]
    assert sorted(batch.row_ids.tolist()) == [[0, 0], [5, 6]]
    assert sorted(batch.order) == [0, 1, 2, 3]
    assert len(batch.needed_prompts) + len(batch.needed_rows) == 3


def test_answers_of_one_token_need_no_rows():
    group = make_group(0, [make_trajectory([1, 2], [token], 1) for token in (3, 4)])
    policy, members = make_policy(nonzero=True), list_members([group])
    for member, got in zip(members, compute_all(policy, members, True), strict=True):
        assert torch.allclose(got[0], compute_alone(policy, member)[0], atol=1e-5)


@pytest.mark.parametrize("share", [True, False])
def test_micro_batches_keep_within_the_budget(share):
    members = list_members(random_groups(num_groups=6))
    batches = make_micro_batches(members, 60, share, torch.device("cpu"))
    assert len(batches) > 1
    assert all(b.prompt_ids.numel() + b.row_ids.numel() <= 60 for b in batches)
    assert sorted(n for b in batches for n in b.order) == list(range(len(members)))


def test_prompts_are_shared_only_where_the_cache_is_plain():
    assert can_share_prompts(Qwen2Config())
    assert not can_share_prompts(Gemma2Config())


def count_tokens(batches):
    return sum(batch.prompt_ids.numel() + batch.row_ids.numel() for batch in batches)


def spread_groups(prompt, lengths, num_groups=3):
    rng = np.random.default_rng(0)

    def draw(length):
        return rng.integers(0, 20, length)

    return [
        make_group(g, [make_trajectory(first, draw(length), 1) for length in lengths])
        for g, first in enumerate(draw(prompt) for _ in range(num_groups))
    ]


@pytest.mark.parametrize(("prompt", "lengths"), [(20, [3, 4, 90, 95]), (2, [5, 30, 60, 90])])
def test_a_prompt_is_run_again_where_that_is_less_than_the_padding(prompt, lengths):
    members = list_members(spread_groups(prompt, lengths))
    batches = make_micro_batches(members, 1000, True, torch.device("cpu"))
    padded = 3 * (prompt + len(lengths) * (lengths[-1] - 1))
    assert count_tokens(batches) < 0.75 * padded
    policy = make_policy(nonzero=True)
    for member, got in zip(members, compute_all(policy, members, True, 1000), strict=True):
        for values, expected in zip(got, compute_alone(policy, member), strict=True):
            assert torch.allclose(values, expected, atol=1e-5)


@pytest.mark.parametrize("seed", range(10))
def test_sharing_prompts_never_computes_more_tokens(seed):
    rng = np.random.default_rng(seed)
    prompt, longest = int(rng.integers(1, 40)), int(rng.integers(3, 40))
    members = list_members(spread_groups(prompt, rng.integers(2, longest, 6), 5))
    for max_tokens in (1, 100, 10_000):
        shared, plain = (
            make_micro_batches(members, max_tokens, share, torch.device("cpu"))
            for share in (True, False)
        )
        assert count_tokens(shared) <= count_tokens(plain)


@pytest.mark.parametrize(("prompt", "lengths"), [(100, [11, 11, 11, 51]), (60, [11, 31, 51, 81])])
def test_a_group_is_whole_where_cutting_it_saves_nothing(prompt, lengths):
    members = list_members(spread_groups(prompt, lengths, num_groups=1))
    batches = make_micro_batches(members, 1000, True, torch.device("cpu"))
    assert len(batches) == 1
    assert count_tokens(batches) == prompt + len(lengths) * (lengths[-1] - 1)
