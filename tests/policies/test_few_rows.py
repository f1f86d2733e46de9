"""Products of few rows are those of every other way to compute them."""

import pytest
import torch
from torch import nn

from agentpeft.policies.models import few_rows
from agentpeft.policies.models.few_rows import FewRowsLinear, linear, use_few_rows

SHAPES = [(1,), (1, 1), (7, 1), (2, 5), (128,), (129,), (0,), (0, 3)]


def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_few_rows_and_many_are_multiplied_alike(shape, has_bias):
    rows, weight = draw(*shape, 720), draw(800, 720)
    bias = draw(800) if has_bias else None
    expected = nn.functional.linear(
        rows.double(), weight.double(), bias if bias is None else bias.double()
    )
    product = linear(rows, weight, bias)
    assert product.shape == expected.shape and product.is_contiguous()
    torch.testing.assert_close(product.double(), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("rows", "weight"),
    [
        (draw(4, 720, dtype=torch.bfloat16), draw(800, 720, dtype=torch.bfloat16)),
        (draw(720, 4).T, draw(800, 720)),
        (draw(4, 720), draw(720, 800).T),
        (draw(4, 3), draw(2, 3)),
        (draw(720), draw(800, 720)),
    ],
)
def test_what_lies_otherwise_in_memory_or_is_of_another_type_is_multiplied_as_ever(rows, weight):
    with torch.inference_mode():
        product = linear(rows, weight, None)
    torch.testing.assert_close(product, nn.functional.linear(rows, weight), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    "bias", [draw(1600)[::2], draw(1).expand(800), draw(1), draw(()), draw(1, 800)]
)
def test_a_bias_of_any_shape_is_added(bias):
    rows, weight = draw(4, 720), draw(800, 720)
    with torch.inference_mode():
        product = linear(rows, weight, bias)
    torch.testing.assert_close(product, rows @ weight.T + bias, atol=1e-4, rtol=1e-5)


def test_autocast_decides_the_type():
    rows, weight = draw(4, 720), draw(800, 720)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert linear(rows, weight, None).dtype == torch.bfloat16


def test_gradients_flow():
    rows, weight = draw(4, 720).requires_grad_(), draw(800, 720)
    linear(rows, weight, None).sum().backward()
    torch.testing.assert_close(rows.grad, weight.sum(0).expand(4, -1), atol=1e-3, rtol=1e-4)


def test_onednn_multiplies_few_rows_and_no_others(monkeypatch):
    model = nn.Sequential(nn.Linear(720, 800), nn.ReLU(), nn.Linear(800, 2))
    use_few_rows(model)
    assert [type(layer) for layer in model] == [FewRowsLinear, nn.ReLU, nn.Linear]
    plain, taken = few_rows.F.linear, []

    def counted(rows, weight, bias):
        taken.append(tuple(weight.shape))
        return plain(rows, weight, bias)

    monkeypatch.setattr(few_rows.F, "linear", counted)
    with torch.inference_mode():
        model(draw(4, 720))
        assert taken == [(2, 800)]
        model(draw(200, 720))
        assert taken[1:] == [(800, 720), (2, 800)]
