"""Lays trajectories out in micro-batches, so that nothing is computed twice.

Packed, a micro-batch is one row without padding: a group's prompt, once, then its answers, each of
which sees the prompt and itself (`packed_attention`), then the next group. Equal answers of a group
are there once; logits are made only at positions that predict a sampled token. All of it is exact:
losses and gradients are those of running every sequence alone, but for the order of summation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from agentpeft.policies.learning.samples import GroupMember
from agentpeft.policies.messages import Floats, Ids, Trajectory
from agentpeft.policies.models.packed_attention import Packing, Segment, make_packing

Layout: TypeAlias = Literal["shared", "packed", "padded"]
"""One row with shared prompts; one row of whole sequences; or a padded row for each sequence."""


@dataclass(frozen=True)
class MicroBatch:
    """Rows of tokens, and where in them the sampled tokens are predicted.

    `token_ids`: (B, T), where B is 1 if they are packed: then `packing` says what each token sees,
    and `position_ids` (1, T) its place in its own sequence. Else rows are padded on the right, and
    both are None. Logits are computed at U flat positions only, `needed` (U,). Sampled token i of N
    is predicted at the position number `slots[i]` of these, and has the id `targets[i]`. Tokens are
    listed member by member: `order` has the members' numbers, `num_tokens` how many each has.
    """

    order: list[int]
    num_tokens: list[int]
    token_ids: Tensor
    position_ids: Tensor | None
    packing: Packing | None
    needed: Tensor
    slots: Tensor
    targets: Tensor

    def by_member(self, values: Tensor) -> dict[int, Floats]:
        """Returns numbers of all sampled tokens, (N,), as arrays by their members' numbers."""
        parts = np.split(values.cpu().numpy(), np.cumsum(self.num_tokens)[:-1])
        return dict(zip(self.order, parts, strict=True))


@dataclass(frozen=True)
class _Place:
    """Member number `number` of those that are laid out is row `row` of its unit."""

    number: int
    trajectory: Trajectory
    row: int


@dataclass(frozen=True)
class _Unit:
    """Distinct continuations of one prompt, which may be empty."""

    prompt: Ids
    rows: list[Ids]
    places: list[_Place]

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + sum(map(len, self.rows))


def make_micro_batches(
    members: Sequence[GroupMember], max_tokens: int, layout: Layout, device: torch.device
) -> list[MicroBatch]:
    """Returns all members in batches of at most `max_tokens` tokens, padding included.

    A sequence longer than that is a batch of its own; members without sampled tokens are left out.
    """
    numbered = [(i, member) for i, member in enumerate(members) if member.num_sampled_tokens]
    if layout == "shared":
        units = _shared_units(numbered, max_tokens)
    else:
        units = _whole_sequences(numbered)
    units.sort(key=lambda unit: unit.num_tokens)
    batches: list[list[_Unit]] = []
    num_tokens = 0
    for unit in units:
        num_tokens += unit.num_tokens
        if batches and layout == "padded":
            num_tokens = (len(batches[-1]) + 1) * unit.num_tokens
        if not batches or num_tokens > max_tokens:
            batches.append([])
            num_tokens = unit.num_tokens
        batches[-1].append(unit)
    lay_out = _lay_out_padded if layout == "padded" else _lay_out_packed
    return [lay_out(batch, device) for batch in batches]


def _fed_ids(trajectory: Trajectory) -> Ids:
    """The tokens that the model must read after the prompt: all before the last sampled one."""
    return trajectory.token_ids[: np.flatnonzero(trajectory.loss_mask)[-1]]


