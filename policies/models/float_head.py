"""Logits in float32, whatever else computes in bfloat16: `use_float_head`.

A GPU multiplies bfloat16 some ten times as fast as float32, and loses nothing by it where that is
the weights' type: 8 by 8 bits make 16, of float32's 24, and the sums are in float32. So states in
bfloat16 go as they are, and numbers in float32 as the sum of three in bfloat16. CPUs get float32.
"""

import torch
import torch.nn.functional as F  # noqa: N812 (everyone's name for it)
from torch import Tensor, nn
from transformers import PreTrainedModel


class FloatHead(nn.Linear):
    """An output layer that computes in float32, whatever the type of its weights and of autocast.

    In bfloat16 a logit of 8 to 16 is rounded by up to 0.03, in learner and engine each in its own
    way. vLLM computes it so as well, with `head_dtype`.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the base class's name)
        """Returns the logits (..., V) of states (..., H)."""
        if not input.numel():  # or the weights would be converted for nothing
            return input.new_zeros(*input.shape[:-1], self.out_features, dtype=torch.float32)
        with torch.autocast(input.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            if torch.is_grad_enabled() or not takes_bfloat16(self.weight.dtype, input.device):
                return F.linear(input.float(), self.weight.float(), bias)
            logits = float_product(input.flatten(0, -2), self.weight.T)
            return (logits if bias is None else logits + bias).view(*input.shape[:-1], -1)


def takes_bfloat16(dtype: torch.dtype, device: torch.device) -> bool:
    """Returns whether weights of this type are best left in it, to be multiplied exactly."""
    return device.type == "cuda" and dtype == torch.bfloat16


def float_product(left: Tensor, right: Tensor) -> Tensor:
    """Returns left (M, K) @ right (K, N) as exact as float32 has it, without a gradient.

    Both are float32 or bfloat16. Of weights in bfloat16 a GPU makes no copy.
    """
    if not takes_bfloat16(right.dtype, right.device):
        return left.float() @ right.float()
    parts = (torch.mm(part, right, out_dtype=torch.float32) for part in bfloat16_parts(left))
    total = next(parts)
    for part in parts:
        total += part
    return total


def bfloat16_parts(values: Tensor) -> tuple[Tensor, ...]:
    """Returns tensors in bfloat16, largest first, whose sum is `values`, float32 or bfloat16.

    Each takes 8 of float32's 24 bits. What is below 2^-133 is lost.
    """
    if values.dtype == torch.bfloat16:
        return (values,)
    high = values.bfloat16()
    rest = values - high.float()
    middle = rest.bfloat16()
    return high, middle, (rest - middle.float()).bfloat16()


def use_float_head(model: PreTrainedModel) -> None:
    """Makes a plain output layer a `FloatHead`; over float32 weights autocast would round too."""
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if type(head) is nn.Linear:
        head.__class__ = FloatHead
