"""The rows that are being decoded together: their state, their places, and how they sample."""

from asyncio import Future
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from heapq import heappop, heappush

import numpy as np
import torch
from transformers import PreTrainedModel

from agentpeft.policies.engines.transformers.slots import SlotCache, attends_apart, run
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import Completion, Floats, Ids, StopReason

MAX_PREFILL_TOKENS = 8192
MAX_PREFILL_PADDING = 64
"""A pass costs as much by itself as some tokens: so much padding is cheaper than another pass."""
_BEGINNING = "\0beginning"
"""The prefix of rows that share no whole prompt, but what is said to everybody before the task."""
_MIN_BEGINNING, _MIN_SHARERS = 32, 4
"""So many ids of so many rows are worth a pass of their own."""
NO_IDS = np.empty(0, np.int64)
_NUMBERS = ("buffer", "last", "position", "count", "limit", "prompt", "shared")
STATE = [*((name, "i8") for name in _NUMBERS), ("heat", "f4")]


@dataclass(eq=False)
class Prompt:
    """What several rows begin with; it lies once in the cache, at `place`.

    That is the rows' whole prompt but for the last id, or the beginning that different ones share.
    `name`: prefix, adapter, and the wave of the jobs that share it (0: of all waves).
    """

    name: tuple[str, str, int]
    adapter: str
    ids: Ids
    place: int
    num_rows: int = 0


@dataclass(eq=False)
class Row:
    """A session's place in the cache; slot -1 is none yet.

    `cached`: ids whose keys and values lie there (at least), the first `num_shared` of them at the
    place of `prompt`; all of them are of the adapter `adapter`. Belongs to the engine's thread.
    """

    session: str
    slot: int = -1
    cached: Ids = field(default_factory=lambda: NO_IDS)
    adapter: str = ""
    prompt: Prompt | None = None
    num_shared: int = 0

    @property
    def num_unshared(self) -> int:
        """The number of cached ids that lie in the row itself."""
        return len(self.cached) - self.num_shared


@dataclass(frozen=True, eq=False)
class DecodingJob:
    """One turn to be decoded, and the future of its completion.

    `adapter` is one of several that are served in one pass; "" is the model as it is. The turn has
    at most as many tokens as `uniforms`, which decide them; then it ends for `stop_reason`.
    """

    row: Row
    adapter: str
    prompt_ids: Ids
    uniforms: Floats
    temperature: float
    prefix: str | None
    stop_reason: StopReason
    future: Future[Completion]

    @property
    def uncached(self) -> Ids:
        """The ids of `prompt_ids` that are yet to be run before the last, which decoding runs."""
        return self.prompt_ids[len(self.row.cached) : -1]


Ended = tuple[DecodingJob, Ids, Floats]
"""A job, its sampled ids, and their log-probabilities."""


