"""A LoRA layer as one product: values and gradients against plain ones in double precision."""

import pytest
import torch

from agentpeft.policies.models.lora.lora_layer import lora_product

SCALING = 1.5


def draw(dtype, has_bias):
    """Returns rows, A and B, then W and b; A and B in float32, as an adapter has them."""
    generator = torch.Generator().manual_seed(0)
    of_adapter = torch.float64 if dtype == torch.float64 else torch.float32
    shapes = {(50, 24): dtype, (4, 24): of_adapter, (32, 4): of_adapter, (32, 24): dtype}
    drawn = [torch.randn(each, generator=generator).to(kind) for each, kind in shapes.items()]
    bias = torch.randn(32, generator=generator).to(dtype) if has_bias else None
    return drawn[:3], (drawn[3], bias)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 0.01)]
)
def test_values_and_gradients_are_those_of_plain_operations(dtype, limit, has_bias):
    inputs, (weight, bias) = draw(dtype, has_bias)
    given = [each.requires_grad_() for each in inputs]
    found = lora_product(given[0], (weight, bias), (given[1], given[2]), SCALING, dtype)
    assert found.dtype == dtype
    outer = torch.randn(50, 32, generator=torch.Generator().manual_seed(1)).to(dtype)
    gradients = torch.autograd.grad(found, given, outer)
    assert [each.dtype for each in gradients] == [each.dtype for each in given]
    exact = [each.detach().double().requires_grad_() for each in given]
    expected = exact[0] @ weight.double().T + SCALING * exact[0] @ exact[1].T @ exact[2].T
    expected = expected if bias is None else expected + bias.double()
    right = torch.autograd.grad(expected, exact, outer.double())
    for one, other in zip((found, *gradients), (expected, *right), strict=True):
        assert (one.double() - other).norm() <= limit * other.norm()


def test_rows_without_a_gradient_are_given_none_and_only_once():
    (rows, down, up), layer = draw(torch.float32, True)
    adapter = down.requires_grad_(), up.requires_grad_()
    lora_product(rows, layer, adapter, SCALING, torch.float32).sum().backward()
    assert rows.grad is None and adapter[0].grad is not None
    result = lora_product(rows, layer, adapter, SCALING, torch.float32).sum()
    (first,) = torch.autograd.grad(result, adapter[1], create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        first.sum().backward()
