"""Cuts trajectories into micro-batches, so that nothing is computed twice.

A group's prompt and equal answers of it are computed once (`layouts`), and logits only at positions
that predict a sampled token. All of it is exact: losses and gradients are those of running every
sequence alone, but for the order of summation. (Dropout of LoRA, if any, falls otherwise.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from agentpeft.policies.learning.passes.layouts import (
    Rows,
    Unit,
    lay_out_packed,
    lay_out_padded,
    shared_units,
    to_tensor,
    whole_sequences,
)
from agentpeft.policies.learning.samples import GroupMember
from agentpeft.policies.messages import Floats, Ids

Layout: TypeAlias = Literal["shared", "packed", "padded"]
"""One row with shared prompts; one row of whole sequences; or a padded row for each sequence."""


@dataclass(frozen=True)
class MicroBatch:
    """Rows of tokens, and where in them the sampled tokens are predicted.

    Logits are computed at U flat positions of the rows only, `needed` (U,). Sampled token i of N is
    predicted at the position number `slots[i]` of these, and has the id `targets[i]`. Tokens are
    listed member by member: `order` has the members' numbers, `num_tokens` how many each has.
    """

    rows: Rows
    order: list[int]
    num_tokens: list[int]
    needed: Tensor
    slots: Tensor
    targets: Tensor

    def by_member(self, values: Tensor) -> dict[int, Floats]:
        """Returns numbers of all sampled tokens, (N,), as arrays by their members' numbers."""
        parts = np.split(values.cpu().numpy(), np.cumsum(self.num_tokens)[:-1])
        return dict(zip(self.order, parts, strict=True))


def make_micro_batches(
    members: Sequence[GroupMember], max_tokens: int, layout: Layout, device: torch.device
) -> list[MicroBatch]:
    """Returns all members in batches of at most `max_tokens` tokens, padding included.

    A sequence longer than that is a batch of its own; members without sampled tokens are left out.
    """
    numbered = [(i, member) for i, member in enumerate(members) if member.num_sampled_tokens]
    is_shared = layout == "shared"
    units = shared_units(numbered, max_tokens) if is_shared else whole_sequences(numbered)
    units.sort(key=lambda unit: unit.num_tokens)
    batches: list[list[Unit]] = []
    num_tokens = 0
    for unit in units:
        num_tokens += unit.num_tokens
        if batches and layout == "padded":
            num_tokens = (len(batches[-1]) + 1) * unit.num_tokens
        if not batches or num_tokens > max_tokens:
            batches.append([])
            num_tokens = unit.num_tokens
        batches[-1].append(unit)
    lay_out = lay_out_padded if layout == "padded" else lay_out_packed
    return [_find_targets(batch, lay_out(batch, device), device) for batch in batches]


def _find_targets(units: Sequence[Unit], rows: Rows, device: torch.device) -> MicroBatch:
    """Returns the batch of units that are laid out in `rows`."""
    before: list[Ids] = []
    for unit, starts in zip(units, rows.starts, strict=True):
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
        rows=rows,
        order=[place.number for place in places],
        num_tokens=[len(ids) for ids in targets],
        needed=to_tensor(needed, device),
        slots=to_tensor(slots, device),
        targets=to_tensor(np.concatenate(targets), device),
    )
