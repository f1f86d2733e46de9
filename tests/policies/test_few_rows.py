"""Products of few rows are those of every other way to compute them."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from agentpeft.policies.models import few_rows
from agentpeft.policies.models.few_rows import (
    FewRowsLinear,
    add_product,
    linear,
    multiply_halves,
    use_few_rows,
    weight_for,
)
from agentpeft.policies.models.lora.lora_layer import RoundedOnceLinear
from agentpeft.policies.models.scoring import FloatHead

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


def make_layer(dtype=torch.bfloat16):
    """Returns an engine's layer."""
    layer = nn.Linear(720, 800, dtype=dtype).requires_grad_(False)
    layer.weight.copy_(draw(800, 720, dtype=dtype))
    layer.bias.copy_(draw(800, dtype=dtype))
    use_few_rows(layer)
    return layer


@pytest.mark.parametrize("num_rows", [1, 3, 64, 300])
@torch.inference_mode()
def test_weights_in_bfloat16_are_laid_out_once_and_give_the_same(num_rows):
    layer, rows = make_layer(), draw(num_rows, 720, dtype=torch.bfloat16)
    plain = nn.functional.linear(rows, layer.weight, layer.bias)
    torch.testing.assert_close(layer(rows), plain)
    weight, start = weight_for(rows, layer), draw(num_rows, 800, dtype=torch.bfloat16)
    assert weight.is_mkldnn == few_rows._PACKS_BFLOAT16
    assert weight_for(rows[:1], layer) is weight
    expected = start.clone().addmm_(rows, layer.weight.T)
    torch.testing.assert_close(add_product(start.clone(), rows, weight), expected)


def test_with_gradients_and_outside_of_engines_weights_are_taken_as_they_are():
    rows, layer = draw(4, 720, dtype=torch.bfloat16), make_layer()
    assert weight_for(rows, layer) is layer.weight
    assert multiply_halves(rows.float(), layer) is None
    with torch.inference_mode():
        other = FewRowsLinear(720, 800, dtype=torch.bfloat16)
        assert weight_for(rows, other) is other.weight
        assert multiply_halves(rows.float(), other) is None
        assert multiply_halves(draw(720), layer) is None
        assert multiply_halves(draw(129, 720), layer) is None
        assert weight_for(rows[:0], layer) is layer.weight


@pytest.mark.parametrize("is_on", [True, False])
@torch.inference_mode()
def test_an_adapter_beside_a_layer_that_is_laid_out_gives_the_same(is_on, monkeypatch):
    model = nn.Sequential(make_layer())
    lora = get_peft_model(model, LoraConfig(r=4, target_modules=["0"], init_lora_weights=False))
    layer = lora.base_model.model[0]
    layer.__class__ = RoundedOnceLinear
    layer.enable_adapters(is_on)
    rows = draw(2, 3, 720, dtype=torch.bfloat16)
    packed = lora(rows)
    monkeypatch.setattr(few_rows, "_PACKS_BFLOAT16", False)
    plain = lora(rows)
    torch.testing.assert_close(packed, plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@torch.inference_mode()
def test_weights_that_are_replaced_are_laid_out_anew(dtype):
    layer, rows = make_layer(dtype), draw(4, 720, dtype=dtype)
    layer(rows)
    before = multiply_halves(rows.float(), layer)
    for _ in range(3):
        layer.weight.data = (layer.weight.data * 2).clone()
        torch.testing.assert_close(
            layer(rows), nn.functional.linear(rows, layer.weight, layer.bias), rtol=1e-4, atol=1e-3
        )
    after = multiply_halves(rows.float(), layer)
    assert before is None or torch.equal(after, 8 * before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@torch.inference_mode()
def test_halves_are_as_exact_as_float32(dtype):
    layer = make_layer()
    layer.weight[0, :8] = torch.tensor([2.0**-k for k in range(14, 30, 2)])  # float16 has few bits
    layer, rows = layer.to(dtype), draw(5, 720)
    product = multiply_halves(rows, layer)
    assert (product is not None) == few_rows._PACKS_HALVES
    if product is not None:
        rows, weight = rows.double(), layer.weight.double()
        error = (product - rows @ weight.T).abs()
        assert (error <= 3e-6 * (rows.abs() @ weight.abs().T)).all()


@pytest.mark.parametrize("value", [1 + 2.0**-12, 70000.0, float("inf"), float("nan"), "small"])
@torch.inference_mode()
def test_weights_that_float16_does_not_hold_are_not_halved(value):
    layer = make_layer().to(torch.float32)
    if value == "small":
        layer.weight.mul_(2.0**-20)
    else:
        layer.weight[3, 5] = value
    assert multiply_halves(draw(4, 720), layer) is None
    head = FloatHead(720, 800, bias=False).requires_grad_(False)
    head.weight.copy_(layer.weight)
    use_few_rows(head)
    torch.testing.assert_close(
        head(draw(4, 720)), draw(4, 720) @ layer.weight.T, equal_nan=True, rtol=1e-4, atol=1e-3
    )
