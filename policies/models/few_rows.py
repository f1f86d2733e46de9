"""Products of few rows with large weights on a CPU, as a step of decoding has them.

PyTorch gives products of float32 to MKL, which on processors of AMD is slow for few rows. oneDNN,
which PyTorch carries too, takes 0.26 to 0.71 times as long for a whole step of 4 to 64 rows of a
model of 494 million weights, and as long for many rows (torch 2.13, two cores with AVX2).
"""

import torch
import torch.nn.functional as F  # noqa: N812 (everyone's name for it)
from torch import Tensor, nn

_HAS_ONEDNN = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
_MAX_ROWS = 128
_MIN_WEIGHTS = 500_000
"""Layers of small models, such as the built-in one, take as long either way."""


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns what `F.linear` does of rows (..., K), with a weight (N, K), as fast as it can be."""
    is_few = 0 < rows.numel() <= _MAX_ROWS * rows.shape[-1]
    is_large = weight.numel() >= _MIN_WEIGHTS and weight.is_contiguous()
    is_float = rows.dtype == weight.dtype == torch.float32 and weight.device.type == "cpu"
    if not (_HAS_ONEDNN and is_few and is_large and is_float) or torch.is_grad_enabled():
        return F.linear(rows, weight, bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return product


class FewRowsLinear(nn.Linear):
    """A layer whose passes without gradients are made by `linear`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the base class's name)
        """Returns (..., N) of inputs (..., K)."""
        return linear(input, self.weight, self.bias)


def use_few_rows(model: nn.Module) -> None:
    """Makes all plain linear layers `FewRowsLinear`."""
    for layer in model.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = FewRowsLinear