class Batch:
    """Decodes jobs together; those under way always have the cache's first `num_active` slots.

    What changes with every token lies in arrays, so that a step has no Python per row: `_state` by
    slot, tokens by "buffer", which a job keeps. A job's last prompt token is run by its first step,
    so that all of a prompt that others share lies at the prompt's place. Not thread-safe. Of no use
    after an exception: keys and values may not be finite, and later rows would meet them.
    """

    def __init__(
        self, model: PreTrainedModel, max_jobs: int, max_tokens: int, in_waves: bool
    ) -> None:
        """`in_waves`: only jobs that are admitted together share a prompt.

        So which passes are run does not depend on when the rows of earlier jobs are released.
        """
        self._model, self._in_waves, self._num_waves = model, in_waves, 0
        self._state = np.zeros(max_jobs, STATE)
        self._free_buffers = list(range(max_jobs))
        self._tokens = np.zeros((max_jobs, max_tokens), np.int64)
        self._logprobs, self._uniforms = np.zeros((2, max_jobs, max_tokens), np.float32)
        self._rows: list[Row | None] = []
        self._cache = SlotCache(model, max_tokens)
        self._shares_beginnings = attends_apart(model)
        self._prompts: dict[tuple[str, str, int], Prompt] = {}
        self._free_places: list[int] = []
        self.clear()

    @property
    def num_active(self) -> int:
        """The number of jobs under way."""
        return len(self._jobs)

    def clear(self) -> None:
        """Forgets all keys and values, while no job is under way; their memory stays."""
        self._jobs: list[DecodingJob] = []
        for row in filter(None, self._rows):
            self._forget(row)
            row.slot = -1
        self._rows = []

    def free(self) -> None:
        """Forgets all keys and values, while no job is under way, and gives their memory back."""
        self.clear()
        self._cache.free()

    def cancel(self, row: Row) -> None:
        """Ends a row's job, if one is under way."""
        if 0 <= row.slot < self.num_active:
            self._finish(np.array([row.slot]))

    def interrupt(self) -> list[Ended]:
        """Ends all jobs, and returns them with what they have."""
        return self._finish(np.arange(self.num_active))

    def release(self, row: Row) -> None:
        """Ends a row's job, if one is under way, and frees its slot."""
        self.cancel(row)
        if row.slot >= 0:
            self._rows[row.slot] = None
        self._forget(row)
        row.slot = -1

    def admit(self, jobs: Sequence[DecodingJob]) -> None:
        """Takes new jobs in, and runs their prompts but for the last token."""
        self._num_waves += self._in_waves
        begun = [prompt for job in jobs if (prompt := self._begin_row(job)) is not None]
        new = [job for job in jobs if not len(job.row.cached)] if self._shares_beginnings else []
        for adapter in dict.fromkeys(job.adapter for job in new):
            begun += self._share_beginning(adapter, [job for job in new if job.adapter == adapter])
        begun.sort(key=lambda prompt: len(prompt.ids))
        for chunk in _chunks([len(prompt.ids) for prompt in begun]):
            self._run_prompts(begun[chunk])
        ordered = sorted(jobs, key=lambda job: len(job.uncached))
        self._take_slots([job.row for job in ordered], self.num_active)
        self._start(ordered)
        waiting = [job for job in ordered if len(job.uncached)]
        for chunk in _chunks([len(job.uncached) for job in waiting]):
            self._prefill(waiting[chunk])

    def step(self, stops: Collection[int]) -> list[Ended]:
        """Samples a token for every job; returns those that ended. Raises: EngineError."""
        state = self._state[: self.num_active]
        ids, positions = (state[name][:, None].copy() for name in ("last", "position"))
        logits = self._run_rows(0, ids, positions, has_logits=True)
        state["position"] += 1
        place = state["buffer"], state["count"]
        tokens, logprobs = sample(logits, self._uniforms[place], state["heat"])
        self._tokens[place] = state["last"] = tokens
        self._logprobs[place] = logprobs
        state["count"] += 1
        is_done = np.isin(tokens, list(stops)) | (state["count"] >= state["limit"])
        return self._finish(np.flatnonzero(is_done)) if is_done.any() else []

    def _begin_row(self, job: DecodingJob) -> Prompt | None:
        """Finds what of a job's prompt is cached; returns a shared prompt that is to be run."""
        row, ids = job.row, job.prompt_ids[:-1]
        if row.adapter != job.adapter:
            self._forget(row)
            row.adapter = job.adapter
        row.cached = _common(row.cached, ids)
        row.num_shared = min(row.num_shared, len(row.cached))
        if not len(row.cached):
            self._forget(row)
        if job.prefix is None or len(row.cached) or not len(ids):
            return None
        prompt, is_new = self._open_prompt(job.prefix, job.adapter, ids)
        if not np.array_equal(prompt.ids, ids):
            return None
        _attach(row, prompt)
        return prompt if is_new else None

    def _share_beginning(self, adapter: str, jobs: Sequence[DecodingJob]) -> list[Prompt]:
        """Has rows that hold nothing share their common beginning; returns what is to be run.

        Not beside groups with prompts: the work over shared keys is the largest group's for each.
        """
        begun: list[Prompt] = []
        wave = self._num_waves
        if (_BEGINNING, adapter, wave) not in self._prompts:
            if any(p != _BEGINNING and number == wave for p, _, number in self._prompts):
                return begun
            common = _find_beginning([job.prompt_ids[:-1] for job in jobs])
            if not len(common):
                return begun
            begun = [self._open_prompt(_BEGINNING, adapter, common)[0]]
        prompt, _ = self._open_prompt(_BEGINNING, adapter, NO_IDS)
        for job in jobs:
            if len(_common(prompt.ids, job.prompt_ids[:-1])) == len(prompt.ids):
                _attach(job.row, prompt)
        return begun

    def _open_prompt(self, prefix: str, adapter: str, ids: Ids) -> tuple[Prompt, bool]:
        """Returns the prompt of this name, and whether it is new and so of these `ids`."""
        name = prefix, adapter, self._num_waves
        is_new = name not in self._prompts
        if is_new:
            place = heappop(self._free_places) if self._free_places else len(self._prompts)
            self._prompts[name] = Prompt(name, adapter, ids, place)
        return self._prompts[name], is_new

    def _forget(self, row: Row) -> None:
        """Has a row hold nothing; the place of a prompt that no other row has is free."""
        prompt, row.prompt, row.cached, row.num_shared = row.prompt, None, NO_IDS, 0
        if prompt is not None:
            prompt.num_rows -= 1
            if prompt.num_rows == 0:
                del self._prompts[prompt.name]
                heappush(self._free_places, prompt.place)

    def _take_slots(self, rows: list[Row], first: int) -> None:
        """Gives rows the slots from `first` on; idle ones that lay there change places."""
        free = [slot for slot, row in enumerate(self._rows) if row is None]
        for row in reversed(rows):
            if row.slot < 0:
                row.slot = free.pop() if free else len(self._rows)
                self._rows[row.slot : row.slot + 1] = [row]
        self._place(dict(enumerate(rows, first)))

    def _place(self, places: dict[int, Row]) -> None:
        """Exchanges rows so that `places` holds."""
        origins: dict[Row, int] = {}
        for slot, row in places.items():
            other, source = self._rows[slot], row.slot
            origins.setdefault(row, source)
            if other is not None:
                origins.setdefault(other, slot)
                other.slot = source
            self._rows[source], self._rows[slot], row.slot = other, row, slot
        moved = [row for row, old in origins.items() if row.slot != old and row.num_unshared]
        width = max((row.num_unshared for row in moved), default=0)
        self._cache.rows.move([row.slot for row in moved], [origins[row] for row in moved], width)

    def _run_prompts(self, prompts: Sequence[Prompt]) -> None:
        ids, positions = _pad([prompt.ids for prompt in prompts], [0] * len(prompts))
        mask = self._cache.begin_prompts(np.array([prompt.place for prompt in prompts]), positions)
        adapters = [prompt.adapter for prompt in prompts]
        run(self._model, self._cache, ids, positions, mask, adapters, has_logits=False)

    def _prefill(self, jobs: Sequence[DecodingJob]) -> None:
        """Runs the uncached tokens of neighbouring jobs."""
        starts = [len(job.row.cached) for job in jobs]
        ids, positions = _pad([job.uncached for job in jobs], starts)
        for job in jobs:
            job.row.cached = job.prompt_ids[:-1]
        self._run_rows(jobs[0].row.slot, ids, positions, has_logits=False)

    def _run_rows(self, first: int, ids: Ids, positions: Ids, *, has_logits: bool) -> torch.Tensor:
        """Runs tokens of the active rows from `first` on; returns what `run` does."""
        rows = slice(first, first + len(ids))
        prompts, lengths = (self._state[name][rows].copy() for name in ("prompt", "shared"))
        mask = self._cache.begin(first, positions, prompts, lengths)
        adapters = [job.adapter for job in self._jobs[rows]] if self._jobs[first].adapter else []
        return run(self._model, self._cache, ids, positions, mask, adapters, has_logits=has_logits)

    def _start(self, jobs: Sequence[DecodingJob]) -> None:
        for slot, job in enumerate(jobs, self.num_active):
            row, buffer, limit = job.row, self._free_buffers.pop(), len(job.uniforms)
            self._uniforms[buffer, :limit] = job.uniforms
            last, position = job.prompt_ids[-1], len(job.prompt_ids) - 1
            place = -1 if row.prompt is None else row.prompt.place
            numbers = (buffer, last, position, 0, limit, place, row.num_shared)
            self._state[slot] = (*numbers, job.temperature)
        self._jobs.extend(jobs)

    def _finish(self, slots: Ids) -> list[Ended]:
        """Ends jobs by slot; the last ones under way move into the gaps."""
        keep = self.num_active - len(slots)
        tail = np.setdiff1d(np.arange(keep, self.num_active), slots).tolist()
        gaps = slots[slots < keep].tolist()
        ended = [(self._jobs[slot], *self._sampled(slot)) for slot in slots.tolist()]
        if not all(np.isfinite(logprobs).all() for _, _, logprobs in ended):
            raise EngineError("the model's log-probabilities are not finite")
        self._free_buffers.extend(self._state["buffer"][slots].tolist())
        for slot in tail:
            self._sampled(slot)
        for gap, slot in zip(gaps, tail, strict=True):
            self._jobs[gap] = self._jobs[slot]
        del self._jobs[keep:]
        if gaps:
            self._state[gaps] = self._state[tail]
            self._place({gap: self._jobs[gap].row for gap in gaps})
        return ended

    def _sampled(self, slot: int) -> tuple[Ids, Floats]:
        """Returns a job's tokens and log-probabilities; its row's `cached` is then up to date."""
        job, (buffer, count) = self._jobs[slot], self._state[["buffer", "count"]][slot]
        tokens = self._tokens[buffer, :count].copy()
        job.row.cached = np.concatenate([job.prompt_ids, tokens])[:-1]
        return tokens, self._logprobs[buffer, :count].copy()


