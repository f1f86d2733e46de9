"""Cuts trajectories into micro-batches, so that nothing is computed twice, and runs a model on one.

A group's prompt and equal answers of it are computed once (`layouts`), and logits only at positions
that predict a sampled token. All of it is exact: losses and gradients are those of running every
sequence alone, but for the order of summation. (Dropout of LoRA, if any, falls otherwise.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from agentpeft.policies.errors import is_out_of_memory
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


_T = TypeVar("_T")
_MIN_TOKENS = 32
CALM_UPDATES = 20
"""After so many updates in a row without a shortage of memory, micro-batches double again."""


class MicroBatchSize:
    """The tokens of a micro-batch, `max_tokens`: halved whenever memory runs out.

    A shortage may pass: after `CALM_UPDATES` updates without one it doubles, up to the setting.
    """

    def __init__(self, limit: int) -> None:
        """`limit` is `learners.max_tokens_per_micro_batch`."""
        self._limit = self.max_tokens = limit
        self._num_retries = self._num_calm_updates = 0

    def within_memory(self, compute: Callable[[], _T]) -> _T:
        """Returns the result; tries again with smaller micro-batches while memory runs out."""
        while True:
            try:
                return compute()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or self.max_tokens < 2 * _MIN_TOKENS:
                    raise
            self.max_tokens //= 2
            self._num_retries += 1

    def end_update(self) -> int:
        """Returns how often memory ran out in this update; grows micro-batches after calm ones."""
        taken, self._num_retries = self._num_retries, 0
        is_calm = taken == 0 and self.max_tokens < self._limit
        self._num_calm_updates = self._num_calm_updates + 1 if is_calm else 0
        if self._num_calm_updates == CALM_UPDATES:
            self._num_calm_updates = 0
            self.max_tokens = min(2 * self.max_tokens, self._limit)
        return taken

    def state(self) -> tuple[int, int]:
        """Returns the present `max_tokens`, and the number of updates since memory last ran out."""
        return self.max_tokens, self._num_calm_updates

    def load_state(self, max_tokens: int, num_calm_updates: int = 0) -> None:
        """Continues from `state`, within this run's setting."""
        self.max_tokens = min(max_tokens, self._limit)
        self._num_calm_updates = num_calm_updates


def compute_logits(
    model: nn.Module, head: nn.Module, batch: MicroBatch, has_logits: bool = True
) -> tuple[Tensor, Tensor]:
    """Returns the logits (U, V), float32, of the needed positions, and their states (U, H).

    The states are what `head`, the output layer, reads. Without `has_logits` that layer computes
    nothing, and the logits are (0, V). A packed batch runs under `packed_attention`. What the model
    does after the output layer (soft caps, scales) still happens.
    """
    states: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        del module
        states.append(args[0].flatten(0, 1).index_select(0, batch.needed))
        return (states[-1][None] if has_logits else states[-1][None, :0],)

    extra: dict[str, Any] = {}
    if batch.rows.packing is not None:
        extra = {"position_ids": batch.rows.position_ids, "packing": batch.rows.packing}
    handle = head.register_forward_pre_hook(keep)
    try:
        logits = model(input_ids=batch.rows.token_ids, use_cache=False, **extra).logits[0]
    finally:
        handle.remove()
    return logits.float(), states[0]
