"""Attention within a packed row by a GPU's kernels: two calls, however many sequences it has.

Each sequence sees its context (its group's prompt) and, causally, itself. FlashAttention's kernels
for sequences of any lengths take all of them at once, laid end to end: one call for what each sees
of itself, one for what it sees of its context, whose keys are there once for the whole group. Both
also give the logarithm of the sum of their exponentials (LSE), which says how much each counts in
the whole (Hydragen, arXiv:2402.05099). Given the whole's results and LSE, a kernel's backward pass
gives the gradients of its part (Ring Attention, arXiv:2310.01889).
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks

from agentpeft.policies.errors import is_out_of_memory
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

    H is a multiple of G. `serves` says whether it can be computed.
    """
    cast = [states.to(_computed_dtype(row[0])) for states in row]
    # The kernels read a last dimension without gaps
    row = [states if states.stride(-1) == 1 else states.contiguous() for states in cast]
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


def serves(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Returns whether the kernels compute right, here, for a row's states (T, H or G, D)."""
    dtype, size = _computed_dtype(query), query.shape[-1]
    if dtype.itemsize != 2 or value.shape[-1] != size:
        return False
    return is_right(query.device, dtype, size, query.shape[1] // key.shape[1])


def _computed_dtype(states: Tensor) -> torch.dtype:
    """Returns the type in which attention computes with states: autocast's, or their own."""
    kind = states.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype


_NONE, _PROMPT = np.zeros(0, np.int64), np.arange(5, 9)
_PLAYED = (
    *(Segment(_NONE, np.arange(5)), Segment(_NONE, _PROMPT)),
    *(Segment(_PROMPT, np.arange(9, 11)), Segment(_PROMPT, np.arange(11, 14))),
)
"""A sequence alone, then two answers to a prompt."""


@cache
def is_right(device: torch.device, dtype: torch.dtype, size: int, num_repeats: int) -> bool:
    """Returns whether the kernels give masked products' results and gradients, but for rounding.

    Tried with heads of `size` and `num_repeats` queries to a key. Kernels that raise are not right.
    Raises: the error where memory ran out.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = (14, 2 * num_repeats, size), (14, 2, size), (14, 2, size)
    inputs = [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]
    weights = inputs[0].clone()

    def compute(attend: Callable[..., Tensor]) -> list[Tensor]:
        row = [states.clone().requires_grad_() for states in inputs]
        result = attend(*row)
        return [result.detach(), *torch.autograd.grad(result, row, weights)]

    # Hooks that do nothing: those of gradient checkpointing would count what is kept here
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor),
    ):
        try:
            runs = RowRuns(_PLAYED, device)  # not made before, for it may be inference mode
            computed = compute(lambda *row: attend_to_runs(row, runs, size**-0.5))
        except (RuntimeError, AttributeError, TypeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            return False
        expected = compute(_attend_masked)
    limit = 0.05 if dtype.itemsize < 4 else 1e-4
    return all(
        bool((one - other).abs().max() <= limit * other.abs().max().clamp(min=1))
        for one, other in zip(computed, expected, strict=True)
    )


def _attend_masked(*row: Tensor) -> Tensor:
    """The results (T, H, D) of `_PLAYED`, in float32 or wider inside."""
    is_hidden = torch.ones(14, 14, dtype=torch.bool)
    for segment in _PLAYED:
        is_hidden[np.ix_(segment.tokens, segment.context)] = False
        num_tokens = len(segment.tokens)
        causal = torch.ones(num_tokens, num_tokens, dtype=torch.bool).triu(1)
        is_hidden[np.ix_(segment.tokens, segment.tokens)] = causal
    wide = torch.promote_types(row[0].dtype, torch.float32)
    query, key, value = (states.to(wide) for states in row)
    num_repeats = query.shape[1] // key.shape[1]
    key, value = (states.repeat_interleave(num_repeats, 1) for states in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * query.shape[-1] ** -0.5
    odds = scores.masked_fill(is_hidden.to(query.device), -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", odds, value).to(row[0].dtype)
