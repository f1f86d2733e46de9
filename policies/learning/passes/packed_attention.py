"""Attention within a row of many sequences, laid end to end without padding, shared prompts once.

All other layers see one row (1, T) and compute each of its tokens once. Attention alone must know
what a token may see. GPUs have kernels for sequences of any lengths (`varlen_attention`). Elsewhere
it gathers the queries of similar segments of the row, and for each segment the keys of its context
and its own, padded. The gradients of a prompt's keys, of all the answers that see it, add up in the
backward pass of that gathering. On CPUs, answers that have many pairs with their prompt read its
keys where they are instead (`shared_attention`).

Models of transformers get it where they take their attention from its `AttentionInterface` and
hand a forward pass's keyword arguments on to it; `can_pack` tries it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from agentpeft.policies.messages import Ids

if TYPE_CHECKING:  # what is for long prompts, or GPUs
    from agentpeft.policies.learning.passes.shared_attention import AnswerBlock
    from agentpeft.policies.learning.passes.varlen_attention import RowRuns

_NAME = "agentpeft_packed"
_MAX_PAIRS = 2**24
"""The most pairs of query and key of a block of several segments: its mask is so large."""
_FEW_PAIRS = 2**16
"""A block of fewer takes no longer for being padded."""
_MANY_PAIRS = 2**17
"""Of the tokens of a prompt and of its answers: with fewer, copies of its keys take less time."""
_MIN_FILLED = 0.6
_MAX_OWN_PAIRS = 2**22
"""The most pairs of a block of answers apart from their prompt, whose keys are gathered for it."""
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
    mask: Tensor | None


class Cut:
    """A row in blocks of similar segments. `places` (T,): where all the results have each token's.

    Results are those of `blocks`, then of each of `groups`, the answers to one prompt. `sizes` cuts
    the row for them: into what is before a group's prompt, the prompt and its answers, group by
    group, and the rest.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        groups: Sequence[Sequence[Segment]],
        device: torch.device,
    ) -> None:
        """Blocks are made of the segments that are in none of `groups`."""
        is_apart = {segment.tokens[0] for group in groups for segment in group}
        rest = [segment for segment in segments if segment.tokens[0] not in is_apart]
        places = np.zeros(sum(len(segment.tokens) for segment in segments), np.int64)
        self.blocks: list[_Block] = []
        self.groups: list[list[AnswerBlock]] = []
        self.sizes: list[int] = []
        start = 0
        for block in _cut_into_blocks(rest):
            queries, is_query = _pad([each.tokens for each in block])
            keys, _ = _pad([np.concatenate([each.context, each.tokens]) for each in block])
            places[queries[is_query]] = start + np.flatnonzero(is_query)
            start += queries.size
            before = np.array([len(each.context) for each in block])
            if len(set(before)) == 1:  # one mask for all of them
                before = before[:1]
            last_key = before[:, None] + np.arange(queries.shape[1])
            mask = np.arange(keys.shape[1]) <= last_key[:, None, :, None]
            is_causal = not before.any()
            self.blocks.append(
                _Block(
                    torch.from_numpy(queries).to(device),
                    torch.from_numpy(keys).to(device),
                    None if is_causal else torch.from_numpy(mask).to(device),
                )
            )
        for group in groups:
            from agentpeft.policies.learning.passes import shared_attention

            first, stop = int(group[0].tokens[0]), int(group[-1].tokens[-1]) + 1
            places[first:stop] = start + np.arange(stop - first)
            start += stop - first
            num_context = len(group[0].context)
            self.sizes += [first - num_context - sum(self.sizes), num_context, stop - first]
            answers = [Segment(each.tokens[:0], each.tokens - first) for each in group]
            cut = _cut_into_blocks(answers, _MAX_OWN_PAIRS)
            rows = ([each.tokens for each in block] for block in cut)
            self.groups.append([shared_attention.AnswerBlock(row, device) for row in rows])
        self.sizes.append(len(places) - sum(self.sizes))
        self.places = torch.from_numpy(places).to(device)


