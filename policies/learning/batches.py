"""Packs trajectories into padded micro-batches, so that nothing is computed twice.

A group's prompt runs once, and its keys and values (with their gradients) are expanded over the
group's continuations; equal continuations of a group run once; logits are made only at positions
that predict a sampled token. All of it is exact: losses and gradients are those of running every
sequence alone, but for the order of summation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentpeft.policies.learning.samples import GroupMember
from agentpeft.policies.messages import Floats, Ids, Trajectory

_PASS_TOKENS = 256
"""A pass through the model takes, beside its tokens, about the time of so many."""


@dataclass(frozen=True)
class MicroBatch:
    """Padded rows, and where in them the sampled tokens are predicted.

    `prompt_ids`: (P, S), P = 0 where rows hold their prompts. `row_ids`: (R, T), the rest of each
    distinct sequence; both are right-padded. `row_prompts`: (R,) the prompt of each row.
    Logits are computed at U positions only: the flat positions `needed_prompts` and `needed_rows`,
    one after the other. Sampled token i of N is predicted at the position number `slots[i]` of
    these, and has the id `targets[i]`. Tokens are listed member by member: `order` has the members'
    numbers, `num_tokens` how many tokens each has.
    """

    order: list[int]
    num_tokens: list[int]
    prompt_ids: Tensor
    prompt_lengths: Tensor
    row_ids: Tensor
    row_prompts: Tensor
    needed_prompts: Tensor
    needed_rows: Tensor
    slots: Tensor
    targets: Tensor

    def by_member(self, values: Tensor) -> dict[int, Floats]:
        """Returns numbers of all sampled tokens, (N,), as arrays by their members' numbers."""
        parts = np.split(values.cpu().numpy(), np.cumsum(self.num_tokens)[:-1])
        return dict(zip(self.order, parts, strict=True))


@dataclass(frozen=True)
class _Place:
    """Member number `number` of those that are packed lies in row `row` of its unit."""

    number: int
    trajectory: Trajectory
    row: int


@dataclass(frozen=True)
class _Unit:
    """Distinct continuations of one prompt: what a micro-batch is filled with."""

    prompt: Ids
    rows: list[Ids]
    places: list[_Place]

    @property
    def size(self) -> tuple[int, int]:
        return len(self.prompt), max(map(len, self.rows), default=0)


def make_micro_batches(
    members: Sequence[GroupMember], max_tokens: int, share_prompts: bool, device: torch.device
) -> list[MicroBatch]:
    """Returns all members in batches of at most `max_tokens` padded tokens.

    A sequence longer than that is a batch of its own; members without sampled tokens are left out.
    Of these ways to fill the batches the one is taken that computes least, padding included: with
    prompts shared, repeated within a group or not, by the prompts' lengths or the rows'; or plain.
    """
    numbered = [(i, member) for i, member in enumerate(members) if member.num_sampled_tokens]
    plain = _plain_units(numbered)
    if not share_prompts:
        return [_pack(batch, device) for batch in _fill(plain, max_tokens)[1]]
    choices = [sorted(units, key=lambda u: u.size) for units in _shared_units(numbered, max_tokens)]
    choices += [sorted(units, key=lambda unit: unit.size[::-1]) for units in choices]
    ways = [_fill(units, max_tokens) for units in choices]
    if sum(sum(unit.size) for unit in plain) < min(cost for cost, _ in ways):
        ways.append(_fill(plain, max_tokens))
    return [_pack(batch, device) for batch in min(ways, key=lambda way: way[0])[1]]


def _fill(units: Sequence[_Unit], max_tokens: int) -> tuple[int, list[list[_Unit]]]:
    """Returns how much is computed, and the batches. None of several units is over `max_tokens`."""
    sizes = [(*unit.size, len(unit.rows)) for unit in units]
    cost, parts = _cut(sizes, max_tokens, _PASS_TOKENS)
    return cost, [list(units[part]) for part in parts]


def _cut(
    sizes: Sequence[tuple[int, int, int]], max_tokens: int, extra: int
) -> tuple[int, list[slice]]:
    """Returns the cheapest way to cut a sequence: what it computes, and its parts.

    `sizes`: a prompt's length, a row's, and how many rows. A part has the tokens of its prompts and
    rows, padded to the longest of each, and `extra` ones. One that is over `max_tokens` is alone.
    """
    best: list[tuple[int, list[slice]]] = [(0, [])]  # of the first n
    for stop in range(1, len(sizes) + 1):
        choices: list[tuple[int, int]] = []
        longest_prompt = longest_row = num_rows = 0
        for start in range(stop - 1, -1, -1):
            prompt, row, more = sizes[start]
            longest_prompt, longest_row = max(longest_prompt, prompt), max(longest_row, row)
            num_rows += more
            num_tokens = (stop - start) * longest_prompt + num_rows * longest_row
            if choices and num_tokens > max_tokens:
                break
            choices.append((best[start][0] + num_tokens + extra, start))
        cost, start = min(choices)
        best.append((cost, [*best[start][1], slice(start, stop)]))
    return best[-1]


