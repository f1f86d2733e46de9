"""Cuts trajectories into micro-batches, so that nothing is computed twice, and runs a model on one.

A group's prompt and equal answers of it are computed once, and logits only at positions that
predict a sampled token. All of it is exact: losses and gradients are those of running every
sequence alone, but for the order of summation. (A base's dropout, if any, falls otherwise.)

Packed, tokens lie in one row without padding: a group's prompt comes once, then its answers, each
of which sees the prompt and itself (`packed_attention`), then the next group. Models that cannot be
packed get each sequence, its prompt included, in a padded row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from agentpeft.policies.errors import is_out_of_memory
from agentpeft.policies.learning.passes.packed_attention import Packing, Segment
from agentpeft.policies.learning.samples import Sample
from agentpeft.policies.messages import Floats, Ids


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
        arrays = np.split(values.cpu().numpy(), np.cumsum(self.num_tokens)[:-1])
        return dict(zip(self.order, arrays, strict=True))


class _Unit:
    """Distinct continuations of one prompt, and the numbers of the samples that have each."""

    def __init__(self, prompt: Ids) -> None:
        self.prompt, self.num_tokens = prompt, len(prompt)
        self.rows: list[tuple[Ids, list[int]]] = []

    def add(self, row: Ids, numbers: list[int]) -> None:
        self.rows.append((row, numbers))
        self.num_tokens += len(row)


def make_micro_batches(
    samples: Sequence[Sample], max_tokens: int, *, is_packed: bool, device: torch.device
) -> list[MicroBatch]:
    """Returns all samples in batches of at most `max_tokens` tokens, padding included.

    A sequence longer than that is a batch of its own; samples without sampled tokens are left out.
    """
    units = _make_units(samples, max_tokens, is_packed)
    units.sort(key=lambda unit: unit.num_tokens)
    batches: list[list[_Unit]] = []
    num_tokens = 0
    for unit in units:
        num_tokens += unit.num_tokens
        if batches and not is_packed:
            num_tokens = (len(batches[-1]) + 1) * unit.num_tokens
        if not batches or num_tokens > max_tokens:
            batches.append([])
            num_tokens = unit.num_tokens
        batches[-1].append(unit)
    return [_lay_out(batch, samples, is_packed, device) for batch in batches]


def _make_units(samples: Sequence[Sample], max_tokens: int, is_packed: bool) -> list[_Unit]:
    """Returns the groups; one of more than `max_tokens` in several, each with the prompt.

    Unpacked, each distinct sequence is a unit without a prompt before it.
    """
    groups: dict[tuple[int, bytes], tuple[Ids, dict[bytes, tuple[Ids, list[int]]]]] = {}
    for number, sample in enumerate(samples):
        if not sample.num_sampled_tokens:
            continue
        prompt, trajectory = sample.trajectory.prompt_ids, sample.trajectory
        # The last sampled token, and what follows it, predict nothing
        row = trajectory.token_ids[: np.flatnonzero(trajectory.loss_mask)[-1]]
        key = sample.group, prompt.tobytes()
        if not is_packed:
            prompt, row = prompt[:0], np.concatenate([prompt, row])
            key = 0, row.tobytes()
        _, rows = groups.setdefault(key, (prompt, {}))
        rows.setdefault(row.tobytes(), (row, []))[1].append(number)
    units: list[_Unit] = []
    for prompt, rows in groups.values():
        units.append(_Unit(prompt))
        for row, numbers in sorted(rows.values(), key=lambda pair: len(pair[0])):
            if units[-1].rows and units[-1].num_tokens + len(row) > max_tokens:
                units.append(_Unit(prompt))
            units[-1].add(row, numbers)
    return units


def _lay_out(
    units: Sequence[_Unit], samples: Sequence[Sample], is_packed: bool, device: torch.device
) -> MicroBatch:
    """Lays units out in one row, or in a row each, padded on the right with token 0."""
    width = sum(u.num_tokens for u in units) if is_packed else max(u.num_tokens for u in units)
    token_ids = np.zeros((1 if is_packed else len(units), width), np.int64)
    segments: list[Segment] = []
    order: list[int] = []
    predicting: list[Ids] = []
    start = 0

    def add(context: Ids, ids: Ids) -> Ids:
        nonlocal start
        places = np.arange(start, start + len(ids))
        start += len(ids)
        if len(ids):
            token_ids.flat[places] = ids
            segments.append(Segment(context, places))
        return places

    for number_of_unit, unit in enumerate(units):
        start = start if is_packed else number_of_unit * width
        prompt = add(np.zeros(0, np.int64), unit.prompt)
        first = start
        for row, numbers in unit.rows:
            before_row = start
            add(prompt, row)
            for number in numbers:
                trajectory = samples[number].trajectory
                # Without a shared prompt, the row begins with the prompt
                offset = len(trajectory.prompt_ids) - len(unit.prompt)
                in_row = np.flatnonzero(trajectory.loss_mask) + offset - 1
                # A prompt's last token, which predicts a row's first one, lies before the first row
                predicting.append(np.where(in_row < 0, first - 1, before_row + in_row))
                order.append(number)
    needed, slots = np.unique(np.concatenate(predicting), return_inverse=True)
    sampled = (samples[number].trajectory for number in order)
    targets = [trajectory.token_ids[trajectory.loss_mask] for trajectory in sampled]
    positions = np.concatenate([segment.positions for segment in segments])[None]
    tensors = (
        torch.from_numpy(array).to(device)
        for array in (token_ids, positions, needed, slots, np.concatenate(targets))
    )
    ids, position_ids, *rest = tensors
    return MicroBatch(
        ids,
        position_ids if is_packed else None,
        Packing(segments, device) if is_packed else None,
        order,
        [len(ids) for ids in targets],
        *rest,
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
        num_retries, self._num_retries = self._num_retries, 0
        is_calm = num_retries == 0 and self.max_tokens < self._limit
        self._num_calm_updates = self._num_calm_updates + 1 if is_calm else 0
        if self._num_calm_updates == CALM_UPDATES:
            self.load_state(2 * self.max_tokens)
        return num_retries

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

    def keep(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
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