class Packing:
    """What the tokens of a row see, which each way of attention has cut as it wants it.

    The segments, none of them empty, come in the order of the row and hold all its tokens; those of
    one context follow it, and one another, without a gap.
    """

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        self._segments, self._device = segments, device
        self.large_groups = list(_find_large_groups(segments))
        self._cuts: dict[bool, Cut] = {}

    @cached_property
    def runs(self) -> "RowRuns":
        """As kernels for sequences of any lengths have it."""
        from agentpeft.policies.learning.passes.varlen_attention import RowRuns

        return RowRuns(self._segments, self._device)

    def cut(self, *, shares_prompts: bool) -> Cut:
        """As other kernels have it; with `shares_prompts`, `shared_attention` has large groups."""
        if shares_prompts not in self._cuts:
            groups = self.large_groups if shares_prompts else []
            self._cuts[shares_prompts] = Cut(self._segments, groups, self._device)
        return self._cuts[shares_prompts]


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
    kernel = None
    is_plain = dropout == 0.0 and value.shape[-1] == size
    if is_plain and (query.device.type != "cpu" or packing.large_groups):
        num_repeats = query.shape[1] // key.shape[1]
        kernel = find_kernel(query.device, _computed_dtype(query), size, num_repeats)
    if kernel == "varlen":
        from agentpeft.policies.learning.passes.varlen_attention import attend_to_runs

        return attend_to_runs(_as_read_by_kernels(row), packing.runs, scale)[None], None
    cut = packing.cut(shares_prompts=kernel == "shared")
    results = []
    for block in cut.blocks:
        picked = zip(row, (block.queries, block.keys, block.keys), strict=True)
        queries, keys, values = (pick(each, places).transpose(1, 2) for each, places in picked)
        is_causal = block.mask is None
        result, _ = sdpa_attention_forward(
            module, queries, keys, values, block.mask, dropout, scale, is_causal=is_causal
        )
        results.append(result.flatten(0, 1))
    if cut.groups:
        from agentpeft.policies.learning.passes.shared_attention import attend_to_shared

        parts = [torch.split(each, cut.sizes) for each in _as_read_by_kernels(row)]
        for number, group in enumerate(cut.groups):
            answers = [part[3 * number + 2] for part in parts]
            prompt = [part[3 * number + 1] for part in parts[1:]]
            results.append(attend_to_shared(answers, prompt, group, scale))
    return torch.cat(results).index_select(0, cut.places)[None], None


def pick(row: Tensor, places: Tensor) -> Tensor:
    """Returns what a row (T, ...) has at places (B, Q): (B, Q, ...)."""
    return row.index_select(0, places.flatten()).view(*places.shape, *row.shape[1:])


def _computed_dtype(states: Tensor) -> torch.dtype:
    """Returns the type in which attention computes with states: autocast's, or their own."""
    kind = states.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype


def _as_read_by_kernels(row: Sequence[Tensor]) -> list[Tensor]:
    """Returns states in the type to compute in, each one's last dimension without gaps."""
    cast = (each.to(_computed_dtype(row[0])) for each in row)
    return [each if each.stride(-1) == 1 else each.contiguous() for each in cast]


@cache
def find_kernel(
    device: torch.device, dtype: torch.dtype, size: int, num_repeats: int
) -> Literal["shared", "varlen"] | None:
    """Returns which kernels serve heads of this size, with `num_repeats` queries to a key."""
    if device.type == "cpu":
        from agentpeft.policies.learning.passes import shared_attention

        return "shared" if shared_attention.is_right(device, dtype, size, num_repeats) else None
    if dtype.itemsize != 2:
        return None
    from agentpeft.policies.learning.passes import varlen_attention

    return "varlen" if varlen_attention.is_right(device, dtype, size, num_repeats) else None


AttentionInterface.register(_NAME, _attend)


def _find_large_groups(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Yields, in order, the segments of each context that has many pairs with them."""
    groups: dict[int, list[Segment]] = {}
    for segment in segments:
        if len(segment.context):
            groups.setdefault(segment.context[0], []).append(segment)
    for group in groups.values():
        num_queries = sum(len(segment.tokens) for segment in group)
        if num_queries * len(group[0].context) >= _MANY_PAIRS:
            yield group


def _cut_into_blocks(
    segments: Sequence[Segment], most_pairs: int = _MAX_PAIRS
) -> list[list[Segment]]:
    """Returns segments of similar size together, those without a context apart.

    A block of several has at most `most_pairs` pairs of query and key, padding included.
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
        if is_other or is_wasteful or padded > most_pairs:
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
