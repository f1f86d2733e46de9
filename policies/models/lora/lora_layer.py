"""A LoRA layer that loses no small steps, and one product for a frozen layer and its adapter.

Layers of PyTorch's own make some twenty-six operations of it, forwards and backwards. Here they are
fifteen, and the adapter's part is added by the product itself, to its sums.
"""

from typing import Any, TypeAlias, cast

import torch
import torch.nn.functional as F  # noqa: N812 (everyone's name for it)
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from agentpeft.policies.models.few_rows import add_product, weight_for

# Else a GPU may add parts of a product up in bfloat16, by which small steps are lost
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


class RoundedOnceLinear(LoraLinear):
    """A LoRA layer without dropout, whose bfloat16 output is rounded once, adapter included.

    PEFT adds that part to an output that is rounded already, which drops whatever is less than half
    of the output's last digit: nearly all of a first step at a learning rate of 1e-5. Here the
    matrix product starts from the adapter's part, in the accumulator's float32; a bias is added
    after it. Switched off it computes likewise, so that an adapter of zeros changes nothing.
    """

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Returns the outputs (..., out) of inputs (..., in)."""
        device, base = x.device.type, cast(nn.Linear, self.base_layer)
        is_cast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if is_cast else base.weight.dtype
        is_off = self.disable_adapters or self.merged
        names = [] if is_off else [name for name in self.active_adapters if name in self.lora_A]
        if self.merged or len(names) > 1 or dtype == torch.float16:
            return super().forward(x, *args, **kwargs)
        rows = x.flatten(0, -2)
        if names:
            layers = self.lora_A[names[0]], self.lora_B[names[0]]
            down, up = (cast(nn.Linear, each).weight for each in layers)
            layer = weight_for(rows, base), base.bias
            output = lora_product(rows, layer, (down, up), self.scaling[names[0]], dtype)
        elif dtype == torch.bfloat16:
            rows, weight = rows.to(dtype), weight_for(rows, base).to(dtype)
            output = add_product(rows.new_zeros(len(rows), len(weight)), rows, weight)
            output = output if base.bias is None else output + base.bias.to(dtype)
        else:
            return super().forward(x, *args, **kwargs)
        return output.view(*x.shape[:-1], -1)


def lora_product(
    rows: Tensor,
    layer: tuple[Tensor, Tensor | None],
    adapter: tuple[Tensor, Tensor],
    scaling: float,
    dtype: torch.dtype,
) -> Tensor:
    """Returns x Wᵀ + b + scaling (x Aᵀ) Bᵀ, (N, out), of rows x (N, in), computed in `dtype`.

    `layer`: W (out, in) and maybe b (out,), which get no gradient; `adapter`: A (rank, in) and
    B (out, rank). In bfloat16 the product starts from the adapter's part, and a bias is added to
    what comes of it.
    """
    rest = *layer, scaling, dtype
    if not torch.is_grad_enabled():
        return _multiply(rows, *adapter, rest)[0]
    result: Tensor = _LoraProduct.apply(rows, *adapter, rest)  # type: ignore[no-untyped-call]
    return result


_Rest: TypeAlias = tuple[Tensor, Tensor | None, float, torch.dtype]
"""A layer's weight and bias, the scaling, and the type to compute in."""


def _multiply(rows: Tensor, down: Tensor, up: Tensor, rest: _Rest) -> tuple[Tensor, ...]:
    """Returns the product, and what its gradients are made of."""
    weight, bias, scaling, dtype = rest
    rows, down, up, weight = (each.to(dtype) for each in (rows, down, up, weight))
    bias = None if bias is None else bias.to(dtype)
    inner = _scaled_product(rows, down.T, scaling)
    if dtype == torch.bfloat16:
        output = add_product(inner @ up.T, rows, weight)
        output = output if bias is None else output.add_(bias)
    else:
        output = F.linear(rows, weight, bias).addmm_(inner, up.T)
    return output, rows, inner, down, up, weight


class _LoraProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, down: Tensor, up: Tensor, rest: _Rest) -> Tensor:
        ctx.dtypes, ctx.scaling = (rows.dtype, down.dtype, up.dtype), rest[2]
        output, *kept = _multiply(rows, down, up, rest)
        ctx.save_for_backward(*kept)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, inner, down, up, weight = ctx.saved_tensors
        dtype, down_dtype, up_dtype = ctx.dtypes
        of_inner = _scaled_product(gradient, up, ctx.scaling)
        of_rows = of_down = of_up = None
        if ctx.needs_input_grad[0]:
            of_rows = (of_inner @ down).addmm_(gradient, weight).to(dtype)
        if ctx.needs_input_grad[1]:
            of_down = _product(of_inner.T, rows, down_dtype)
        if ctx.needs_input_grad[2]:
            of_up = _product(gradient.T, inner, up_dtype)
        return of_rows, of_down, of_up, None


def _scaled_product(left: Tensor, right: Tensor, scaling: float) -> Tensor:
    """Returns scaling * left @ right."""
    return torch.addmm(left.new_empty(()), left, right, beta=0, alpha=scaling)


def _product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns left @ right in `dtype`; GPUs give the sums in float32 as they are."""
    if left.device.type == "cuda" and dtype == torch.float32 != left.dtype:
        return torch.mm(left, right, out_dtype=dtype)
    return (left @ right).to(dtype)
