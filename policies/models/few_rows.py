"""Products of few rows with large weights on a CPU, as a step of decoding has them.

PyTorch gives products of float32 to MKL, which on processors of AMD is slow for few rows. oneDNN,
which PyTorch carries too, takes 0.52 to 0.91 times as long for a whole step of 1 to 64 rows of a
model of 494 million weights, and as long for many rows (torch 2.13, two cores with AVX2). It keeps
what it prepares for each number of rows, so many numbers would also take hundreds of MiB.
"""

import torch
import torch.nn.functional as F  # noqa: N812 (everyone's name for it)
from torch import Tensor, nn

_HAS_ONEDNN = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
_MAX_ROWS = 128
_MIN_WEIGHTS = 500_000


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns what `F.linear` does of rows (..., K), with a weight (N, K), as fast as it can be."""
    is_large = weight.numel() >= _MIN_WEIGHTS and weight.device.type == "cpu"
    if not (is_large and 0 < rows.numel() <= _MAX_ROWS * rows.shape[-1] and _HAS_ONEDNN):
        return F.linear(rows, weight, bias)
    is_changed = torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")
    others = [weight] if bias is None else [weight, bias]
    is_plain = all(each.is_contiguous() and each.dtype == torch.float32 for each in others)
    is_plain &= rows.dtype == torch.float32 and (bias is None or bias.shape == weight.shape[:1])
    if is_changed or not is_plain:
        return F.linear(rows, weight, bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return product


class FewRowsLinear(nn.Linear):
    """A layer whose passes without gradients are made by `linear`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the base class's name)
        """Returns (..., N) of inputs (..., K)."""
        return linear(input, self.weight, self.bias)


def use_few_rows(model: nn.Module) -> None:
    """Makes all large plain linear layers `FewRowsLinear`; small ones take as long either way."""
    for layer in model.modules():
        if type(layer) is nn.Linear and layer.weight.numel() >= _MIN_WEIGHTS:
            layer.__class__ = FewRowsLinear
