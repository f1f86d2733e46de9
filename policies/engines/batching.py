"""The rows that are being decoded together: their state, their places, and how they sample."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from agentpeft.policies.engines.slots import SlotCache, next_token_logits, num_layers
from agentpeft.policies.samples import Floats, Ids

MAX_PREFILL_TOKENS = 8192
NO_IDS = np.empty(0, np.int64)
Logits = torch.Tensor


@dataclass(eq=False)
class Row:
    """A session's place in the cache; slot -1 is none yet.

    `cached`: ids whose keys and values lie there (at least).
    """

    session: str
    slot: int = -1
    cached: Ids = field(default_factory=lambda: NO_IDS)


@dataclass(frozen=True, eq=False)
class Job:
    """One turn to be decoded: as many tokens at most as there are `uniforms`, which decide them."""

    row: Row
    prompt_ids: Ids
    uniforms: Floats
    temperature: float
    prefix: str | None = None

    @property
    def num_uncached(self) -> int:
        """How many of the prompt's tokens are yet to be run."""
        return len(self.prompt_ids) - len(self.row.cached)


@dataclass(frozen=True, eq=False)
class Sampled:
    """A job that ended, its ids and their log-probabilities."""

    job: Job
    token_ids: Ids
    logprobs: Floats


class Batch:
    """Decodes jobs together; those under way always have the cache's first `num_active` slots.

    What changes with every token lies in arrays by slot, so that a step has no Python per row.
    Not thread-safe, and of no use any more after an exception.
    """

    def __init__(
        self, model: PreTrainedModel, stop_token_ids: Iterable[int], keeps_prefixes: bool = True
    ) -> None:
        """`keeps_prefixes`: prompts are shared between admissions too, not just within one."""
        self._model = model
        self._keeps_prefixes = keeps_prefixes
        vocab_size = model.config.get_text_config().vocab_size
        self._is_stop = np.zeros(vocab_size, np.bool_)
        self._is_stop[[stop for stop in stop_token_ids if stop < vocab_size]] = True
        self._rows: list[Row | None] = []
        self._arrays: dict[str, npt.NDArray[Any]] = {
            "tokens": np.zeros((0, 0), np.int64),
            "logprobs": np.zeros((0, 0), np.float32),
            "uniforms": np.zeros((0, 0), np.float32),
            "last": np.zeros(0, np.int64),
            "positions": np.zeros(0, np.int64),
            "counts": np.zeros(0, np.int64),
            "limits": np.zeros(0, np.int64),
            "temperatures": np.zeros(0, np.float32),
        }
        self.clear()

    @property
    def num_active(self) -> int:
        """How many jobs are under way."""
        return len(self._jobs)

    def clear(self) -> None:
        """Forgets all keys and values."""
        self._cache = SlotCache(num_layers(self._model.config))
        self._jobs: list[Job] = []
        self._donors: dict[str, Row] = {}
        for row in self._rows:
            if row is not None:
                row.slot, row.cached = -1, NO_IDS
        self._rows = []

    def release(self, row: Row) -> None:
        """Ends a row's job, if one is under way, and frees its slot."""
        self.cancel(row)
        if row.slot >= 0:
            self._rows[row.slot] = None
        row.slot, row.cached = -1, NO_IDS

    def cancel(self, row: Row) -> None:
        """Ends a row's job, if one is under way."""
        if 0 <= row.slot < self.num_active:
            self._compact([row.slot])

    def admit(self, jobs: Sequence[Job]) -> list[Sampled]:
        """Takes new jobs in and samples their first tokens; returns those that ended."""
        first = self.num_active
        leaders, followers, donations = self._share(jobs)
        leaders.sort(key=lambda job: job.num_uncached)
        ordered = [*leaders, *(job for job, _ in followers)]
        self._take_slots([job.row for job in ordered], first)
        self._copy(donations)
        logits = torch.cat([self._prefill(chunk) for chunk in _chunks(leaders)])
        self._copy([(job.row, leader.row) for job, leader in followers])
        place = {leader: index for index, leader in enumerate(leaders)}
        if followers:
            same = [*range(len(leaders)), *(place[leader] for _, leader in followers)]
            logits = logits[torch.tensor(same, device=logits.device)]
        self._start(ordered, first)
        return self._record(first, logits)

    def step(self) -> list[Sampled]:
        """Samples a token for every job; returns those that ended."""
        num = self.num_active
        last, positions = self._arrays["last"][:num], self._arrays["positions"][:num]
        logits = next_token_logits(self._model, self._cache, 0, last[:, None], positions[:, None])
        positions += 1
        return self._record(0, logits)

    def _share(
        self, jobs: Sequence[Job]
    ) -> tuple[list[Job], list[tuple[Job, Job]], list[tuple[Row, Row]]]:
        """Returns jobs to run, those that take all from one of them, and (row, donor) pairs."""
        leaders: list[Job] = []
        followers: list[tuple[Job, Job]] = []
        donations: list[tuple[Row, Row]] = []
        by_prefix: dict[str, Job] = {}
        for job in jobs:
            job.row.cached = _common(job.row.cached, job.prompt_ids[:-1])
            if job.prefix is None or len(job.row.cached):
                leaders.append(job)
                continue
            leader = by_prefix.setdefault(job.prefix, job)
            if leader is not job and np.array_equal(leader.prompt_ids, job.prompt_ids):
                followers.append((job, leader))
                continue
            leaders.append(job)
            donor = self._donors.get(job.prefix)
            if donor is not None and len(donor.cached):
                job.row.cached = _common(donor.cached, job.prompt_ids[:-1])
                donations.append((job.row, donor))
            elif self._keeps_prefixes:
                self._donors[job.prefix] = job.row
        for job, leader in followers:
            job.row.cached = leader.prompt_ids
        return leaders, followers, donations

    def _take_slots(self, rows: list[Row], first: int) -> None:
        """Gives rows the slots from `first` on; idle ones that lay there change places."""
        free = [slot for slot, row in enumerate(self._rows) if row is None]
        for row in reversed(rows):
            if row.slot < 0:
                row.slot = free.pop() if free else len(self._rows)
                self._rows[row.slot : row.slot + 1] = [row]
        is_new = {row for row in rows if not len(row.cached)}
        self._place(dict(enumerate(rows, first)), is_new)

    def _place(self, places: dict[int, Row], empty: set[Row]) -> None:
        """Exchanges rows so that `places` holds; the contents of `empty` ones are not moved."""
        origins: dict[Row, int] = {}
        for slot, row in places.items():
            other, source = self._rows[slot], row.slot
            if other is row:
                continue
            origins.setdefault(row, source)
            if other is not None:
                origins.setdefault(other, slot)
                other.slot = source
            self._rows[slot], self._rows[source], row.slot = row, other, slot
        moved = [row for row, old in origins.items() if row.slot != old and row not in empty]
        width = max((len(row.cached) for row in moved), default=0)
        self._cache.move([r.slot for r in moved], [origins[r] for r in moved], width)

    def _copy(self, pairs: list[tuple[Row, Row]]) -> None:
        """Copies to each first row what the second one has of it."""
        width = max((len(row.cached) for row, _ in pairs), default=0)
        self._cache.move([row.slot for row, _ in pairs], [row.slot for _, row in pairs], width)

    def _prefill(self, jobs: list[Job]) -> Logits:
        """Runs the uncached tokens of neighbouring jobs, padded on the left."""
        longest = max(job.num_uncached for job in jobs)
        ids = np.zeros((len(jobs), longest), np.int64)
        positions = np.full((len(jobs), longest), -1, np.int64)
        for index, job in enumerate(jobs):
            start, end = len(job.row.cached), len(job.prompt_ids)
            ids[index, start - end :] = job.prompt_ids[start:]
            positions[index, start - end :] = np.arange(start, end)
            job.row.cached = job.prompt_ids
        return next_token_logits(self._model, self._cache, jobs[0].row.slot, ids, positions)

    def _start(self, jobs: list[Job], first: int) -> None:
        self._jobs.extend(jobs)
        self._grow(len(self._jobs), max(len(job.uniforms) for job in jobs))
        arrays, rows = self._arrays, slice(first, len(self._jobs))
        arrays["positions"][rows] = [len(job.prompt_ids) for job in jobs]
        arrays["limits"][rows] = [len(job.uniforms) for job in jobs]
        arrays["temperatures"][rows] = [job.temperature for job in jobs]
        arrays["counts"][rows] = 0
        for slot, job in enumerate(jobs, first):
            arrays["uniforms"][slot, : len(job.uniforms)] = job.uniforms

    def _grow(self, num_rows: int, num_tokens: int) -> None:
        rows, columns = self._arrays["tokens"].shape
        if num_rows <= rows and num_tokens <= columns:
            return
        rows, columns = max(num_rows, rows), max(num_tokens, columns)
        for name, old in self._arrays.items():
            new = np.zeros((rows, columns)[: old.ndim], old.dtype)
            new[tuple(slice(length) for length in old.shape)] = old
            self._arrays[name] = new

    def _record(self, first: int, logits: Logits) -> list[Sampled]:
        """Samples for the active rows from `first` on; returns the jobs that ended."""
        arrays, rows = self._arrays, slice(first, self.num_active)
        index, counts = np.arange(first, self.num_active), arrays["counts"][rows]
        uniforms = arrays["uniforms"][index, counts]
        tokens, logprobs = sample(logits, uniforms, arrays["temperatures"][rows])
        arrays["tokens"][index, counts] = arrays["last"][rows] = tokens
        arrays["logprobs"][index, counts] = logprobs
        counts += 1
        is_done = self._is_stop[tokens] | (counts >= arrays["limits"][rows])
        done = (np.flatnonzero(is_done) + first).tolist()
        ended = [self._finish(slot) for slot in done]
        self._compact(done)
        return ended

    def _finish(self, slot: int) -> Sampled:
        job, count = self._jobs[slot], self._arrays["counts"][slot]
        tokens = self._arrays["tokens"][slot, :count].copy()
        job.row.cached = np.concatenate([job.prompt_ids, tokens[:-1]])
        return Sampled(job, tokens, self._arrays["logprobs"][slot, :count].copy())

    def _compact(self, done: list[int]) -> None:
        """Drops jobs by slot; the last ones under way move into the gaps."""
        keep, gone = self.num_active - len(done), set(done)
        gaps = [slot for slot in done if slot < keep]
        tail = [slot for slot in range(keep, self.num_active) if slot not in gone]
        for gap, slot in zip(gaps, tail, strict=True):
            job = self._jobs[gap] = self._jobs[slot]
            count = self._arrays["counts"][slot]
            tokens = self._arrays["tokens"][slot, : count - 1]
            job.row.cached = np.concatenate([job.prompt_ids, tokens])
        del self._jobs[keep:]
        if gaps:
            for array in self._arrays.values():
                array[gaps] = array[tail]
            self._place({gap: self._jobs[gap].row for gap in gaps}, set())


