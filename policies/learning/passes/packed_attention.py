"""Attention within a row of many sequences, laid end to end without padding, shared prompts once.

All other layers see one row (1, T) and compute each of its tokens once. Attention alone must know
what a token may see. GPUs have kernels for sequences of any lengths (`varlen_attention`). Elsewhere
it gathers the queries of similar segments of the row, and for each segment the keys of its context
and its own, padded. The gradients of a prompt's keys, of all the answers that see it, add up in the
backward pass of that gathering.

Models of transformers get it where they take their attention from its `AttentionInterface` and
hand a forward pass's keyword arguments on to it; `can_pack` tries it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from agentpeft.policies.messages import Ids

if TYPE_CHECKING:  # for GPUs
    from agentpeft.policies.learning.passes.varlen_attention import RowRuns

_NAME = "agentpeft_packed"
_MAX_PAIRS = 2**24
"""The most pairs of query and key of a block of several segments: its mask is so large."""
_FEW_PAIRS = 2**16
"""A block of fewer takes no longer for being padded."""
_MIN_FILLED = 0.6
_PLAYED = (1, 4), (4, 28), (28, 31)
"""The ids of a prompt and two answers: if their places counted, the second's would be far off."""
_MAX_ROUNDING = 0.05
"""Of logits of 16 bits: kernels differ by 2 % after 24 layers."""


@dataclass(frozen=True)
class Segment:
    """Tokens of a row that follow one another: they see `context`, and causally each other.

    Both are places in the row.
    """

    context: Ids
    tokens: Ids

    @property
    def positions(self) -> Ids:
        """The tokens' position ids: how many tokens each sees before itself."""
        return len(self.context) + np.arange(len(self.tokens))


@dataclass(frozen=True)
class _Block:
    """B segments, padded. `queries` (B, Q) and `keys` (B, K) are places in the row.

    `mask`: (B or 1, 1, Q, K), True where a query sees a key. None: key i is seen from query i on.
    """

    queries: Tensor
    keys: Tensor
    mask: Tensor | None = None


class Packing:
    """What the tokens of a row see, which each way of attention has cut as it wants it.

    The segments, none of them empty, come in the order of the row and hold all its tokens.
    """

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        self._segments, self._device = segments, device

    @cached_property
    def runs(self) -> "RowRuns":
        """As a GPU's kernels for sequences of any lengths have it."""
        from agentpeft.policies.learning.passes.varlen_attention import RowRuns

        return RowRuns(self._segments, self._device)

    @cached_property
    def blocks(self) -> tuple[list[_Block], Tensor]:
        """Blocks of similar segments; and where all their results have each token's, (T,)."""
        blocks: list[_Block] = []
        places = np.zeros(sum(len(segment.tokens) for segment in self._segments), np.int64)
        start = 0
        for similar in _cut_into_blocks(self._segments):
            queries, is_query = _pad([each.tokens for each in similar])
            keys, _ = _pad([np.concatenate([each.context, each.tokens]) for each in similar])
            places[queries[is_query]] = start + np.flatnonzero(is_query)
            start += queries.size
            before = np.array([len(each.context) for each in similar])
            if len(set(before)) == 1:  # one mask for all of them
                before = before[:1]
            last_key = before[:, None] + np.arange(queries.shape[1])
            mask = np.arange(keys.shape[1]) <= last_key[:, None, :, None]
            arrays = [queries, keys, mask] if before.any() else [queries, keys]
            on_device = [torch.from_numpy(array).to(self._device) for array in arrays]
            blocks.append(_Block(*on_device))
        return blocks, torch.from_numpy(places).to(self._device)


