"""The rows that are being decoded together: their state, their places, and how they sample."""

from asyncio import Future
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import PreTrainedModel

from agentpeft.policies.engines.transformers.slots import SlotCache, next_token_logits
from agentpeft.policies.messages import Completion, Floats, Ids, StopReason

MAX_PREFILL_TOKENS = 8192
MAX_PREFILL_PADDING = 64
"""A pass costs as much by itself as some tokens: so much padding is cheaper than another pass."""
NO_IDS = np.empty(0, np.int64)
STATE = {"seat": "i8", "last": "i8", "position": "i8", "count": "i8", "limit": "i8", "heat": "f4"}


@dataclass(eq=False)
class Row:
    """A session's place in the cache; slot -1 is none yet.

    `cached`: ids whose keys and values lie there (at least). `adapter` names who answers, among
    several; with "" it is the model as it is.
    """

    session: str
    slot: int = -1
    cached: Ids = field(default_factory=lambda: NO_IDS)
    adapter: str = ""


@dataclass(frozen=True, eq=False)
class DecodingJob:
    """One turn to be decoded, and who waits for it.

    It has as many tokens at most as there are `uniforms`, which decide them; then it ends for
    `stop_reason`.
    """

    row: Row
    prompt_ids: Ids
    uniforms: Floats
    temperature: float
    prefix: str | None
    stop_reason: StopReason
    future: Future[Completion]

    @property
    def num_uncached(self) -> int:
        """How many of the prompt's tokens are yet to be run."""
        return len(self.prompt_ids) - len(self.row.cached)


Ended = tuple[DecodingJob, Ids, Floats]
"""A job, its sampled ids, and their log-probabilities."""


class Batch:
    """Decodes jobs together; those under way always have the cache's first `num_active` slots.

    What changes with every token lies in arrays, so that a step has no Python per row: `_state` by
    slot, tokens by "seat", which a job keeps. Not thread-safe; of no use after an exception.
    """

    def __init__(
        self, model: PreTrainedModel, max_jobs: int, max_tokens: int, has_adapters: bool = False
    ) -> None:
        """With `has_adapters` each row's own adapter answers, all of them in one pass."""
        self._model, self._has_adapters = model, has_adapters
        self._state = np.zeros(max_jobs, list(STATE.items()))
        self._seats = list(range(max_jobs))
        self._tokens = np.zeros((max_jobs, max_tokens), np.int64)
        self._logprobs, self._uniforms = np.zeros((2, max_jobs, max_tokens), np.float32)
        self._rows: list[Row | None] = []
        self._cache = SlotCache(model)
        self.clear()

    @property
    def num_active(self) -> int:
        """How many jobs are under way."""
        return len(self._jobs)

    def clear(self) -> None:
        """Forgets all keys and values, while no job is under way; their memory stays."""
        self._jobs: list[DecodingJob] = []
        for row in filter(None, self._rows):
            row.slot, row.cached = -1, NO_IDS
        self._rows = []

    def close(self) -> None:
        """Gives the memory of keys and values back."""
        self._cache = SlotCache(self._model)

    def cancel(self, row: Row) -> None:
        """Ends a row's job, if one is under way."""
        if 0 <= row.slot < self.num_active:
            self._finish(np.array([row.slot]))

    def release(self, row: Row) -> None:
        """Ends a row's job, if one is under way, and frees its slot."""
        self.cancel(row)
        if row.slot >= 0:
            self._rows[row.slot] = None
        row.slot, row.cached = -1, NO_IDS

    def admit(self, jobs: Sequence[DecodingJob], stops: Collection[int]) -> list[Ended]:
        """Takes new jobs in and samples their first tokens; returns those that ended."""
        first = self.num_active
        leaders, followers = _share(jobs)
        ordered = [*leaders, *followers]
        self._take_slots([job.row for job in ordered], first)
        logits = torch.cat([self._prefill(chunk) for chunk in _chunks(leaders)])
        if followers:
            place = {leader: index for index, leader in enumerate(leaders)}
            same = [*range(len(leaders)), *map(place.__getitem__, followers.values())]
            logits = logits[torch.tensor(same, device=logits.device)]
            self._copy_prompts(followers)
        self._start(ordered)
        return self._record(first, logits, stops)

    def step(self, stops: Collection[int]) -> list[Ended]:
        """Samples a token for every job; returns those that ended."""
        state = self._state[: self.num_active]
        ids, positions = (state[name][:, None].copy() for name in ("last", "position"))
        logits = self._next_logits(0, ids, positions, self._jobs)
        state["position"] += 1
        return self._record(0, logits, stops)

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
        moved = [row for row, old in origins.items() if row.slot != old and len(row.cached)]
        width = max((len(row.cached) for row in moved), default=0)
        self._cache.move([row.slot for row in moved], [origins[row] for row in moved], width)

    def _prefill(self, jobs: list[DecodingJob]) -> torch.Tensor:
        """Runs the uncached tokens of neighbouring jobs, padded on the left."""
        longest = max(job.num_uncached for job in jobs)
        ids = np.zeros((len(jobs), longest), np.int64)
        positions = np.full((len(jobs), longest), -1)
        for index, job in enumerate(jobs):
            start, end = len(job.row.cached), len(job.prompt_ids)
            ids[index, start - end :] = job.prompt_ids[start:]
            positions[index, start - end :] = np.arange(start, end)
            job.row.cached = job.prompt_ids
        return self._next_logits(jobs[0].row.slot, ids, positions, jobs)

    def _next_logits(
        self, first: int, ids: Ids, positions: Ids, jobs: list[DecodingJob]
    ) -> torch.Tensor:
        """Returns the logits (B, V) after the tokens of jobs in the rows from `first` on."""
        adapters = [job.row.adapter for job in jobs] if self._has_adapters else ()
        return next_token_logits(self._model, self._cache, first, ids, positions, adapters)

    def _copy_prompts(self, leader_of: dict[DecodingJob, DecodingJob]) -> None:
        for job in leader_of:
            job.row.cached = job.prompt_ids
        sources = [leader.row.slot for leader in leader_of.values()]
        width = max(len(job.prompt_ids) for job in leader_of)
        self._cache.move([job.row.slot for job in leader_of], sources, width)

    def _start(self, jobs: list[DecodingJob]) -> None:
        for slot, job in enumerate(jobs, self.num_active):
            seat, limit = self._seats.pop(), len(job.uniforms)
            self._uniforms[seat, :limit] = job.uniforms
            self._state[slot] = (seat, 0, len(job.prompt_ids), 0, limit, job.temperature)
        self._jobs.extend(jobs)

    def _record(self, first: int, logits: torch.Tensor, stops: Collection[int]) -> list[Ended]:
        """Samples for the active rows from `first` on; returns the jobs that ended."""
        state = self._state[first : self.num_active]
        place = state["seat"], state["count"]
        tokens, logprobs = sample(logits, self._uniforms[place], state["heat"])
        self._tokens[place] = state["last"] = tokens
        self._logprobs[place] = logprobs
        state["count"] += 1
        is_done = np.isin(tokens, list(stops)) | (state["count"] >= state["limit"])
        return self._finish(np.flatnonzero(is_done) + first) if is_done.any() else []

    def _finish(self, slots: Ids) -> list[Ended]:
        """Ends jobs by slot; the last ones under way move into the gaps."""
        keep = self.num_active - len(slots)
        tail = np.setdiff1d(np.arange(keep, self.num_active), slots).tolist()
        gaps = slots[slots < keep].tolist()
        ended = [(self._jobs[slot], *self._sampled(slot)) for slot in slots.tolist()]
        for job, _, logprobs in ended:
            if not np.isfinite(logprobs).all():  # nor keys and values, which a later row would meet
                self._cache.clear(job.row.slot)
                job.row.cached = NO_IDS
        self._seats.extend(self._state["seat"][slots].tolist())
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
        job, (seat, count) = self._jobs[slot], self._state[["seat", "count"]][slot]
        tokens = self._tokens[seat, :count].copy()
        job.row.cached = np.concatenate([job.prompt_ids, tokens[:-1]])
        return tokens, self._logprobs[seat, :count].copy()