def sample(logits: Logits, uniforms: Floats, temperatures: Floats) -> tuple[Ids, Floats]:
    """Returns ids (B,) by the inverse of the distribution function, and their log-probabilities.

    Temperature 0 takes the likeliest id; its log-probability is that of temperature 1.
    `uniforms` are float32 in [0, 1): the greatest times a sum is less than the sum.
    """
    is_greedy = temperatures == 0
    scale = torch.from_numpy(np.where(is_greedy, np.float32(1), temperatures)).to(logits.device)
    logprobs = (logits / scale[:, None]).log_softmax(-1)
    ids = logits.argmax(-1, keepdim=True)
    if not is_greedy.all():
        sums = logprobs.exp().cumsum(-1)
        bounds = torch.from_numpy(uniforms).to(logits.device)[:, None] * sums[:, -1:]
        sampled = torch.searchsorted(sums, bounds, right=True)
        ids = torch.where(torch.from_numpy(is_greedy).to(logits.device)[:, None], ids, sampled)
    return ids[:, 0].cpu().numpy(), logprobs.gather(-1, ids)[:, 0].cpu().numpy()


def _common(cached: Ids, prompt_ids: Ids) -> Ids:
    """Returns the longest common beginning: the rest of a prompt is never empty."""
    length = min(len(cached), len(prompt_ids))
    differs = np.flatnonzero(cached[:length] != prompt_ids[:length])
    return prompt_ids[: differs[0] if len(differs) else length]


def _chunks(jobs: list[Job]) -> Iterator[list[Job]]:
    """Cuts jobs, in order of length, into portions that are run at once."""
    start = 0
    for index, job in enumerate(jobs):
        if index > start and (index + 1 - start) * job.num_uncached > MAX_PREFILL_TOKENS:
            yield jobs[start:index]
            start = index
    yield jobs[start:]
