"""Products of few rows with large weights on a CPU, as a step of decoding has them.

PyTorch gives products of float32 to MKL, which on processors of AMD is slow for few rows. oneDNN,
which PyTorch carries too, takes 0.52 to 0.91 times as long for a whole step of 1 to 64 rows of a
model of 494 million weights, and as long for many rows (torch 2.13, two cores with AVX2). It keeps
what it prepares for each number of rows, so many numbers would also take hundreds of MiB.

Weights in bfloat16 oneDNN lays out anew for every product, which takes longer than the product of
few rows. An engine's are laid out once, in a copy. On two cores with AVX512-BF16 the bits are the
same, and all layers of that model take 23 ms for 4 rows in place of 53, and 120 for 64 in place of
151. Its output layer takes 9 and 93 with weights in float16, in place of 29 and 155.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (everyone's name for it)
from torch import Tensor, nn

_HAS_ONEDNN = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
# As `multiplies_bfloat16` of load.py, which imports this module
_PACKS_BFLOAT16 = _HAS_ONEDNN and torch.cpu._is_avx512_bf16_supported()
_PACKS_HALVES = torch.backends.quantized.engine in {"x86", "fbgemm"}
_MAX_ROWS = 128
_MIN_WEIGHTS = 500_000
_HALVES_ERROR, _MIN_LARGEST = 2**-25, 2**-7
"""Half of the least number in float16, which small weights lose at most, and the size that the
largest must have for that to be nothing beside it."""


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns what `F.linear` does of rows (..., K), with a weight (N, K), as fast as it can be."""
    if not (weight.is_mkldnn or _is_for_onednn(rows, weight, bias)):
        return F.linear(rows, weight, bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return product


def _is_for_onednn(rows: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the rows are few, the weight is large, and all is plain and in float32."""
    is_large = weight.numel() >= _MIN_WEIGHTS and weight.device.type == "cpu"
    if not (is_large and _are_few(rows) and _HAS_ONEDNN):
        return False
    is_changed = torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")
    others = [weight] if bias is None else [weight, bias]
    is_plain = all(each.is_contiguous() and each.dtype == torch.float32 for each in others)
    is_plain &= rows.dtype == torch.float32 and (bias is None or bias.shape == weight.shape[:1])
    return is_plain and not is_changed


def add_product(start: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """Returns start (M, N) + rows (M, K) @ weight.T, rounded once; `start` may be overwritten."""
    if weight.is_mkldnn:
        binary = torch.ops.mkldnn._linear_pointwise.binary
        total: Tensor = binary(rows, start, weight, None, "add")
        return total
    return start.addmm_(rows, weight.T)


def weight_for(rows: Tensor, layer: nn.Linear) -> Tensor:
    """Returns a layer's weight (N, K), packed if rows (..., K) are multiplied faster with it so.

    A packed one is for `linear` and `add_product`. It is faster for many rows, too, by little.
    """
    weight = layer.weight
    is_bfloat16 = rows.dtype == weight.dtype == torch.bfloat16 and weight.is_contiguous()
    if not (_PACKS_BFLOAT16 and _may_pack(layer) and is_bfloat16 and rows.numel()):
        return weight
    pack = torch.ops.mkldnn._reorder_linear_weight
    packed: Tensor = _keep_packed(layer, "_packed", pack)
    return packed


def multiply_halves(rows: Tensor, layer: nn.Linear) -> Tensor | None:
    """Returns rows (..., K) @ weight.T in float32, of float32 rows and weights kept in float16.

    None where that is not faster, or weights have more digits than float16, or greater ones. The
    products and sums are in float32, so that it is as exact as with weights in float32, of which
    twice the bytes would pass through memory.
    """
    if not (_PACKS_HALVES and _may_pack(layer) and _are_few(rows) and rows.dim() > 1):
        return None
    packed = _keep_packed(layer, "_halves", _pack_halves)
    if packed is None:
        return None
    product: Tensor = torch.ops.quantized.linear_dynamic_fp16(rows, packed)
    return product


def _pack_halves(weight: Tensor) -> Any | None:
    errors = ((part.half() - part.float()).abs().max() for part in torch.split(weight, 4096))
    is_exact = all(error <= _HALVES_ERROR for error in errors)  # nothing is where one is NaN
    if not (is_exact and weight.abs().max() >= _MIN_LARGEST):
        return None
    return torch.ops.quantized.linear_prepack_fp16(weight.float(), None)


def _are_few(rows: Tensor) -> bool:
    return 0 < rows.numel() <= _MAX_ROWS * rows.shape[-1]


def _may_pack(layer: nn.Linear) -> bool:
    """Whether it is one that `use_few_rows` has found, in a pass without gradients."""
    return getattr(layer, "may_be_packed", False) and not torch.is_grad_enabled()


def _keep_packed(layer: nn.Linear, name: str, pack: Callable[[Tensor], Any]) -> Any:
    """Returns what `pack` makes of the layer's weight; that is kept until the weight is another."""
    weight = layer.weight.data
    source, packed = layer.__dict__.get(name, (None, None))
    if source is None or source.data_ptr() != weight.data_ptr():  # held, so no other has its place
        packed = pack(weight)
        layer.__dict__[name] = weight, packed
    return packed


class FewRowsLinear(nn.Linear):
    """A layer whose passes without gradients are made by `linear`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the base class's name)
        """Returns (..., N) of inputs (..., K)."""
        return linear(input, weight_for(input, self), self.bias)


def use_few_rows(model: nn.Module) -> None:
    """Has all large linear layers compute so; small ones take as long either way.

    From here on their weights may be replaced, but not be changed in place.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and layer.weight.numel() >= _MIN_WEIGHTS:
            layer.may_be_packed = layer.weight.device.type == "cpu"  # type: ignore[assignment]
            if type(layer) is nn.Linear:
                layer.__class__ = FewRowsLinear
