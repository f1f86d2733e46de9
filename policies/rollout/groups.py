"""Groups of episodes: what is asked of an env runner, and what it tells of them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeAlias

from agentpeft.policies.messages import EpisodeGroup, EpisodeRecord, Ref

Mode: TypeAlias = Literal["train", "eval"]
GroupKey: TypeAlias = tuple[Mode, int]


@dataclass(frozen=True)
class GroupRequest:
    """`num_episodes` episodes of the task at position `group_id` of the mode's task stream.

    Single episodes of mode "eval" are greedy; others have the settings' temperature. `stage` is the
    stage of training whose stream it is, see `stages`.
    """

    group_id: int
    num_episodes: int
    mode: Mode = "train"
    stage: int = 0

    @property
    def key(self) -> GroupKey:
        """Identifies the group among all that are under way."""
        return self.mode, self.group_id

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely tokens are wanted."""
        return self.mode == "eval" and self.num_episodes == 1


@dataclass
class PlayCounts:
    """What happened while groups were played.

    For the turns of `num_slow_episodes` the engine took too long: they are left out.
    `num_cut_turns` ended at `max_new_tokens`, mostly unfinished. `num_interruptions` is how often a
    turn went on with another adapter.
    """

    num_faults: int = 0
    num_retries: int = 0
    num_slow_episodes: int = 0
    num_cut_turns: int = 0
    num_interruptions: int = 0
    num_sampled_tokens: int = 0

    def __add__(self, other: "PlayCounts") -> "PlayCounts":
        return PlayCounts(*map(sum, zip(vars(self).values(), vars(other).values(), strict=True)))


@dataclass(frozen=True)
class SampleReport:
    """What was played: records, adapter versions and hashes (by group id) of whole groups; counts.

    `dropped_group_ids` (their world kept failing) and `stale_group_ids` (given up in play, as too
    old to be learnt from) are left out everywhere else. A group's version is the one that sampled
    its first turn, with `in_flight_updates` the newest. `task_hashes` are of the tasks' content.
    `last_fault` says which environment, task and turn one of the faults had, and what it was; empty
    without faults. `env_s` are the seconds in which at least one call of an environment was under
    way, those of the slowest runner.
    """

    records: tuple[EpisodeRecord, ...]
    adapter_versions: tuple[int, ...]
    task_hashes: Mapping[int, int]
    dropped_group_ids: tuple[int, ...]
    stale_group_ids: tuple[int, ...]
    counts: PlayCounts
    last_fault: str
    env_s: float

    def metrics(self) -> dict[str, float]:
        """Returns the counts, and the numbers of episodes by outcome."""
        outcomes = Counter(record.outcome.value for record in self.records)
        return {
            "num_episodes": float(len(self.records)),
            "num_dropped_groups": float(len(self.dropped_group_ids)),
            **{name: float(number) for name, number in vars(self.counts).items()},
            **{f"outcome/{name}": float(number) for name, number in sorted(outcomes.items())},
        }


@dataclass(frozen=True, eq=False)
class PlayedGroup:
    """A finished group of runner number `runner`, and its report.

    `group`: the episodes, or in the driver a reference to them; None where it was given up.
    """

    request: GroupRequest
    group: EpisodeGroup | Ref | None
    report: SampleReport
    runner: int = 0

    @property
    def version(self) -> int:
        """The adapter version that it counts as of, of a whole group."""
        return self.report.adapter_versions[0]


def merge_played(played: Iterable[PlayedGroup]) -> tuple[list[Ref], SampleReport]:
    """Returns the whole groups by position, and one report of all."""
    ordered = sorted(played, key=lambda group: group.request.group_id)
    reports = [group.report for group in ordered]
    env_s: dict[int, float] = {}
    for group in ordered:
        env_s[group.runner] = env_s.get(group.runner, 0.0) + group.report.env_s
    report = SampleReport(
        records=tuple(chain.from_iterable(r.records for r in reports)),
        adapter_versions=tuple(chain.from_iterable(r.adapter_versions for r in reports)),
        task_hashes=dict(chain.from_iterable(r.task_hashes.items() for r in reports)),
        dropped_group_ids=tuple(chain.from_iterable(r.dropped_group_ids for r in reports)),
        stale_group_ids=tuple(chain.from_iterable(r.stale_group_ids for r in reports)),
        counts=sum((r.counts for r in reports), PlayCounts()),
        last_fault=next((r.last_fault for r in reports if r.last_fault), ""),
        env_s=max(env_s.values(), default=0.0),
    )
    return [group.group for group in ordered if group.group is not None], report