def _fed_ids(trajectory: Trajectory) -> Ids:
    """The tokens that the model must read after the prompt: all before the last sampled one."""
    return trajectory.token_ids[: np.flatnonzero(trajectory.loss_mask)[-1]]


def _shared_units(
    numbered: Sequence[tuple[int, GroupMember]], max_tokens: int
) -> tuple[list[_Unit], list[_Unit]]:
    """Returns the groups, cut where another copy of the prompt saves more padding, and whole."""
    groups: dict[tuple[int, bytes], list[tuple[int, Trajectory]]] = {}
    for number, member in numbered:
        key = member.group, member.trajectory.prompt_ids.tobytes()
        groups.setdefault(key, []).append((number, member.trajectory))
    ways: tuple[list[_Unit], list[_Unit]] = [], []
    for group in groups.values():
        prompt = group[0][1].prompt_ids
        equal: dict[bytes, list[tuple[int, Trajectory]]] = {}
        for number, trajectory in sorted(group, key=lambda each: len(_fed_ids(each[1]))):
            equal.setdefault(_fed_ids(trajectory).tobytes(), []).append((number, trajectory))
        answers = list(equal.values())
        rows = [_fed_ids(same[0][1]) for same in answers]
        sizes = [(0, len(row), 1) for row in rows]
        for units, copy in zip(ways, (len(prompt), max_tokens), strict=True):
            for part in _cut(sizes, max_tokens - len(prompt), copy)[1]:
                places = [_Place(*one, i) for i, same in enumerate(answers[part]) for one in same]
                units.append(_Unit(prompt, rows[part], places))
    return ways


def _plain_units(numbered: Sequence[tuple[int, GroupMember]]) -> list[_Unit]:
    units: dict[bytes, _Unit] = {}
    for number, member in numbered:
        row = np.concatenate([member.trajectory.prompt_ids, _fed_ids(member.trajectory)])
        unit = units.setdefault(row.tobytes(), _Unit(row[:0], [row], []))
        unit.places.append(_Place(number, member.trajectory, 0))
    return sorted(units.values(), key=lambda unit: unit.size)


def _pack(units: Sequence[_Unit], device: torch.device) -> MicroBatch:
    prompts = _pad([unit.prompt for unit in units])
    rows = _pad([row for unit in units for row in unit.rows])
    places = [place for unit in units for place in unit.places]
    # Lay all padded prompts end to end, then all padded rows. A code is an index into that line:
    # the position just before a sampled token. Tokens that share a position share its logits.
    codes, first_row = [], 0
    for number, unit in enumerate(units):
        last_of_prompt = number * prompts.shape[1] + len(unit.prompt) - 1
        for place in unit.places:
            # Without a shared prompt, the row begins with the prompt
            offset = 0 if len(unit.prompt) else len(place.trajectory.prompt_ids)
            before = np.flatnonzero(place.trajectory.loss_mask) + offset - 1
            in_row = prompts.size + (first_row + place.row) * rows.shape[1] + before
            codes.append(np.where(before < 0, last_of_prompt, in_row))
        first_row += len(unit.rows)
    needed, slots = np.unique(np.concatenate(codes), return_inverse=True)
    targets = [place.trajectory.token_ids[place.trajectory.loss_mask] for place in places]

    def tensor(array: Any) -> Tensor:
        return torch.as_tensor(np.asarray(array)).to(device)

    return MicroBatch(
        order=[place.number for place in places],
        num_tokens=[len(ids) for ids in targets],
        prompt_ids=tensor(prompts),
        prompt_lengths=tensor([len(unit.prompt) for unit in units]),
        row_ids=tensor(rows),
        row_prompts=tensor(np.repeat(np.arange(len(units)), [len(unit.rows) for unit in units])),
        needed_prompts=tensor(needed[needed < prompts.size]),
        needed_rows=tensor(needed[needed >= prompts.size] - prompts.size),
        slots=tensor(slots),
        targets=tensor(np.concatenate(targets)),
    )


def _pad(rows: Sequence[Ids]) -> Ids:
    padded = np.zeros((len(rows), max(map(len, rows), default=0)), np.int64)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded
