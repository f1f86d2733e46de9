"""Attention within a packed row by a GPU's kernels: two calls, however many sequences it has.

Each sequence sees its context (its group's prompt) and, causally, itself. FlashAttention's kernels
for sequences of any lengths take all of them at once, laid end to end: one call for what each sees
of itself, one for what it sees of its context, whose keys are there once for the whole group. Both
also give the logarithm of the sum of their exponentials (LSE), which says how much each counts in
the whole; backwards each is given the whole's (see `shared_attention`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from agentpeft.policies.learning.passes.kernel_check import PLAYED, agrees
from agentpeft.policies.learning.passes.packed_attention import Segment


class Runs:
    """Where in some tokens, laid end to end, run i begins and run i + 1 follows it.

    `bounds` (R + 1,), int32, begins with 0 and ends with their number; `longest` is a run's most.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        """Runs may be empty."""
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        self.bounds, self.longest = torch.from_numpy(bounds).to(device), max(lengths)


class RowRuns:
    """The segments of a row as runs, and of those with the same context the queries as one.

    `queries[i]` sees `contexts[i]` of the keys that are gathered from `places` (C,) in the row,
    none if that is empty. `is_alone` (T,): which tokens have no context.
    """

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        """The segments are in the row's order."""
        sizes = [len(each.tokens) for each in segments]
        contexts, queries = [segments[0].context], [0]
        for segment, size in zip(segments, sizes, strict=True):
            if not np.array_equal(segment.context, contexts[-1]):
                contexts.append(segment.context)
                queries.append(0)
            queries[-1] += size
        num_keys = [len(each) for each in contexts]
        self.segments, self.queries = Runs(sizes, device), Runs(queries, device)
        self.contexts = Runs(num_keys, device)
        self.places = torch.from_numpy(np.concatenate(contexts)).to(device)
        is_alone = np.repeat(np.array(num_keys) == 0, queries)
        self.is_alone = torch.from_numpy(is_alone).to(device)


def attend_to_runs(row: Sequence[Tensor], runs: RowRuns, scale: float) -> Tensor:
    """Returns the results (T, H, D) of queries (T, H, D), keys and values (T, G, D) of a row.

    H is a multiple of G. `packed_attention.find_kernel` says whether it can be computed.
    """
    result: Tensor = _RunsAttention.apply(*row, runs, scale)  # type: ignore[no-untyped-call]
    return result


class _RunsAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, runs: RowRuns, scale: float
    ) -> Tensor:
        own = runs.segments
        result, lse, note = _attend((query, key, value), own, own, is_causal=True, scale=scale)
        notes = [note]
        if len(runs.places):
            of_context = (each.index_select(0, runs.places) for each in (key, value))
            seen = runs.queries, runs.contexts
            part, part_lse, note = _attend(
                (query, *of_context), *seen, is_causal=False, scale=scale
            )
            part_lse = part_lse.masked_fill(runs.is_alone, -torch.inf)
            whole = torch.logaddexp(lse, part_lse)
            shares = ((each - whole).exp().T[..., None] for each in (lse, part_lse))
            own_share, share = shares
            result = torch.addcmul(result * own_share, part, share).to(query.dtype)
            lse = whole
            notes.append(note)
        ctx.save_for_backward(query, key, value, result, lse)
        ctx.rest = runs, notes, scale
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, result, lse = ctx.saved_tensors
        runs, notes, scale = ctx.rest
        own, whole = runs.segments, (gradient.contiguous(), result, lse)
        row = query, key, value
        of_row = _attend_backward((*whole, notes[0]), row, own, own, is_causal=True, scale=scale)
        of_query, of_key, of_value = of_row
        if len(runs.places):
            of_context = (each.index_select(0, runs.places) for each in (key, value))
            row, seen = (query, *of_context), (runs.queries, runs.contexts)
            part, *parts = _attend_backward(
                (*whole, notes[1]), row, *seen, is_causal=False, scale=scale
            )
            of_query = of_query + part
            for total, each in zip((of_key, of_value), parts, strict=True):
                total[runs.places] += each  # no place is there twice
        return of_query, of_key, of_value, None, None


def _attend(
    row: Sequence[Tensor], queries: Runs, keys: Runs, *, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns results (T, H, D), LSE (H, T) in float32, and what else the backward pass wants.

    `row`: queries, keys, values. What sees no key has a result of 0 and any LSE.
    """
    sizes = queries.bounds, keys.bounds, queries.longest, keys.longest
    kernel = torch.ops.aten._flash_attention_forward
    result, lse, note, *_ = kernel(*row, *sizes, 0.0, is_causal, False, scale=scale)
    return result, lse, note


def _attend_backward(
    whole: Sequence[Tensor],
    row: Sequence[Tensor],
    queries: Runs,
    keys: Runs,
    *,
    is_causal: bool,
    scale: float,
) -> Sequence[Tensor]:
    """Returns the gradients of queries, keys and values.

    `whole`: the results' gradients, the results and their LSE, of all that the queries see; then
    what the forward pass has noted.
    """
    gradient, result, lse, note = whole
    sizes = queries.bounds, keys.bounds, queries.longest, keys.longest
    kernel, unused = torch.ops.aten._flash_attention_backward, torch.empty_like(note)
    gradients: Sequence[Tensor] = kernel(
        gradient, *row, result, lse, *sizes, 0.0, is_causal, note, unused, scale=scale
    )
    return gradients


def is_right(device: torch.device, dtype: torch.dtype, size: int, num_repeats: int) -> bool:
    """Returns whether `attend_to_runs` agrees with products that are masked."""

    def kernel(*row: Tensor) -> Tensor:  # not made before, for it may be inference mode
        return attend_to_runs(row, RowRuns(PLAYED, device), size**-0.5)

    return agrees(kernel, device, dtype, size, num_repeats)