def sample(logits: torch.Tensor, uniforms: Floats, temperatures: Floats) -> tuple[Ids, Floats]:
    """Returns ids (B,) by the inverse of the distribution function, and their log-probabilities.

    Temperature 0 takes the likeliest id; its log-probability is that of temperature 1.
    `uniforms` are float32 in [0, 1): the greatest times a sum is less than the sum. Computes in the
    memory of `logits` (B, V): with a large vocabulary new memory takes longer than the numbers.
    """
    is_greedy = temperatures == 0
    scale = torch.from_numpy(np.where(is_greedy, np.float32(1), temperatures)).to(logits.device)
    logprobs = logits.div_(scale[:, None]).log_softmax(-1)
    sums = logprobs.exp().cumsum_(-1)
    bounds = torch.from_numpy(uniforms).to(logits.device)[:, None] * sums[:, -1:]
    ids = torch.searchsorted(sums, bounds, right=True).clamp_(max=logits.shape[-1] - 1)
    if is_greedy.any():
        greedy = torch.from_numpy(is_greedy).to(logits.device)[:, None]
        ids = torch.where(greedy, logits.argmax(-1, keepdim=True), ids)
    return ids[:, 0].cpu().numpy(), logprobs.gather(-1, ids)[:, 0].cpu().numpy()