@contextmanager
def packed_attention(model: PreTrainedModel) -> Iterator[None]:
    """Lets the model's forward passes take `packing`, and only such passes.

    Backward passes belong here too, as gradient checkpointing computes forwards in them.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation(_NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@torch.no_grad()
def can_pack(model: PreTrainedModel, network: nn.Module) -> bool:
    """Returns whether `network`, which runs `model`, gives packed sequences their own results.

    Not so where layers see a window, or keep a state, or positions are not read, whose effect can
    be below the rounding of 16 bits. It plays two answers to a prompt.
    """
    layers = DynamicCache(config=model.config).layers
    if not all(type(layer) is DynamicLayer for layer in layers):
        return False
    device = next(network.parameters()).device
    size = model.config.get_text_config().vocab_size
    prompt, first, second = (torch.arange(*each, device=device) % size for each in _PLAYED)

    def play_packed(first: Tensor, spacing: int = 1) -> Tensor:
        """The answers' logits; `spacing`: how far their tokens' positions are apart."""
        ids = torch.cat([prompt, first, second])
        places = np.split(np.arange(len(ids)), np.cumsum([len(prompt), len(first)]))
        segments = [Segment(places[0][:0], places[0]), *(Segment(places[0], p) for p in places[1:])]
        positions = spacing * np.concatenate([each.positions for each in segments])
        output = network(
            input_ids=ids[None],
            position_ids=torch.from_numpy(positions)[None].to(device),
            use_cache=False,
            packing=Packing(segments, device),
        )
        logits: Tensor = output.logits[0, len(prompt) :]
        return logits

    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        alone = [
            network(input_ids=torch.cat([prompt, each])[None], use_cache=False).logits[0, 3:]
            for each in (first, second)
        ]
        with packed_attention(model):
            if model.config._attn_implementation != _NAME:
                return False
            packed, other = play_packed(first), play_packed(first.flip(0))
            at_zero = play_packed(first, spacing=0)
    except (ValueError, TypeError):  # options that are not known here, or none handed on
        return False
    finally:
        for module in training:
            module.training = True
    expected = torch.cat(alone).float()
    error = packed.float() - expected
    # What all logits share says nothing
    error_norm, norm = ((each - each.mean(-1, keepdim=True)).norm() for each in (error, expected))
    limit = _MAX_ROUNDING if model.dtype.itemsize < 4 else 1e-4
    is_apart = torch.equal(packed[len(first) :], other[len(first) :])
    return bool(error_norm <= limit * norm) and is_apart and not torch.equal(packed, at_zero)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packing: Packing | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Returns the results, (1, T, H, D), of queries, keys and values (1, H, T, D)."""
    del attention_mask  # None: transformers makes no mask for an attention that it does not know
    changes = ("sliding_window", "softcap", "s_aux")
    if packing is None or any(options.get(name) is not None for name in changes):
        raise ValueError(f"packed attention with {options}")
    row = [states[0].transpose(0, 1) for states in (query, key, value)]
    dropout, size = options.get("dropout", 0.0), query.shape[-1]
    scale = options.get("scaling") or size**-0.5
    if query.device.type != "cpu" and dropout == 0.0:
        from agentpeft.policies.learning.passes import varlen_attention

        if varlen_attention.serves(*row):
            return varlen_attention.attend_to_runs(row, packing.runs, scale)[None], None
    blocks, places = packing.blocks
    results = []
    for block in blocks:
        picked = zip(row, (block.queries, block.keys, block.keys), strict=True)
        queries, keys, values = (_pick(each, places).transpose(1, 2) for each, places in picked)
        is_causal = block.mask is None
        result, _ = sdpa_attention_forward(
            module, queries, keys, values, block.mask, dropout, scale, is_causal=is_causal
        )
        results.append(result.flatten(0, 1))
    return torch.cat(results).index_select(0, places)[None], None


def _pick(row: Tensor, places: Tensor) -> Tensor:
    """Returns what a row (T, ...) has at places (B, Q): (B, Q, ...)."""
    return row.index_select(0, places.flatten()).view(*places.shape, *row.shape[1:])


AttentionInterface.register(_NAME, _attend)


def _cut_into_blocks(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Returns segments of similar size together, those without a context apart.

    A block of several has at most `_MAX_PAIRS` pairs of query and key, padding included.
    """
    blocks: list[list[Segment]] = []
    num_pairs = most_queries = 0
    for segment in sorted(segments, key=_size):
        has_context, num_keys, num_queries = _size(segment)
        most = max(most_queries, num_queries)
        padded = (len(blocks[-1]) + 1) * most * num_keys if blocks else 0
        num_filled = num_pairs + num_queries * num_keys
        is_wasteful = padded > _FEW_PAIRS and num_filled < _MIN_FILLED * padded
        is_other = not blocks or _size(blocks[-1][0])[0] != has_context
        if is_other or is_wasteful or padded > _MAX_PAIRS:
            blocks.append([])
            num_pairs = most_queries = 0
        blocks[-1].append(segment)
        num_pairs += num_queries * num_keys
        most_queries = max(most_queries, num_queries)
    return blocks


def _size(segment: Segment) -> tuple[bool, int, int]:
    """Returns whether a segment has a context, and how many keys and queries it has."""
    num_queries = len(segment.tokens)
    return len(segment.context) > 0, len(segment.context) + num_queries, num_queries


def _pad(rows: Sequence[Ids]) -> tuple[Ids, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Returns the rows, padded with 0, and where they are not padded."""
    lengths = np.array([len(row) for row in rows])
    is_there = np.arange(lengths.max()) < lengths[:, None]
    padded = np.zeros(is_there.shape, np.int64)
    padded[is_there] = np.concatenate(rows)
    return padded, is_there
