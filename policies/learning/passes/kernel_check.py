"""Whether an attention kernel computes what it should on this machine: `agrees`."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from agentpeft.policies.errors import is_out_of_memory
from agentpeft.policies.learning.passes.packed_attention import Segment

_PROMPT, _NONE = np.arange(5, 9), np.zeros(0, np.int64)
ANSWERS = Segment(_PROMPT, np.arange(9, 11)), Segment(_PROMPT, np.arange(11, 14))
PLAYED = Segment(_NONE, np.arange(5)), Segment(_NONE, _PROMPT), *ANSWERS
"""A sequence alone, then two answers to a prompt."""


def agrees(
    kernel: Callable[..., Tensor],
    device: torch.device,
    dtype: torch.dtype,
    size: int,
    num_repeats: int,
) -> bool:
    """Returns whether a kernel gives masked products' results and gradients, but for rounding.

    `kernel` takes queries, keys and values of `PLAYED`, heads of `size` with `num_repeats` queries
    to a key, and returns the results of the last tokens (how many is its affair). One that raises
    does not agree. Raises: the error where memory ran out.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = (14, 2 * num_repeats, size), (14, 2, size), (14, 2, size)
    inputs = [torch.randn(each, generator=generator).to(device, dtype) for each in shapes]
    weights = inputs[0].clone()

    def compute(attend: Callable[..., Tensor]) -> list[Tensor]:
        row = [each.clone().requires_grad_() for each in inputs]
        result = attend(*row)
        gradients = torch.autograd.grad(result, row, weights[-len(result) :])
        return [result.detach(), *gradients]

    # Hooks that do nothing: those of gradient checkpointing would count what is kept here
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor),
    ):
        try:
            computed = compute(kernel)
        except (RuntimeError, AttributeError, TypeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            return False
        expected = compute(lambda *row: _attend_masked(row)[-len(computed[0]) :])
    limit = 0.05 if dtype.itemsize < 4 else 1e-4
    return all(
        bool((one - other).abs().max() <= limit * other.abs().max().clamp(min=1))
        for one, other in zip(computed, expected, strict=True)
    )


def _attend_masked(row: Sequence[Tensor]) -> Tensor:
    """The results (T, H, D) of `PLAYED`, in float32 or wider inside."""
    is_hidden = torch.ones(14, 14, dtype=torch.bool)
    for segment in PLAYED:
        is_hidden[np.ix_(segment.tokens, segment.context)] = False
        num_tokens = len(segment.tokens)
        causal = torch.ones(num_tokens, num_tokens, dtype=torch.bool).triu(1)
        is_hidden[np.ix_(segment.tokens, segment.tokens)] = causal
    wide = torch.promote_types(row[0].dtype, torch.float32)
    query, key, value = (each.to(wide) for each in row)
    num_repeats = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(num_repeats, 1) for each in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * query.shape[-1] ** -0.5
    odds = scores.masked_fill(is_hidden.to(query.device), -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", odds, value).to(row[0].dtype)
