"""Each loss, value and gradient, against a few lines of its own."""

import math

import pytest
import torch

from agentpeft.policies.learning import losses

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


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        ("k1", lambda p, q: math.log(p / q), lambda p, q: 1.0),
        ("k2", lambda p, q: math.log(p / q) ** 2 / 2, lambda p, q: math.log(p / q)),
        ("k3", lambda p, q: q / p - 1 - math.log(q / p), lambda p, q: 1 - q / p),
    ],
)
def test_kl_estimators_have_schulmans_values_and_slopes(estimator, value, slope):
    new = torch.tensor([math.log(0.5), math.log(0.1)], requires_grad=True)
    kl = losses.compute_kl(new, torch.tensor([0.3, 0.2]).log(), estimator)
    kl.sum().backward()
    pairs = [(0.5, 0.3), (0.1, 0.2)]
    assert kl.tolist() == pytest.approx([value(*pair) for pair in pairs], abs=1e-6)
    assert new.grad.tolist() == pytest.approx([slope(*pair) for pair in pairs], abs=1e-6)


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
