"""Samples to padded micro-batches, and micro-batches to log-probabilities.

Nothing is computed twice. A group's prompt runs once, its keys and values (with their gradients)
are expanded over the group's continuations; equal continuations of a group run once; logits are
made of those positions only that predict a sampled token. All of it is exact: losses and gradients
are those of running every sequence alone, but for the order of summation.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer

from agentpeft.policies.messages import Floats, Ids, Trajectory

_NUM_ENTROPY_LOGITS = 2**22


@dataclass(frozen=True)
class Sample:
    """A trajectory to learn from; `columns` hold one float for each sampled token, (N,)."""

    group: int
    trajectory: Trajectory
    columns: dict[str, Floats]

    @property
    def fed_ids(self) -> Ids:
        """The tokens that the model must read after the prompt: all before the last sampled one."""
        return self.trajectory.token_ids[: np.flatnonzero(self.trajectory.loss_mask)[-1]]


@dataclass(frozen=True)
class MicroBatch:
    """Padded rows, and where in them the sampled tokens are predicted.

    `prompt_ids`: (P, S), P = 0 where rows hold their prompts. `row_ids`: (R, T), the rest of each
    distinct sequence; both are right-padded. `row_prompts`: (R,) the prompt of each row.
    `needed_prompts`, `needed_rows`: flat positions whose logits are needed, U in all;
    `slots`: (N,) which of the U predicts each sampled token; `targets`: (N,) its id.
    """

    samples: list[Sample]
    prompt_ids: Tensor
    prompt_lengths: Tensor
    row_ids: Tensor
    row_prompts: Tensor
    needed_prompts: Tensor
    needed_rows: Tensor
    slots: Tensor
    targets: Tensor
    columns: dict[str, Tensor]


@dataclass(frozen=True)
class _Unit:
    """Samples that share one prompt: what a micro-batch is filled with."""

    prompt: Ids
    rows: list[Ids]
    members: list[tuple[int, Sample]]

    @property
    def size(self) -> tuple[int, int]:
        return len(self.prompt), max(map(len, self.rows), default=0)


def make_micro_batches(
    samples: Sequence[Sample], max_tokens: int, share_prompts: bool, device: torch.device
) -> list[MicroBatch]:
    """Returns all samples, sorted by length, in batches of at most `max_tokens` padded tokens.

    A sequence longer than that is a batch of its own; samples without sampled tokens are left out.
    """
    members = [sample for sample in samples if sample.trajectory.loss_mask.any()]
    units = _shared_units(members, max_tokens) if share_prompts else _plain_units(members)
    batches: list[list[_Unit]] = []
    for unit in sorted(units, key=lambda unit: unit.size):
        if not batches or _num_tokens([*batches[-1], unit]) > max_tokens:
            batches.append([])
        batches[-1].append(unit)
    return [_build(batch, device) for batch in batches]


def _num_tokens(units: Sequence[_Unit]) -> int:
    longest_prompt, longest_row = (max(unit.size[i] for unit in units) for i in (0, 1))
    num_rows = sum(len(unit.rows) for unit in units)
    return len(units) * longest_prompt + num_rows * longest_row


def _shared_units(samples: Sequence[Sample], max_tokens: int) -> Iterator[_Unit]:
    groups: dict[tuple[int, bytes], list[Sample]] = {}
    for sample in samples:
        key = sample.group, sample.trajectory.prompt_ids.tobytes()
        groups.setdefault(key, []).append(sample)
    for group in groups.values():
        unit = _Unit(group[0].trajectory.prompt_ids, [], [])
        for sample in sorted(group, key=lambda sample: len(sample.fed_ids)):
            grown = len(unit.prompt) + (len(unit.rows) + 1) * len(sample.fed_ids)
            if unit.rows and grown > max_tokens:
                yield unit
                unit = _Unit(unit.prompt, [], [])
            _add(unit, sample, sample.fed_ids)
        yield unit


def _plain_units(samples: Sequence[Sample]) -> Iterator[_Unit]:
    units: dict[bytes, _Unit] = {}
    for sample in samples:
        row = np.concatenate([sample.trajectory.prompt_ids, sample.fed_ids])
        unit = units.setdefault(row.tobytes(), _Unit(row[:0], [], []))
        _add(unit, sample, row)
    yield from units.values()


def _add(unit: _Unit, sample: Sample, row: Ids) -> None:
    known = next((i for i, other in enumerate(unit.rows) if np.array_equal(other, row)), None)
    if known is None:
        unit.rows.append(row)
    unit.members.append((len(unit.rows) - 1 if known is None else known, sample))


def _build(units: Sequence[_Unit], device: torch.device) -> MicroBatch:
    prompts = _pad([unit.prompt for unit in units])
    rows = _pad([row for unit in units for row in unit.rows])
    codes, members, first = [], [], 0
    for p, unit in enumerate(units):
        for row, sample in unit.members:
            codes.append(_codes(sample, len(unit.prompt), (p, first + row), (prompts, rows)))
            members.append(sample)
        first += len(unit.rows)
    needed, slots = np.unique(np.concatenate(codes), return_inverse=True)
    targets = [s.trajectory.token_ids[s.trajectory.loss_mask] for s in members]

    def tensor(array: Any) -> Tensor:
        return torch.as_tensor(np.asarray(array)).to(device)

    return MicroBatch(
        samples=members,
        prompt_ids=tensor(prompts),
        prompt_lengths=tensor([len(unit.prompt) for unit in units]),
        row_ids=tensor(rows),
        row_prompts=tensor(np.repeat(np.arange(len(units)), [len(unit.rows) for unit in units])),
        needed_prompts=tensor(needed[needed < prompts.size]),
        needed_rows=tensor(needed[needed >= prompts.size] - prompts.size),
        slots=tensor(slots),
        targets=tensor(np.concatenate(targets)),
        columns={
            name: tensor(np.concatenate([s.columns[name] for s in members]))
            for name in members[0].columns
        },
    )


def _codes(
    sample: Sample, prompt_length: int, place: tuple[int, int], padded: tuple[Ids, Ids]
) -> Ids:
    """Returns the flat position, prompts before rows, that predicts each sampled token."""
    (prompt, row), (prompts, rows) = place, padded
    offset = 0 if prompt_length else len(sample.trajectory.prompt_ids)
    before = np.flatnonzero(sample.trajectory.loss_mask) + offset - 1
    in_prompt = prompt * prompts.shape[1] + prompt_length - 1
    in_row = prompts.size + row * rows.shape[1] + before
    codes: Ids = np.where(before < 0, in_prompt, in_row)
    return codes


def _pad(rows: Sequence[Ids]) -> Ids:
    padded = np.zeros((len(rows), max(map(len, rows), default=0)), np.int64)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded


def compute_outputs(
    model: nn.Module, head: nn.Module, batch: MicroBatch, has_logits: bool = True
) -> tuple[Tensor, Tensor]:
    """Returns the logits (U, V), float32, of the needed positions, and their states (U, H).

    The states are what `head`, the output layer, reads. Without `has_logits` that layer computes
    nothing, and the logits are (0, V).
    """
    logits: list[Tensor] = []
    states: list[Tensor] = []
    extra: dict[str, Any] = {"use_cache": False}
    if batch.prompt_ids.numel():
        with _only_positions(head, batch.needed_prompts, states, has_logits):
            output = model(input_ids=batch.prompt_ids, use_cache=True)
        logits.append(output.logits[0])
        cache = _expand(output.past_key_values, batch.row_prompts)
        extra = {"use_cache": True, "past_key_values": cache, **_places_after_prompts(batch)}
    if batch.row_ids.numel():
        with _only_positions(head, batch.needed_rows, states, has_logits):
            output = model(input_ids=batch.row_ids, **extra)
        logits.append(output.logits[0])
    return torch.cat(logits).float(), torch.cat(states)


def compute_logprobs(logits: Tensor, batch: MicroBatch) -> Tensor:
    """Returns the log-probability (N,) of each sampled token."""
    chosen = logits[batch.slots, batch.targets]
    return chosen - logits.logsumexp(-1)[batch.slots]


def compute_entropy(logits: Tensor, batch: MicroBatch) -> Tensor:
    """Returns the entropy (N,), in nats, of the distribution at each sampled token.

    Without gradients a few rows at a time, so that a large vocabulary takes no more memory.
    """
    if torch.is_grad_enabled() and logits.requires_grad:
        logprobs = logits.log_softmax(-1)
        return -(logprobs.exp() * logprobs).sum(-1)[batch.slots]
    parts = torch.split(logits.detach(), max(1, _NUM_ENTROPY_LOGITS // logits.shape[1]))
    return torch.cat([torch.special.entr(part.softmax(-1)).sum(-1) for part in parts])[batch.slots]


def can_share_prompts(config: PretrainedConfig) -> bool:
    """Returns whether the model's cache is the plain one of keys and values, which can be cut."""
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers)


