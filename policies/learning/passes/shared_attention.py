"""Attention of a group's answers to the prompt that they share, without copies of its keys.

Each answer sees the prompt and, causally, itself. Both are attended to apart, by kernels that also
give the logarithm of the sum of their exponentials (LSE), which says how much each counts in the
whole (Hydragen, arXiv:2402.05099). Given the whole's results and LSE, a kernel's backward pass
gives the gradients of its part (Ring Attention, arXiv:2310.01889). So the prompt's keys and values
are read where they are, no pair is masked away, and nothing that is gathered is kept.

Where no such kernel serves, or attention has dropout, each answer gets a copy of the prompt's.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from transformers.integrations.sdpa_attention import sdpa_attention_forward


def attend_to_shared(
    module: nn.Module,
    row: Sequence[Tensor],
    blocks: Sequence[Tensor],
    dropout: float,
    scaling: float | None,
) -> Tensor:
    """Returns the results (A, H, E) of all answers to a prompt, one behind the other.

    `row`: queries (A, H, D), keys (A, G, D) and values (A, G, E) of the answers' tokens, where H
    is a multiple of G; then keys and values of the prompt's. `blocks`: places (B, Q) of answers of
    similar length among the A tokens, padded with -1.
    """
    query, device = row[0], row[0].device
    is_autocast = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if is_autocast else query.dtype
    size = query.shape[-1]
    scale = size**-0.5 if scaling is None else scaling
    is_plain = dropout == 0.0 and row[2].shape[-1] == size
    if is_plain and _has_kernel(device, dtype, size, query.shape[1] // row[1].shape[1]):
        cast = (each.to(dtype) for each in row)
        result: Tensor = _SharedAttention.apply(*cast, blocks, scale)  # type: ignore[no-untyped-call]
        return result
    return _attend_to_copies(module, row, blocks, dropout, scale)


class _SharedAttention(torch.autograd.Function):
    """See `attend_to_shared`."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *row, blocks, scale = inputs
        own, prompt = row[:3], row[3:]
        alone = [_heads_first(each[None]) for each in (own[0], *prompt)]
        part, part_lse, note = _attend(*alone, is_causal=False, scale=scale)
        result, lse, notes = part[0].transpose(0, 1), part_lse[0].T, [note]
        result = result.to(lse.dtype)
        for block in blocks:
            is_there = block >= 0
            there = block[is_there]
            picked = [_heads_first(_pick(each, block)) for each in own]
            part, part_lse, note = _attend(*picked, is_causal=True, scale=scale)
            own_lse, before = part_lse.transpose(1, 2)[is_there], lse[there]
            lse[there] = whole = torch.logaddexp(before, own_lse)
            share = (own_lse - whole).exp()[..., None]
            result[there] = result[there].lerp(part.transpose(1, 2)[is_there].to(lse.dtype), share)
            notes.append(note)
        result = result.to(own[0].dtype)
        ctx.save_for_backward(*row, result, lse)
        ctx.rest = blocks, notes, scale
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        *row, result, lse = ctx.saved_tensors
        blocks, notes, scale = ctx.rest
        own, prompt, whole = row[:3], row[3:], (gradients[0], result, lse[..., None])
        alone = [_heads_first(each[None]) for each in (*whole, own[0], *prompt)]
        of_query, *of_prompt = _attend_backward(alone, notes[0], is_causal=False, scale=scale)
        totals = [of_query[0].transpose(0, 1).clone(), *map(torch.zeros_like, own[1:])]
        for block, note in zip(blocks, notes[1:], strict=True):
            is_there = block >= 0
            picked = [_pick(each, block) for each in (*whole, *own)]
            picked[0] = picked[0] * is_there[..., None, None]  # nothing comes of padding
            states = [_heads_first(each) for each in picked]
            parts = _attend_backward(states, note, is_causal=True, scale=scale)
            for total, part in zip(totals, parts, strict=True):
                total[block[is_there]] += part.transpose(1, 2)[is_there]
        return *totals, *(each[0].transpose(0, 1) for each in of_prompt), None, None


