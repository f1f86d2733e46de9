"""Attention on CPUs of a group's answers to the prompt that they share, without copies of its keys.

Each answer sees the prompt and, causally, itself. Both are attended to apart, by kernels that also
give the logarithm of the sum of their exponentials (LSE), which says how much each counts in the
whole (Hydragen, arXiv:2402.05099). Given the whole's results and LSE, a kernel's backward pass
gives the gradients of its part (Ring Attention, arXiv:2310.01889). So the prompt's keys and values
are read where they are, no pair is masked away, and nothing that is gathered is kept.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from agentpeft.policies.learning.passes.kernel_check import ANSWERS, agrees
from agentpeft.policies.learning.passes.packed_attention import pick
from agentpeft.policies.messages import Ids


class AnswerBlock:
    """B answers of similar length to one prompt.

    `places` (B, Q): their tokens among those of all its answers, padded with each one's last:
    what that sees never outweighs its LSE. `is_padding` (B, Q). `real` (N,): which of the places,
    flat, are no padding; `there` (N,): those places.
    """

    def __init__(self, answers: Sequence[Ids], device: torch.device) -> None:
        """`answers` are their tokens' places."""
        lengths = np.array([len(answer) for answer in answers])[:, None]
        number = np.arange(lengths.max())
        starts = np.array([answer[0] for answer in answers])[:, None]
        places, is_padding = starts + np.minimum(number, lengths - 1), number >= lengths
        real = np.flatnonzero(~is_padding)
        arrays = places, is_padding, real, places.ravel()[real]
        self.places, self.is_padding, self.real, self.there = (
            torch.from_numpy(array).to(device) for array in arrays
        )

    def drop_padding(self, states: Tensor) -> Tensor:
        """Returns (N, ...) of (B, Q, ...)."""
        return states.flatten(0, 1).index_select(0, self.real)


def attend_to_shared(
    answers: Sequence[Tensor],
    prompt: Sequence[Tensor],
    blocks: Sequence[AnswerBlock],
    scale: float,
) -> Tensor:
    """Returns the results (A, H, D) of all answers to a prompt, one behind the other.

    `answers`: queries (A, H, D), keys and values (A, G, D) of their tokens, where H is a multiple
    of G; `prompt`: its keys and values. Each of the A tokens is in a block.
    """
    result: Tensor = _SharedAttention.apply(*answers, *prompt, blocks, scale)  # type: ignore[no-untyped-call]
    return result


class _SharedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *row, blocks, scale = inputs
        answers, prompt = row[:3], row[3:]
        alone = [_heads_first(each[None]) for each in (answers[0], *prompt)]
        part, part_lse = _attend(*alone, is_causal=False, scale=scale)
        lse = part_lse[0].T.contiguous()
        result = part[0].transpose(0, 1).to(lse.dtype)
        for block in blocks:
            picked = [_heads_first(pick(each, block.places)) for each in answers]
            parts = _attend(*picked, is_causal=True, scale=scale)
            part, part_lse = (block.drop_padding(each.transpose(1, 2)) for each in parts)
            before = lse[block.there]
            whole = torch.logaddexp(before, part_lse)
            share = (part_lse - whole).exp()[..., None]
            result[block.there] = result[block.there].lerp(part.to(lse.dtype), share)
            lse[block.there] = whole
        result = result.to(answers[0].dtype)
        ctx.save_for_backward(*row, result, lse)
        ctx.rest = blocks, scale
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        *row, result, lse = ctx.saved_tensors
        blocks, scale = ctx.rest
        answers, prompt, whole = row[:3], row[3:], (gradients[0], result, lse[..., None])
        alone = [_heads_first(each[None]) for each in (*whole, answers[0], *prompt)]
        of_query, *of_prompt = _attend_backward(alone, is_causal=False, scale=scale)
        totals = [of_query[0].transpose(0, 1), *map(torch.zeros_like, answers[1:])]
        for block in blocks:
            picked = [pick(each, block.places) for each in (*whole, *answers)]
            picked[0] = picked[0].masked_fill(block.is_padding[..., None, None], 0)
            states = [_heads_first(each) for each in picked]
            parts = _attend_backward(states, is_causal=True, scale=scale)
            for total, part in zip(totals, parts, strict=True):
                total[block.there] += block.drop_padding(part.transpose(1, 2))
        return *totals, *(each[0].transpose(0, 1) for each in of_prompt), None, None


def _heads_first(states: Tensor) -> Tensor:
    return states.transpose(1, 2)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Returns results (B, H, Q, D), and LSE (B, H, Q) in float32 or wider."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    result, lse = kernel(query, key, value, 0.0, is_causal, scale=scale)
    return result, lse


def _attend_backward(
    states: Sequence[Tensor], *, is_causal: bool, scale: float
) -> Sequence[Tensor]:
    """Returns the gradients of queries, keys and values.

    `states`: the results' gradients, the results, their LSE (B, H, Q, 1), queries, keys, values.
    """
    gradient, result, lse, *inputs = states
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    given = gradient, *inputs, result, lse[..., 0]
    gradients: Sequence[Tensor] = kernel(*given, 0.0, is_causal, scale=scale)
    return gradients


def is_right(device: torch.device, dtype: torch.dtype, size: int, num_repeats: int) -> bool:
    """Returns whether `attend_to_shared` agrees with products that are masked."""
    context, start = ANSWERS[0].context, int(ANSWERS[0].tokens[0])

    def kernel(*row: Tensor) -> Tensor:
        block = AnswerBlock([each.tokens - start for each in ANSWERS], device)
        prompt = [each[context[0] : context[-1] + 1] for each in row[1:]]
        return attend_to_shared([each[start:] for each in row], prompt, [block], size**-0.5)

    return agrees(kernel, device, dtype, size, num_repeats)