def _attach(row: Row, prompt: Prompt) -> None:
    """Has a row that holds nothing begin with `prompt`."""
    prompt.num_rows += 1
    row.prompt, row.cached, row.num_shared = prompt, prompt.ids, len(prompt.ids)


def _find_beginning(prompts: Sequence[Ids]) -> Ids:
    """Returns what most of the prompts begin with; nothing where that is not worth a pass."""
    alike: dict[bytes, list[Ids]] = {}
    for ids in prompts:
        if len(ids) >= _MIN_BEGINNING:
            alike.setdefault(ids[:_MIN_BEGINNING].tobytes(), []).append(ids)
    most = max(alike.values(), key=len, default=[])
    return reduce(_common, most) if len(most) >= _MIN_SHARERS else NO_IDS


def _common(cached: Ids, prompt_ids: Ids) -> Ids:
    """Returns the longest common beginning."""
    length = min(len(cached), len(prompt_ids))
    differs = np.flatnonzero(cached[:length] != prompt_ids[:length])
    return prompt_ids[: differs[0] if len(differs) else length]


def _pad(rows: Sequence[Ids], starts: Sequence[int]) -> tuple[Ids, Ids]:
    """Returns ids (B, T), padded on the right, and their positions, which begin at `starts`."""
    lengths = np.array([len(row) for row in rows])
    columns = np.arange(lengths.max())
    is_there = columns < lengths[:, None]
    ids = np.zeros(is_there.shape, np.int64)
    ids[is_there] = np.concatenate(rows)
    return ids, np.where(is_there, columns + np.array(starts)[:, None], -1)


def _chunks(lengths: Sequence[int]) -> Iterator[slice]:
    """Cuts sequences of rising lengths into portions that are run at once.

    A new one begins where padding would be more than a quarter of a portion's tokens: a short
    observation is not run beside a new prompt.
    """
    start = num_tokens = 0
    for index, length in enumerate(lengths):
        num_tokens += length
        num_padded = (index + 1 - start) * length
        max_padding = max(MAX_PREFILL_PADDING, num_tokens // 4)
        if num_padded > min(MAX_PREFILL_TOKENS, num_tokens + max_padding) and index > start:
            yield slice(start, index)
            start, num_tokens = index, length
    if lengths:
        yield slice(start, len(lengths))
