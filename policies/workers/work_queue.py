"""`WorkQueue`: the groups that are asked for, and which runner plays which of them.

A runner is handed the next group whenever it has room for another episode, so that a slow one
delays nobody. Deterministic runs are the exception: an engine's rounding follows from what it
decodes together, so the groups are cut into blocks that depend on the settings alone, and a runner
plays one block at a time, whichever it is.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from agentpeft.policies.messages import Ref
from agentpeft.policies.rollout.groups import GroupRequest, SampleReport

Key: TypeAlias = tuple[str, int]


@dataclass(frozen=True, eq=False)
class Played:
    """A group that is finished, by whom, and a reference to it; None where it was given up."""

    request: GroupRequest
    runner: int
    group: Ref | None
    report: SampleReport

    @property
    def version(self) -> int:
        """The adapter version that it counts as of, of a whole group."""
        return self.report.adapter_versions[0]


class Receiver(Protocol):
    """Who asked for groups."""

    def receive(self, played: Played) -> None:
        """Takes a group that is finished."""
        ...


@dataclass(eq=False)
class Job:
    """A group that somebody waits for; `num_failures` counts the engines that failed over it."""

    request: GroupRequest
    receiver: Receiver
    num_failures: int = 0

    @property
    def key(self) -> Key:
        """What tells it from all others that are under way."""
        return self.request.mode, self.request.group_id


@dataclass(eq=False)
class Desk:
    """What one runner has: its jobs, and the references to its next news.

    `capacity` is how many episodes it plays at once; `num_handed` were handed to it since it began,
    `num_ended` of them are over. `news` is what a `collect` under way returns, the groups after the
    first; `is_until_room`: it returns as soon as there is room, too.
    """

    capacity: int
    num_handed: int = 0
    num_ended: int = 0
    jobs: dict[Key, Job] = field(default_factory=dict)
    news: Sequence[Ref] = ()
    is_until_room: bool = False

    @property
    def room(self) -> int:
        """For how many more episodes it has room; below 0, how many wait."""
        return self.capacity - (self.num_handed - self.num_ended)


class WorkQueue:
    """Jobs that wait, in the order in which they are to be played."""

    def __init__(self, num_runners: int, max_episodes: int, is_deterministic: bool) -> None:
        self._num_runners, self._max_episodes = num_runners, max_episodes
        self._is_deterministic = is_deterministic
        self._waiting: deque[Sequence[Job]] = deque()

    @property
    def wants_room(self) -> bool:
        """Whether there are jobs for the next runner that has room."""
        return bool(self._waiting) and not self._is_deterministic

    @property
    def num_waiting_episodes(self) -> int:
        """How many episodes the jobs that wait have."""
        return sum(job.request.num_episodes for block in self._waiting for job in block)

    def add(self, jobs: Sequence[Job], *, is_first: bool = False) -> None:
        """Adds jobs at the end, or before all others."""
        blocks = self._cut(jobs)
        if is_first:
            self._waiting.extendleft(reversed(blocks))
        else:
            self._waiting.extend(blocks)

    def put_back(self, jobs: Sequence[Job]) -> None:
        """Takes back what a runner had, to be played before all others: a block stays one."""
        own = [jobs] if self._is_deterministic else [[job] for job in jobs]
        self._waiting.extendleft(reversed([block for block in own if block]))

    def clear(self) -> None:
        """Forgets all that wait."""
        self._waiting.clear()

    def hand_out(self, desks: Mapping[int, Desk]) -> dict[int, list[Job]]:
        """Gives jobs to those who have room, each to who has most; returns what each has got."""
        given: dict[int, list[Job]] = {}
        while self._waiting:
            free = [runner for runner, desk in desks.items() if self._has_room(desk)]
            if not free:
                break
            runner = max(free, key=lambda each: desks[each].room)  # the first of those with most
            jobs = self._waiting.popleft()
            desks[runner].jobs.update({job.key: job for job in jobs})
            desks[runner].num_handed += sum(job.request.num_episodes for job in jobs)
            given.setdefault(runner, []).extend(jobs)
        return given

    def _has_room(self, desk: Desk) -> bool:
        return not desk.jobs if self._is_deterministic else desk.room > 0

    def _cut(self, jobs: Sequence[Job]) -> list[Sequence[Job]]:
        """Returns single jobs; of a deterministic run blocks, as many as runners or more.

        There are more where a runner's share would not be played at once.
        """
        if not self._is_deterministic:
            return [[job] for job in jobs]
        num_episodes = max((job.request.num_episodes for job in jobs), default=1)
        num_at_once = max(self._max_episodes // num_episodes, 1)
        num_blocks = max(min(self._num_runners, len(jobs)), -(-len(jobs) // num_at_once))
        return [jobs[block::num_blocks] for block in range(num_blocks)]
