"""Cuts trajectories into micro-batches, so that nothing is computed twice, and runs a model on one.

A group's prompt and equal answers of it are computed once, and logits only at positions that
predict a sampled token. All of it is exact: losses and gradients are those of running every
sequence alone, but for the order of summation. (A base's dropout, if any, falls otherwise.)

Tokens lie in one row without padding, or in padded rows. Packed, a group's prompt comes once, then
its answers, each of which sees the prompt and itself (`packed_attention`), then the next group.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from agentpeft.policies.errors import is_out_of_memory
from agentpeft.policies.learning.passes.packed_attention import Packing, Segment
from agentpeft.policies.learning.samples import Sample
from agentpeft.policies.messages import Floats, Ids, Trajectory

Layout: TypeAlias = Literal["shared", "packed", "padded"]
"""One row with shared prompts; one row of whole sequences; or a padded row for each sequence."""


@dataclass(frozen=True)
class MicroBatch:
    """Rows of tokens as a model reads them, and where in them the sampled tokens are predicted.

    `token_ids`: (B, T), where B is 1 if they are packed: then `packing` says what each token sees,
    and `position_ids` (1, T) its place in its own sequence. Else both are None.

    Logits are computed at U flat positions of the rows only, `needed` (U,). Sampled token i of N is
    predicted at the position number `slots[i]` of these, and has the id `targets[i]`. Tokens are
    listed sample by sample: `order` has the samples' numbers, `num_tokens` how many each has.
    """

    token_ids: Tensor
    position_ids: Tensor | None
    packing: Packing | None
    order: list[int]
    num_tokens: list[int]
    needed: Tensor
    slots: Tensor
    targets: Tensor

    def by_sample(self, values: Tensor) -> dict[int, Floats]:
        """Returns numbers of all sampled tokens, (N,), as arrays by their samples' numbers."""
        parts = np.split(values.cpu().numpy(), np.cumsum(self.num_tokens)[:-1])
        return dict(zip(self.order, parts, strict=True))


@dataclass(frozen=True)
class _Unit:
    """Distinct continuations (`rows`) of one prompt, which may be empty.

    `placed`: the number of each sample that is laid out, its trajectory, and its row.
    """

    prompt: Ids
    rows: list[Ids]
    placed: list[tuple[int, Trajectory, int]]

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt and of all rows."""
        return len(self.prompt) + sum(map(len, self.rows))


def make_micro_batches(
    samples: Sequence[Sample], max_tokens: int, layout: Layout, device: torch.device
) -> list[MicroBatch]:
    """Returns all samples in batches of at most `max_tokens` tokens, padding included.

    A sequence longer than that is a batch of its own; samples without sampled tokens are left out.
    """
    numbered = [(i, sample) for i, sample in enumerate(samples) if sample.num_sampled_tokens]
    is_shared = layout == "shared"
    units = _share_prompts(numbered, max_tokens) if is_shared else _keep_whole(numbered)
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


def _share_prompts(numbered: Sequence[tuple[int, Sample]], max_tokens: int) -> list[_Unit]:
    """Returns the groups; one of more than `max_tokens` in parts, each with the prompt."""
    groups: dict[tuple[int, bytes], dict[bytes, tuple[Ids, list[tuple[int, Trajectory]]]]] = {}
    for number, sample in numbered:
        trajectory = sample.trajectory
        same_prompt = groups.setdefault((sample.group, trajectory.prompt_ids.tobytes()), {})
        row = _fed_ids(trajectory)
        same_prompt.setdefault(row.tobytes(), (row, []))[1].append((number, trajectory))
    units: list[_Unit] = []
    for group in groups.values():
        unit: _Unit | None = None
        for row, same in sorted(group.values(), key=lambda rows: len(rows[0])):
            prompt = same[0][1].prompt_ids
            if unit is None or unit.num_tokens + len(row) > max_tokens:
                unit = _Unit(prompt, [], [])
                units.append(unit)
            unit.placed.extend((*one, len(unit.rows)) for one in same)
            unit.rows.append(row)
    return units


def _keep_whole(numbered: Sequence[tuple[int, Sample]]) -> list[_Unit]:
    """Returns each distinct sequence as a row without a prompt before it."""
    units: dict[bytes, _Unit] = {}
    for number, sample in numbered:
        row = np.concatenate([sample.trajectory.prompt_ids, _fed_ids(sample.trajectory)])
        unit = units.setdefault(row.tobytes(), _Unit(row[:0], [row], []))
        unit.placed.append((number, sample.trajectory, 0))
    return list(units.values())


def _lay_out_packed(units: Sequence[_Unit], device: torch.device) -> MicroBatch:
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
    positions = np.concatenate([segment.positions for segment in segments])[None]
    rows = np.concatenate(ids)[None]
    return _make_batch(units, row_starts, rows, positions, Packing(segments, device), device)


def _lay_out_padded(units: Sequence[_Unit], device: torch.device) -> MicroBatch:
    """Lays whole sequences out in a row each, padded on the right with token 0."""
    rows = [unit.rows[0] for unit in units]
    width = max(map(len, rows))
    padded = np.zeros((len(rows), width), np.int64)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    row_starts = [[number * width] for number in range(len(rows))]
    return _make_batch(units, row_starts, padded, None, None, device)


def _make_batch(
    units: Sequence[_Unit],
    row_starts: Sequence[Sequence[int]],
    token_ids: Ids,
    position_ids: Ids | None,
    packing: Packing | None,
    device: torch.device,
) -> MicroBatch:
    """Returns the batch of units; row r of unit u begins at `row_starts[u][r]` of all rows."""
    before: list[Ids] = []
    for unit, starts in zip(units, row_starts, strict=True):
        for _, trajectory, row in unit.placed:
            # Without a shared prompt, the row begins with the prompt
            offset = 0 if len(unit.prompt) else len(trajectory.prompt_ids)
            in_row = np.flatnonzero(trajectory.loss_mask) + offset - 1
            # The prompt's last token, which predicts a row's first one, lies before the first row
            before.append(np.where(in_row < 0, starts[0] - 1, starts[row] + in_row))
    needed, slots = np.unique(np.concatenate(before), return_inverse=True)
    placed = [one for unit in units for one in unit.placed]
    targets = [trajectory.token_ids[trajectory.loss_mask] for _, trajectory, _ in placed]
    return MicroBatch(
        token_ids=_to_tensor(token_ids, device),
        position_ids=None if position_ids is None else _to_tensor(position_ids, device),
        packing=packing,
        order=[number for number, _, _ in placed],
        num_tokens=[len(ids) for ids in targets],
        needed=_to_tensor(needed, device),
        slots=_to_tensor(slots, device),
        targets=_to_tensor(np.concatenate(targets), device),
    )


def _to_tensor(array: Ids, device: torch.device) -> Tensor:
    """Returns an array on a device."""
    return torch.from_numpy(array).to(device)


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
    if batch.packing is not None:
        extra = {"position_ids": batch.position_ids, "packing": batch.packing}
    handle = head.register_forward_pre_hook(keep)
    try:
        logits = model(input_ids=batch.token_ids, use_cache=False, **extra).logits[0]
    finally:
        handle.remove()
    return logits.float(), states[0]
