"""Attention on CPUs of a group's answers to the prompt that they share, without copies of its keys.

Each answer sees the prompt and, causally, itself. Both are attended to apart, by kernels that also
give the logarithm of the sum of their exponentials (LSE), which says how much each counts in the
whole (Hydragen, arXiv:2402.05099). Given the whole's results and LSE, a kernel's backward pass
gives the gradients of its part (Ring Attention, arXiv:2310.01889). So the prompt's keys and values
are read where they are, no pair is masked away, and nothing that is gathered is kept.

Where no such kernel serves, or attention has dropout, each answer gets a copy of the prompt's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from agentpeft.policies.learning.passes.kernel_check import agrees
from agentpeft.policies.learning.passes.packed_attention import as_read_by_kernels, computed_dtype
from agentpeft.policies.messages import Ids


@dataclass(frozen=True)
class AnswerBlock:
    """B answers of similar length to one prompt.

    `places` (B, Q): their tokens among those of all its answers, padded with each one's last:
    what that sees never outweighs its LSE. `is_padding` (B, Q). `real` (N,): which of the places,
    flat, are no padding; `there` (N,): those places.
    """

    places: Tensor
    is_padding: Tensor
    real: Tensor
    there: Tensor

    @classmethod
    def of(cls, answers: Sequence[Ids], device: torch.device) -> Self:
        """Returns the block of some answers' places."""
        lengths = np.array([len(answer) for answer in answers])[:, None]
        number = np.arange(lengths.max())
        places = np.array([answer[0] for answer in answers])[:, None] + np.minimum(
            number, lengths - 1
        )
        is_padding = number >= lengths
        real = np.flatnonzero(~is_padding)
        arrays = places, is_padding, real, places.ravel()[real]
        return cls(*(torch.from_numpy(array).to(device) for array in arrays))

    def pick(self, row: Tensor) -> Tensor:
        """Returns what a row (A, ...) has at the places: (B, Q, ...)."""
        return row.index_select(0, self.places.flatten()).view(*self.places.shape, *row.shape[1:])

    def drop_padding(self, states: Tensor) -> Tensor:
        """Returns (N, ...) of (B, Q, ...)."""
        return states.flatten(0, 1).index_select(0, self.real)


def attend_to_shared(
    module: nn.Module,
    row: Sequence[Tensor],
    blocks: Sequence[AnswerBlock],
    dropout: float,
    scaling: float | None,
) -> Tensor:
    """Returns the results (A, H, E) of all answers to a prompt, one behind the other.

    `row`: queries (A, H, D), keys (A, G, D) and values (A, G, E) of the answers' tokens, where H
    is a multiple of G; then keys and values of the prompt's. Each of the A tokens is in a block.
    """
    query, dtype = row[0], computed_dtype(row[0])
    size = query.shape[-1]
    scale = size**-0.5 if scaling is None else scaling
    is_plain = dropout == 0.0 and row[2].shape[-1] == size
    if is_plain and _has_kernel(query.device, dtype, size, query.shape[1] // row[1].shape[1]):
        dense = as_read_by_kernels(row, dtype)
        result: Tensor = _SharedAttention.apply(*dense, blocks, scale)  # type: ignore[no-untyped-call]
        return result
    return _attend_to_copies(module, row, blocks, dropout, scale)


class _SharedAttention(torch.autograd.Function):
    """See `attend_to_shared`."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *row, blocks, scale = inputs
        own, prompt = row[:3], row[3:]
        alone = [_heads_first(each[None]) for each in (own[0], *prompt)]
        part, part_lse = _attend(*alone, is_causal=False, scale=scale)
        lse = part_lse[0].T.contiguous()
        result = part[0].transpose(0, 1).to(lse.dtype)
        for block in blocks:
            picked = [_heads_first(block.pick(each)) for each in own]
            parts = _attend(*picked, is_causal=True, scale=scale)
            part, part_lse = (block.drop_padding(each.transpose(1, 2)) for each in parts)
            before = lse[block.there]
            whole = torch.logaddexp(before, part_lse)
            share = (part_lse - whole).exp()[..., None]
            result[block.there] = result[block.there].lerp(part.to(lse.dtype), share)
            lse[block.there] = whole
        result = result.to(own[0].dtype)
        ctx.save_for_backward(*row, result, lse)
        ctx.rest = blocks, scale
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        *row, result, lse = ctx.saved_tensors
        blocks, scale = ctx.rest
        own, prompt, whole = row[:3], row[3:], (gradients[0], result, lse[..., None])
        alone = [_heads_first(each[None]) for each in (*whole, own[0], *prompt)]
        of_query, *of_prompt = _attend_backward(alone, is_causal=False, scale=scale)
        totals = [of_query[0].transpose(0, 1), *map(torch.zeros_like, own[1:])]
        for block in blocks:
            picked = [block.pick(each) for each in (*whole, *own)]
            picked[0] = picked[0].masked_fill(block.is_padding[..., None, None], 0)
            states = [_heads_first(each) for each in picked]
            parts = _attend_backward(states, is_causal=True, scale=scale)
            for total, part in zip(totals, parts, strict=True):
                total[block.there] += block.drop_padding(part.transpose(1, 2))
        return *totals, *(each[0].transpose(0, 1) for each in of_prompt), None, None


def _attend_to_copies(
    module: nn.Module,
    row: Sequence[Tensor],
    blocks: Sequence[AnswerBlock],
    dropout: float,
    scale: float,
) -> Tensor:
    """The same, with the prompt's keys and values before those of each answer."""
    own_row, prompt, results = row[:3], row[3:], []
    for block in blocks:
        query, *own = (_heads_first(block.pick(each)) for each in own_row)
        num_answers = len(block.places)
        copies = (_heads_first(each[None]).expand(num_answers, -1, -1, -1) for each in prompt)
        key, value = (torch.cat(pair, 2) for pair in zip(copies, own, strict=True))
        size = query.shape[2], key.shape[2]
        mask = torch.ones(size, dtype=torch.bool, device=query.device).tril(len(prompt[0]))
        part, _ = sdpa_attention_forward(
            module, query, key, value, mask[None, None], dropout, scale, is_causal=False
        )
        results.append(block.drop_padding(part))
    order = torch.cat([block.there for block in blocks])
    return torch.cat(results)[order.argsort()]


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


@cache
def _has_kernel(device: torch.device, dtype: torch.dtype, size: int, num_groups: int) -> bool:
    """Returns whether kernels serve heads of this size, `num_groups` queries to each key.

    They play two answers, of two and three tokens, to a prompt of four, forwards and backwards.
    """
    if device.type != "cpu":
        return False
    generator = torch.Generator().manual_seed(0)
    shapes = [(5, 2 * num_groups, size), *[(5, 2, size)] * 2, *[(4, 2, size)] * 2]
    row = [torch.randn(each, generator=generator).to(device, dtype) for each in shapes]
    scale, module = size**-0.5, nn.Module()
    module.num_key_value_groups = num_groups  # type: ignore[assignment]

    def blocks() -> list[AnswerBlock]:
        return [AnswerBlock.of([np.arange(2), np.arange(2, 5)], device)]

    def kernel(*row: Tensor) -> Tensor:
        result: Tensor = _SharedAttention.apply(*row, blocks(), scale)  # type: ignore[no-untyped-call]
        return result

    return agrees(kernel, lambda *row: _attend_to_copies(module, row, blocks(), 0.0, scale), row)
