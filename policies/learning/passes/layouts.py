"""Where the tokens of trajectories lie: in one row without padding, or in padded rows.

Packed, a group's prompt comes once, then its answers, each of which sees the prompt and itself
(`packed_attention`), then the next group. Equal answers of a group are there once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentpeft.policies.learning.passes.packed_attention import Packing
from agentpeft.policies.learning.passes.segments import Segment
from agentpeft.policies.learning.samples import GroupMember
from agentpeft.policies.messages import Ids, Trajectory


@dataclass(frozen=True)
class Rows:
    """The tokens of some units as a model reads them; unit u's row r begins at `starts[u][r]`.

    `token_ids`: (B, T), where B is 1 if they are packed: then `packing` says what each token sees,
    and `position_ids` (1, T) its place in its own sequence. Else both are None.
    """

    starts: Sequence[Sequence[int]]
    token_ids: Tensor
    position_ids: Tensor | None
    packing: Packing | None


@dataclass(frozen=True)
class PlacedTrajectory:
    """Member number `number` of those that are laid out is row `row` of its unit."""

    number: int
    trajectory: Trajectory
    row: int


@dataclass(frozen=True)
class Unit:
    """Distinct continuations (`rows`) of one prompt, which may be empty."""

    prompt: Ids
    rows: list[Ids]
    places: list[PlacedTrajectory]

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt and of all rows."""
        return len(self.prompt) + sum(map(len, self.rows))


def _fed_ids(trajectory: Trajectory) -> Ids:
    """The tokens that the model must read after the prompt: all before the last sampled one."""
    return trajectory.token_ids[: np.flatnonzero(trajectory.loss_mask)[-1]]


def shared_units(numbered: Sequence[tuple[int, GroupMember]], max_tokens: int) -> list[Unit]:
    """Returns the groups; one of more than `max_tokens` in parts, each with the prompt."""
    groups: dict[tuple[int, bytes], dict[bytes, tuple[Ids, list[tuple[int, Trajectory]]]]] = {}
    for number, member in numbered:
        trajectory = member.trajectory
        same_prompt = groups.setdefault((member.group, trajectory.prompt_ids.tobytes()), {})
        row = _fed_ids(trajectory)
        same_prompt.setdefault(row.tobytes(), (row, []))[1].append((number, trajectory))
    units: list[Unit] = []
    for group in groups.values():
        unit: Unit | None = None
        for row, same in sorted(group.values(), key=lambda each: len(each[0])):
            prompt = same[0][1].prompt_ids
            if unit is None or unit.num_tokens + len(row) > max_tokens:
                unit = Unit(prompt, [], [])
                units.append(unit)
            unit.places.extend(PlacedTrajectory(*one, len(unit.rows)) for one in same)
            unit.rows.append(row)
    return units


def whole_sequences(numbered: Sequence[tuple[int, GroupMember]]) -> list[Unit]:
    """Returns each distinct sequence as a row without a prompt before it."""
    units: dict[bytes, Unit] = {}
    for number, member in numbered:
        row = np.concatenate([member.trajectory.prompt_ids, _fed_ids(member.trajectory)])
        unit = units.setdefault(row.tobytes(), Unit(row[:0], [row], []))
        unit.places.append(PlacedTrajectory(number, member.trajectory, 0))
    return list(units.values())


def lay_out_packed(units: Sequence[Unit], device: torch.device) -> Rows:
    """Lays units out in one row, each with its prompt once."""
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
    positions = [each.positions for each in segments]
    return Rows(
        starts=row_starts,
        token_ids=to_tensor(np.concatenate(ids)[None], device),
        position_ids=to_tensor(np.concatenate(positions)[None], device),
        packing=Packing(segments, device),
    )


def lay_out_padded(units: Sequence[Unit], device: torch.device) -> Rows:
    """Lays whole sequences out in a row each, padded on the right with token 0."""
    rows = [unit.rows[0] for unit in units]
    width = max(map(len, rows))
    padded = np.zeros((len(rows), width), np.int64)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    row_starts = [[number * width] for number in range(len(rows))]
    return Rows(row_starts, to_tensor(padded, device), position_ids=None, packing=None)


def to_tensor(array: Ids, device: torch.device) -> Tensor:
    """Returns an array on a device."""
    return torch.from_numpy(array).to(device)