def _attend_to_copies(
    module: nn.Module,
    row: Sequence[Tensor],
    blocks: Sequence[Tensor],
    dropout: float,
    scale: float,
) -> Tensor:
    """The same, with the prompt's keys and values before those of each answer."""
    own_row, prompt, results = row[:3], row[3:], []
    for block in blocks:
        query, *own = (_heads_first(_pick(each, block)) for each in own_row)
        copies = (_heads_first(each[None]).expand(len(block), -1, -1, -1) for each in prompt)
        key, value = (torch.cat(pair, 2) for pair in zip(copies, own, strict=True))
        size = query.shape[2], key.shape[2]
        mask = torch.ones(size, dtype=torch.bool, device=block.device).tril(len(prompt[0]))
        part, _ = sdpa_attention_forward(
            module, query, key, value, mask[None, None], dropout, scale, is_causal=False
        )
        results.append(part[block >= 0])
    order = torch.cat([block[block >= 0] for block in blocks])
    return torch.cat(results)[order.argsort()]


def _pick(row: Tensor, places: Tensor) -> Tensor:
    """Returns what is at `places` (B, Q) of a row (A, ...); padding has that of the first."""
    picked = row.index_select(0, places.clamp(min=0).flatten())
    return picked.view(*places.shape, *row.shape[1:])


def _heads_first(states: Tensor) -> Tensor:
    return states.transpose(1, 2)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Sequence[Any]]:
    """Returns results (B, H, Q, D), LSE (B, H, Q) in float32, and what the backward pass wants."""
    if query.device.type == "cpu":
        on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return *on_cpu(query, key, value, 0.0, is_causal, scale=scale), ()
    kernel = torch.ops.aten._scaled_dot_product_flash_attention
    result, lse, *notes, _ = kernel(query, key, value, 0.0, is_causal, False, scale=scale)
    return result, lse, notes


def _attend_backward(
    states: Sequence[Tensor], notes: Sequence[Any], *, is_causal: bool, scale: float
) -> Sequence[Tensor]:
    """Returns the gradients of queries, keys and values.

    `states`: the results' gradients, the results, their LSE (B, H, Q, 1), queries, keys, values.
    """
    gradient, result, lse, *inputs = states
    given = gradient, *inputs, result, lse[..., 0]
    gradients: Sequence[Tensor]
    if gradient.device.type == "cpu":
        on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        gradients = on_cpu(*given, 0.0, is_causal, scale=scale)
    else:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_backward
        whole = (each.contiguous() for each in given)
        gradients = kernel(*whole, *notes[:4], 0.0, is_causal, *notes[4:], scale=scale)
    return gradients


@cache
def _has_kernel(device: torch.device, dtype: torch.dtype, size: int, num_groups: int) -> bool:
    """Returns whether kernels serve heads of this size, `num_groups` queries to each key.

    They play two answers, of two and three tokens, to a prompt of four, forwards and backwards.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = [(5, num_groups, size), *[(5, 1, size)] * 2, *[(4, 1, size)] * 2]
    row = [torch.randn(each, generator=generator).to(device, dtype) for each in shapes]
    blocks = [torch.tensor([[0, 1, -1], [2, 3, 4]], device=device)]
    module = nn.Module()
    module.num_key_value_groups = num_groups  # type: ignore[assignment]
    ways = (
        lambda row: _SharedAttention.apply(*row, blocks, 1.0),  # type: ignore[no-untyped-call]
        lambda row: _attend_to_copies(module, row, blocks, 0.0, 1.0),
    )
    found = []
    # Hooks of its own: those of gradient checkpointing would count what is kept here
    with (
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor),
    ):
        for way in ways:
            inputs = [each.clone().requires_grad_() for each in row]
            try:
                result = way(inputs)
                gradients = torch.autograd.grad(result, inputs, row[0])
            except (RuntimeError, AttributeError, TypeError, ValueError):
                return False
            found.append([result, *gradients])
    limit = 0.1 if dtype.itemsize < 4 else 1e-4
    pairs = zip(*found, strict=True)
    return all(bool((one.float() - other.float()).abs().max() <= limit) for one, other in pairs)
