"""Products with large float32 weights on a CPU, without gradients.

PyTorch gives them to MKL, which is slow on processors of AMD. oneDNN, which PyTorch carries too,
takes 0.52 to 0.91 times as long for a whole step of 1 to 64 rows of a model of 494 million weights
(two cores with AVX2), and 0.80 to 0.97 times as long for 128 to 2,048 rows of one layer (two cores
with AVX-512; with AVX2 as long; torch 2.13).
"""

import torch
import torch.nn.functional as F  # noqa: N812 (everyone's name for it)
from torch import Tensor, nn

_HAS_ONEDNN = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
_MIN_WEIGHTS = 500_000


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns what `F.linear` does of rows (..., K), with a weight (N, K), as fast as it can be."""
    is_large = weight.numel() >= _MIN_WEIGHTS and weight.device.type == "cpu"
    if not (is_large and rows.numel() and rows.dim() > 1 and _HAS_ONEDNN):
        return F.linear(rows, weight, bias)
    is_changed = torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")
    is_plain = weight.is_contiguous() or weight.T.is_contiguous()
    is_plain &= rows.dtype == weight.dtype == torch.float32
    if bias is not None:
        is_plain &= bias.is_contiguous() and bias.dtype == torch.float32
        is_plain &= bias.shape == weight.shape[:1]
    if is_changed or not is_plain:
        return F.linear(rows, weight, bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return product


class OneDnnLinear(nn.Linear):
    """A layer whose passes without gradients are made by `linear`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the base class's name)
        """Returns (..., N) of inputs (..., K)."""
        return linear(input, self.weight, self.bias)


def use_onednn(model: nn.Module) -> None:
    """Makes all large plain linear layers `OneDnnLinear`; small ones take as long either way."""
    for layer in model.modules():
        if type(layer) is nn.Linear and layer.weight.numel() >= _MIN_WEIGHTS:
            layer.__class__ = OneDnnLinear
