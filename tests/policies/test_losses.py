"""Each loss, value and gradient, against a few lines of its own."""

import math

import pytest
import torch

from agentpeft.policies.learning import losses
from agentpeft.policies.learning.losses import spread_ratio

CLIP = losses.ClipRange(0.2, 0.3)
OLD = [-1.0, -1.0, -1.0, -1.0, -1.0]
NEW = [-0.5, -0.5, -1.5, -1.5, -0.9]
ADVANTAGES = [1.0, -1.0, 1.0, -1.0, 2.0]


def tensors():
    return torch.tensor(NEW, requires_grad=True), torch.tensor(OLD), torch.tensor(ADVANTAGES)


def test_policy_gradient_is_the_weighted_negative_logprob():
    new, old, advantages = tensors()
    loss = losses.policy_gradient(new, old, advantages, CLIP)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([0.5, -0.5, 1.5, -1.5, 1.8])
    assert new.grad.tolist() == [-a for a in ADVANTAGES]


def test_clipped_ratio_is_ppos_objective_with_a_higher_upper_bound():
    new, old, advantages = tensors()
    loss = losses.clipped_ratio(new, old, advantages, CLIP)
    loss.sum().backward()
    ratios = [math.exp(n - o) for n, o in zip(NEW, OLD, strict=True)]
    up, down, near = ratios[0], ratios[2], ratios[4]
    assert loss.tolist() == pytest.approx([-1.3, up, -down, 0.8, -2 * near])
    assert new.grad.tolist() == pytest.approx([0, up, -down, 0, -2 * near])
    clipped = losses.is_clipped(new, old, advantages, CLIP)
    assert clipped.tolist() == [True, False, False, True, False]


def test_clipped_weight_is_cispos_objective():
    new, old, advantages = tensors()
    wide = losses.ClipRange(1.0, 0.3)
    loss = losses.clipped_weight(new, old, advantages, wide)
    loss.sum().backward()
    ratios = [math.exp(n - o) for n, o in zip(NEW, OLD, strict=True)]
    weights = [min(max(r, 0.0), 1.3) for r in ratios]  # no lower bound
    slopes = [-w * a for w, a in zip(weights, ADVANTAGES, strict=True)]
    assert new.grad.tolist() == pytest.approx(slopes)
    assert loss.tolist() == pytest.approx([s * n for s, n in zip(slopes, NEW, strict=True)])


@pytest.mark.parametrize("advantages", [(1.0, -1.0), (-0.5, 2.0)])
@pytest.mark.parametrize("clip", [losses.ClipRange(3e-4, 4e-4), losses.ClipRange(0.5, 0.5)])
def test_gspo_is_the_mean_over_sequences_of_their_clipped_ratios(advantages, clip):
    advantages = torch.tensor(advantages).double()
    old = [torch.tensor([-1.0, -2.0, -0.5]).double(), torch.tensor([-0.3, -1.1]).double()]
    new = [
        torch.tensor([-0.9, -1.8, -0.6]).double().requires_grad_(),
        torch.tensor([-0.5, -1.2]).double().requires_grad_(),
    ]
    expected = torch.zeros(()).double()
    for pi, pi_old, advantage in zip(new, old, advantages, strict=True):
        s = (pi.sum().exp() / pi_old.sum().exp()) ** (1 / len(pi))
        bounded = s.clamp(1 - clip.low, 1 + clip.high)
        expected = expected - torch.min(s * advantage, bounded * advantage) / 2
    slopes = torch.autograd.grad(expected, new)

    flat = torch.cat([each.detach() for each in new]).requires_grad_()
    sequences = torch.tensor([0, 0, 0, 1, 1])
    compared = spread_ratio(flat, torch.cat(old), sequences)
    per_token = losses.clipped_ratio(flat, compared, advantages[sequences], clip)
    first, second = losses.compute_token_weights("sequence", [3, 2], 0)
    loss = per_token[:3].sum() * first + per_token[3:].sum() * second
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert flat.grad.tolist() == pytest.approx(torch.cat(slopes).tolist(), rel=1e-6)


def test_the_kl_has_the_value_and_slope_of_schulmans_k3():
    new = torch.tensor([math.log(0.5), math.log(0.1)], requires_grad=True)
    kl = losses.compute_kl(new, torch.tensor([0.3, 0.2]).log())
    kl.sum().backward()
    pairs = [(0.5, 0.3), (0.1, 0.2)]
    values = [q / p - 1 - math.log(q / p) for p, q in pairs]
    assert kl.tolist() == pytest.approx(values, abs=1e-6)
    assert new.grad.tolist() == pytest.approx([1 - q / p for p, q in pairs], abs=1e-6)


def test_importance_weights_are_probability_ratios_up_to_the_cap():
    old, sampling = torch.tensor([0.6, 0.2]).log(), torch.tensor([0.2, 0.4]).log()
    assert losses.importance_weights(old, sampling, 2.0).tolist() == pytest.approx([2.0, 0.5])


@pytest.mark.parametrize(
    ("normalization", "expected"),
    [("token", [1 / 4, 1 / 4]), ("sequence", [1 / 2, 1 / 6]), ("constant", [1 / 20, 1 / 20])],
)
def test_token_weights_normalize_by_all_tokens_sequences_or_a_constant(normalization, expected):
    weights = losses.compute_token_weights(normalization, [1, 3, 0], constant=10)
    assert len(weights) == 3
    assert weights[:2] == pytest.approx(expected)