def _shared_units(numbered: Sequence[tuple[int, GroupMember]], max_tokens: int) -> list[_Unit]:
    """Returns the groups; one of more than `max_tokens` in parts, each with the prompt."""
    groups: dict[tuple[int, bytes], dict[bytes, list[tuple[int, Trajectory]]]] = {}
    for number, member in numbered:
        trajectory = member.trajectory
        same_prompt = groups.setdefault((member.group, trajectory.prompt_ids.tobytes()), {})
        same_prompt.setdefault(_fed_ids(trajectory).tobytes(), []).append((number, trajectory))
    units: list[_Unit] = []
    for group in groups.values():
        unit: _Unit | None = None
        for same in sorted(group.values(), key=lambda same: len(_fed_ids(same[0][1]))):
            prompt, row = same[0][1].prompt_ids, _fed_ids(same[0][1])
            if unit is None or unit.num_tokens + len(row) > max_tokens:
                unit = _Unit(prompt, [], [])
                units.append(unit)
            unit.places.extend(_Place(*one, len(unit.rows)) for one in same)
            unit.rows.append(row)
    return units


def _whole_sequences(numbered: Sequence[tuple[int, GroupMember]]) -> list[_Unit]:
    """Returns each distinct sequence as a row without a prompt before it."""
    units: dict[bytes, _Unit] = {}
    for number, member in numbered:
        row = np.concatenate([member.trajectory.prompt_ids, _fed_ids(member.trajectory)])
        unit = units.setdefault(row.tobytes(), _Unit(row[:0], [row], []))
        unit.places.append(_Place(number, member.trajectory, 0))
    return list(units.values())


def _lay_out_packed(units: Sequence[_Unit], device: torch.device) -> MicroBatch:
    ids: list[Ids] = []
    segments: list[Segment] = []
    row_starts: list[list[int]] = []
    stop = 0

    def add(context: Ids, tokens: Ids) -> Ids:
        nonlocal stop
        places = np.arange(stop, stop + len(tokens))
        stop += len(tokens)
        if len(tokens):
            ids.append(tokens)
            segments.append(Segment(context, places))
        return places

    for unit in units:
        prompt = add(np.zeros(0, np.int64), unit.prompt)
        row_starts.append([])
        for row in unit.rows:
            row_starts[-1].append(stop)
            add(prompt, row)
    positions = [len(each.context) + np.arange(len(each.tokens)) for each in segments]
    return _find_targets(
        units,
        row_starts,
        device,
        token_ids=_tensor(np.concatenate(ids)[None], device),
        position_ids=_tensor(np.concatenate(positions)[None], device),
        packing=make_packing(segments, device),
    )


def _lay_out_padded(units: Sequence[_Unit], device: torch.device) -> MicroBatch:
    rows = [unit.rows[0] for unit in units]
    width = max(map(len, rows))
    padded = np.zeros((len(rows), width), np.int64)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    row_starts = [[number * width] for number in range(len(rows))]
    token_ids = _tensor(padded, device)
    return _find_targets(
        units, row_starts, device, token_ids=token_ids, position_ids=None, packing=None
    )


def _find_targets(
    units: Sequence[_Unit],
    row_starts: Sequence[Sequence[int]],
    device: torch.device,
    **tokens: Any,
) -> MicroBatch:
    """Returns the batch of the laid out `tokens`; unit u's row r begins at `row_starts[u][r]`."""
    before: list[Ids] = []
    for unit, starts in zip(units, row_starts, strict=True):
        for place in unit.places:
            # Without a shared prompt, the row begins with the prompt
            offset = 0 if len(unit.prompt) else len(place.trajectory.prompt_ids)
            in_row = np.flatnonzero(place.trajectory.loss_mask) + offset - 1
            # The prompt's last token, which predicts a row's first one, lies before the first row
            before.append(np.where(in_row < 0, starts[0] - 1, starts[place.row] + in_row))
    needed, slots = np.unique(np.concatenate(before), return_inverse=True)
    places = [place for unit in units for place in unit.places]
    targets = [place.trajectory.token_ids[place.trajectory.loss_mask] for place in places]
    return MicroBatch(
        order=[place.number for place in places],
        num_tokens=[len(ids) for ids in targets],
        needed=_tensor(needed, device),
        slots=_tensor(slots, device),
        targets=_tensor(np.concatenate(targets), device),
        **tokens,
    )


def _tensor(array: Ids, device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)
