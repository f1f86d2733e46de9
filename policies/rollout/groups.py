"""Groups of episodes: what is asked of an env runner, and what it tells of them."""

import logging
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeAlias

from agentpeft.policies.messages import EpisodeGroup, EpisodeRecord, Ref

logger = logging.getLogger(__name__)
Mode: TypeAlias = Literal["train", "eval"]
_TELL_EVERY_S = 60.0
"""How often it is said how far playing has come: a large model on a CPU takes many minutes."""


@dataclass(frozen=True)
class GroupRequest:
    """`num_episodes` episodes of the task at position `group_id` of the mode's task stream.

    Single episodes of mode "eval" are greedy; others have the settings' temperature. `stage`: the
    stage of training.
    """

    group_id: int
    num_episodes: int
    mode: Mode = "train"
    stage: int = 0


@dataclass
class PlayCounts:
    """What happened while groups were played.

    `num_slow_episodes` were not over in time and are left out. `num_cut_turns` ended at
    `max_new_tokens`. `num_interruptions`: how often a turn continued with another adapter.
    """

    num_faults: int = 0
    num_retries: int = 0
    num_slow_episodes: int = 0
    num_cut_turns: int = 0
    num_interruptions: int = 0
    num_sampled_tokens: int = 0

    def __add__(self, other: "PlayCounts") -> "PlayCounts":
        return PlayCounts(*map(sum, zip(vars(self).values(), vars(other).values(), strict=True)))


@dataclass(frozen=True, eq=False)
class PlayedGroup:
    """A finished group of runner number `runner`, and what happened while it was played.

    `group`: the episodes, or in the driver a reference to them. One that is dropped (its
    environment kept failing) or left out (too old to be learnt from, or beyond an evaluation's
    tasks) has neither these nor `records`. `version` sampled its first turn, with
    `in_flight_updates` it is the newest. `last_fault` describes one of the faults; empty without
    any. `env_s`: the seconds, since the group before, in which at least one call of an environment
    was under way.
    """

    request: GroupRequest
    version: int
    group: EpisodeGroup | Ref | None
    records: tuple[EpisodeRecord, ...]
    is_dropped: bool
    is_left_out: bool
    task_hash: int
    counts: PlayCounts
    last_fault: str
    env_s: float
    runner: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether it was played to its end."""
        return not (self.is_dropped or self.is_left_out)


class SampleReport:
    """What was played, by position: `groups`, `records` and `adapter_versions` of whole groups.

    `task_hashes` are theirs, by group id; `requests` are of all; `env_s` is the slowest runner's.
    `num_left_out` groups were not, or no longer, wanted when it was their turn.
    """

    def __init__(self, played: Iterable[PlayedGroup]) -> None:
        ordered = sorted(played, key=lambda group: group.request.group_id)
        whole = [group for group in ordered if group.is_whole]
        self.requests = [group.request for group in ordered]
        self.groups: list[Ref] = [group.group for group in whole]
        self.records = tuple(chain.from_iterable(group.records for group in whole))
        self.adapter_versions = tuple(group.version for group in whole)
        self.task_hashes = {group.request.group_id: group.task_hash for group in whole}
        self.dropped_group_ids = tuple(g.request.group_id for g in ordered if g.is_dropped)
        self.num_left_out = sum(group.is_left_out for group in ordered)
        self.counts = sum((group.counts for group in ordered), PlayCounts())
        self.last_fault = next((group.last_fault for group in ordered if group.last_fault), "")
        env_s: dict[int, float] = {}
        for group in ordered:
            env_s[group.runner] = env_s.get(group.runner, 0.0) + group.env_s
        self.env_s = max(env_s.values(), default=0.0)
        self.num_stale_groups, self.sample_s = 0, 0.0  # of a batch: `loop.batches` knows them

    def metrics(self) -> dict[str, float]:
        """Returns the counts, and the numbers of episodes by outcome."""
        outcomes = Counter(record.outcome.value for record in self.records)
        return {
            "num_episodes": float(len(self.records)),
            "num_dropped_groups": float(len(self.dropped_group_ids)),
            **{name: float(number) for name, number in vars(self.counts).items()},
            **{f"outcome/{name}": float(number) for name, number in sorted(outcomes.items())},
        }


class PlayedSoFar:
    """Says now and then how many of `num_groups` groups are played, where that takes long."""

    def __init__(self, num_groups: int) -> None:
        self._num_groups, self._start_s = num_groups, time.monotonic()
        self._told_s = self._start_s

    def tell(self, num_played: int) -> None:
        """Logs a line, if it is time for one and more are to come."""
        now_s = time.monotonic()
        if num_played < self._num_groups and now_s - self._told_s >= _TELL_EVERY_S:
            self._told_s = now_s
            took_s = now_s - self._start_s
            logger.info("played %d of %d tasks in %.0f s", num_played, self._num_groups, took_s)
