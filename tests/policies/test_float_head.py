"""Products with bfloat16 weights on GPUs are as exact as float32: here with a CPU's arithmetic."""

import pytest
import torch
from torch import nn

from agentpeft.policies.models import linear_logprobs, scoring
from agentpeft.policies.models.scoring import (
    FloatHead,
    bfloat16_parts,
    float_product,
    takes_bfloat16,
)

NUM_ROWS, WIDTH, VOCABULARY = 24, 64, 700


def draw(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Takes a GPU's way on this CPU, whose torch lacks the one operation that it needs."""
    torch_mm, calls = torch.mm, []

    def mm(left, right, *, out_dtype):
        assert left.dtype == right.dtype == torch.bfloat16 and out_dtype == torch.float32
        calls.append(left.shape)
        return torch_mm(left.float(), right.float())

    for module in (scoring, linear_logprobs):
        monkeypatch.setattr(module, "takes_bfloat16", lambda dtype, _: dtype == torch.bfloat16)
    monkeypatch.setattr(torch, "mm", mm)
    return calls


def test_only_bfloat16_weights_on_a_gpu_stay_as_they_are():
    types, kinds = (torch.bfloat16, torch.float16, torch.float32), ("cuda", "cpu")
    taken = [(t, kind) for t in types for kind in kinds if takes_bfloat16(t, torch.device(kind))]
    assert taken == [(torch.bfloat16, "cuda")]


def test_a_number_is_the_sum_of_its_parts():
    values = torch.cat([draw(10_000), draw(10_000, seed=1).exp(), -draw(10_000, seed=2) * 1e-20])
    parts = bfloat16_parts(values)
    assert [part.dtype for part in parts] == [torch.bfloat16] * 3
    assert torch.equal(sum(part.double() for part in parts), values.double())
    (same,) = bfloat16_parts(parts[0])
    assert same is parts[0]


def test_products_of_two_bfloat16_numbers_are_exact_in_float32():
    one, other = draw(5000, dtype=torch.bfloat16), draw(5000, dtype=torch.bfloat16, seed=1)
    assert torch.equal((one.float() * other.float()).double(), one.double() * other.double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_product_has_the_error_of_float32(dtype):
    left, right = draw(NUM_ROWS, WIDTH, dtype=dtype), draw(WIDTH, 50, dtype=torch.bfloat16, seed=1)
    exact = left.double() @ right.double()
    assert (float_product(left, right).double() - exact).abs().max() < 1e-5
    if dtype == torch.float32:  # one part alone would not do
        assert (left.bfloat16().double() @ right.double() - exact).abs().max() > 1e-2


@pytest.mark.parametrize("is_frozen", [True, False])
@pytest.mark.parametrize("has_entropy_gradient", [True, False])
def test_log_probabilities_and_gradients_are_those_of_float32(
    request, is_frozen, has_entropy_gradient
):
    head = nn.Linear(WIDTH, VOCABULARY, bias=False)
    head.weight = nn.Parameter(draw(VOCABULARY, WIDTH, dtype=torch.bfloat16), not is_frozen)
    rows = torch.arange(NUM_ROWS)
    targets, weights = rows * 7 % VOCABULARY, draw(2, NUM_ROWS, seed=3)

    def compute():
        states = draw(NUM_ROWS, WIDTH, seed=2).bfloat16().requires_grad_()
        states = states * torch.linspace(0.1, 2, NUM_ROWS).bfloat16()[:, None]
        options = {"has_entropy_gradient": has_entropy_gradient}
        found = linear_logprobs.linear_logprobs(states, head, rows, targets, 0.7, **options)
        loss = (found[0] * weights[0] + found[1] * weights[1]).sum()
        inputs = [states, *(() if is_frozen else [head.weight])]
        return [*found, *torch.autograd.grad(loss, inputs)]

    plain = compute()
    calls = request.getfixturevalue("as_on_a_gpu")
    for a, b in zip(compute(), plain, strict=True):
        assert torch.allclose(a.float(), b.float(), rtol=1e-2 if a.dtype != b.dtype else 1e-5)
    assert calls


def test_a_float_head_makes_the_same_logits(as_on_a_gpu):
    head = FloatHead(WIDTH, VOCABULARY).bfloat16().requires_grad_(False)
    states = draw(2, 3, WIDTH, dtype=torch.bfloat16)
    with torch.no_grad():
        found = head(states)
    expected = states.float() @ head.weight.float().T + head.bias.float()
    assert found.shape == (2, 3, VOCABULARY) and torch.allclose(found, expected, atol=1e-5)
    assert as_on_a_gpu == [(6, WIDTH)]


@pytest.mark.parametrize("has_bias", [True, False])
def test_weights_in_bfloat16_are_converted_a_slice_at_a_time_on_a_cpu(has_bias, monkeypatch):
    head = FloatHead(WIDTH, 70_000, bias=has_bias).bfloat16()  # two slices and a part of one
    states = draw(2, 3, WIDTH, dtype=torch.bfloat16)
    expected = states.float() @ head.weight.float().T + (head.bias.float() if has_bias else 0)
    sizes, copy = [], torch.Tensor.copy_

    def note(target, source):
        sizes.append(len(source))
        return copy(target, source)

    monkeypatch.setattr(torch.Tensor, "copy_", note)
    with torch.no_grad():
        logits = head(states)
    assert logits.dtype == torch.float32 and torch.allclose(logits, expected, atol=1e-5)
    assert sum(sizes) == 70_000 and max(sizes) < 35_000