def sample(logits: torch.Tensor, uniforms: Floats, temperatures: Floats) -> tuple[Ids, Floats]:
    """Returns ids (B,) by the inverse of the distribution function, and their log-probabilities.

    Temperature 0 takes the likeliest id; its log-probability is that of temperature 1.
    `uniforms` are float32 in [0, 1): the greatest times a sum is less than the sum.
    """
    is_greedy = temperatures == 0
    scale = torch.from_numpy(np.where(is_greedy, np.float32(1), temperatures)).to(logits.device)
    logprobs = (logits / scale[:, None]).log_softmax(-1)
    sums = logprobs.exp().cumsum(-1)
    bounds = torch.from_numpy(uniforms).to(logits.device)[:, None] * sums[:, -1:]
    ids = torch.searchsorted(sums, bounds, right=True).clamp_(max=logits.shape[-1] - 1)
    if is_greedy.any():
        greedy = torch.from_numpy(is_greedy).to(logits.device)[:, None]
        ids = torch.where(greedy, logits.argmax(-1, keepdim=True), ids)
    return ids[:, 0].cpu().numpy(), logprobs.gather(-1, ids)[:, 0].cpu().numpy()


def _share(jobs: Sequence[DecodingJob]) -> tuple[list[DecodingJob], dict[DecodingJob, DecodingJob]]:
    """Returns the jobs to run, the shortest first, and those with the prompt of one of them."""
    leaders: list[DecodingJob] = []
    leader_of: dict[DecodingJob, DecodingJob] = {}
    by_prefix: dict[tuple[str, str], DecodingJob] = {}
    for job in jobs:
        job.row.cached = _common(job.row.cached, job.prompt_ids[:-1])
        name = (job.prefix or "", job.row.adapter)
        leader = job if job.prefix is None else by_prefix.setdefault(name, job)
        is_same = leader is not job and np.array_equal(leader.prompt_ids, job.prompt_ids)
        if is_same and not len(job.row.cached):
            leader_of[job] = leader
        else:
            leaders.append(job)
    return sorted(leaders, key=lambda job: job.num_uncached), leader_of


def _common(cached: Ids, prompt_ids: Ids) -> Ids:
    """Returns the longest common beginning."""
    length = min(len(cached), len(prompt_ids))
    differs = np.flatnonzero(cached[:length] != prompt_ids[:length])
    return prompt_ids[: differs[0] if len(differs) else length]


def _chunks(jobs: list[DecodingJob]) -> Iterator[list[DecodingJob]]:
    """Cuts jobs, in order of length, into portions that are run at once.

    A new one begins where padding would be more than a quarter of a portion's tokens: a short
    observation is not run beside a new prompt.
    """
    start = num_tokens = 0
    for index, job in enumerate(jobs):
        num_tokens += job.num_uncached
        num_padded = (index + 1 - start) * job.num_uncached
        max_padding = max(MAX_PREFILL_PADDING, num_tokens // 4)
        if num_padded > min(MAX_PREFILL_TOKENS, num_tokens + max_padding) and index > start:
            yield jobs[start:index]
            start, num_tokens = index, job.num_uncached
    yield jobs[start:]