@contextmanager
def _only_positions(
    head: nn.Module, positions: Tensor, states: list[Tensor], has_logits: bool
) -> Iterator[None]:
    """The output layer sees the flat `positions` of its input only: (B, T, H) -> (1, U, H).

    They are appended to `states`, (U, H); without `has_logits` the layer sees none of them. What
    the model does after that layer (soft caps, scales) still happens.
    """

    def keep(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        del module
        states.append(args[0].flatten(0, 1).index_select(0, positions))
        return (states[-1][None] if has_logits else states[-1][None, :0],)

    handle = head.register_forward_pre_hook(keep)
    try:
        yield
    finally:
        handle.remove()


def _expand(cache: DynamicCache, row_prompts: Tensor) -> DynamicCache:
    cache.batch_select_indices(row_prompts)
    return cache


def _places_after_prompts(batch: MicroBatch) -> dict[str, Tensor]:
    lengths = batch.prompt_lengths[batch.row_prompts]
    num_columns = batch.row_ids.shape[1]
    steps = torch.arange(num_columns, device=lengths.device)
    columns = torch.arange(batch.prompt_ids.shape[1], device=lengths.device)
    seen = torch.cat([columns < lengths[:, None], torch.ones_like(batch.row_ids).bool()], dim=1)
    return {"position_ids": lengths[:, None] + steps, "attention_mask": seen.long()}
