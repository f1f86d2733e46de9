"""Groups of episodes in play: what is asked of an env runner, and what it tells."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
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


@dataclass(frozen=True)
class SampleReport:
    """What was played: records, adapter versions and hashes (by group id) of whole groups; counts.

    `dropped_group_ids` (their world kept failing) and `stale_group_ids` (given up in play, as too
    old to be learnt from) are left out everywhere else, and so are `num_slow_episodes` episodes,
    for whose turns the engine took too long. A group's version is the one that sampled its first
    turn, with `in_flight_updates` the newest. `task_hashes` are of the tasks' content.
    `num_cut_turns` ended at `max_new_tokens`, mostly unfinished; `num_interruptions` is how often a
    turn went on with another adapter. `last_fault` says which environment, task and turn one of the
    faults had, and what it was; empty without faults. `engine_s` and `env_s` are the seconds in
    which at least one request, or call of an environment, was under way.
    """

    records: tuple[EpisodeRecord, ...]
    adapter_versions: tuple[int, ...]
    task_hashes: Mapping[int, int]
    dropped_group_ids: tuple[int, ...]
    stale_group_ids: tuple[int, ...]
    num_faults: int
    last_fault: str
    num_retries: int
    num_slow_episodes: int
    num_cut_turns: int
    num_interruptions: int
    num_sampled_tokens: int
    total_s: float
    engine_s: float
    env_s: float

    @classmethod
    def merge(
        cls, reports: "Iterable[SampleReport]", *, is_in_turn: bool = False
    ) -> "SampleReport":
        """Returns the report of runners that played side by side; seconds are the slowest's.

        `is_in_turn`: one report's episodes came after the other's, so that seconds add up.
        """
        parts = list(reports)
        combine = sum if is_in_turn else partial(max, default=0.0)
        records = sorted(
            (record for part in parts for record in part.records),
            key=lambda record: (record.group_id, record.sample),
        )
        return cls(
            records=tuple(records),
            adapter_versions=tuple(v for part in parts for v in part.adapter_versions),
            task_hashes={i: value for part in parts for i, value in part.task_hashes.items()},
            dropped_group_ids=tuple(i for part in parts for i in part.dropped_group_ids),
            stale_group_ids=tuple(i for part in parts for i in part.stale_group_ids),
            num_faults=sum(part.num_faults for part in parts),
            last_fault=next((part.last_fault for part in parts if part.last_fault), ""),
            num_retries=sum(part.num_retries for part in parts),
            num_slow_episodes=sum(part.num_slow_episodes for part in parts),
            num_cut_turns=sum(part.num_cut_turns for part in parts),
            num_interruptions=sum(part.num_interruptions for part in parts),
            num_sampled_tokens=sum(part.num_sampled_tokens for part in parts),
            total_s=combine(part.total_s for part in parts),
            engine_s=combine(part.engine_s for part in parts),
            env_s=combine(part.env_s for part in parts),
        )

    def metrics(self) -> dict[str, float]:
        """Returns the counts, and the numbers of episodes by outcome."""
        counts = Counter(record.outcome.value for record in self.records)
        return {
            "num_episodes": float(len(self.records)),
            "num_faults": float(self.num_faults),
            "num_retries": float(self.num_retries),
            "num_slow_episodes": float(self.num_slow_episodes),
            "num_cut_turns": float(self.num_cut_turns),
            "num_interruptions": float(self.num_interruptions),
            "num_dropped_groups": float(len(self.dropped_group_ids)),
            "num_sampled_tokens": float(self.num_sampled_tokens),
            **{f"outcome/{name}": float(number) for name, number in sorted(counts.items())},
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
    """Returns the whole groups by position, and one report; its seconds are the slowest runner's.

    `adapter_versions` of the report are in the groups' order.
    """
    ordered = sorted(played, key=lambda group: group.request.group_id)
    by_runner: dict[int, list[SampleReport]] = {}
    for group in ordered:
        by_runner.setdefault(group.runner, []).append(group.report)
    merged = [SampleReport.merge(reports, is_in_turn=True) for reports in by_runner.values()]
    whole = [group for group in ordered if group.group is not None]
    versions = tuple(group.version for group in whole)
    report = replace(SampleReport.merge(merged), adapter_versions=versions)
    return [group.group for group in whole], report
