"""`RunnerQueue`: the groups that are asked for, and which runner plays which of them.

A runner is given the next group whenever it has room for another episode, so that a slow one delays
nobody. Deterministic runs are the exception: an engine's rounding follows from what it decodes
together, so the groups are cut into blocks that depend on the settings alone, and a runner plays
one block at a time, whichever it is.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentpeft.policies.messages import Ref
from agentpeft.policies.rollout.groups import GroupRequest


@dataclass(eq=False)
class RunnerJobs:
    """One runner's groups, and the references to its next results.

    `capacity` is how many episodes it plays at once; `num_given` were given to it since it started,
    `num_ended` of them are over. `results` is what a `collect` under way returns, the groups after
    the first; `is_until_room`: that call returns as soon as there is room, too.
    """

    capacity: int
    num_given: int = 0
    num_ended: int = 0
    requests: list[GroupRequest] = field(default_factory=list)
    results: Sequence[Ref] = ()
    is_until_room: bool = False

    @property
    def room(self) -> int:
        """For how many more episodes it has room; below 0, how many wait."""
        return self.capacity - (self.num_given - self.num_ended)

    def clear(self) -> list[GroupRequest]:
        """Forgets all groups, as of a runner that starts; returns them."""
        requests, self.requests = self.requests, []
        self.num_given = self.num_ended = 0
        self.results, self.is_until_room = (), False
        return requests


class RunnerQueue:
    """Groups that no runner has yet, in the order in which they are to be played."""

    def __init__(self, num_runners: int, max_episodes: int, is_deterministic: bool) -> None:
        self._num_runners, self._max_episodes = num_runners, max_episodes
        self._is_deterministic = is_deterministic
        self._waiting: deque[Sequence[GroupRequest]] = deque()

    @property
    def wants_room(self) -> bool:
        """Whether there are groups for the next runner that has room."""
        return bool(self._waiting) and not self._is_deterministic

    @property
    def num_waiting_episodes(self) -> int:
        """How many episodes the waiting groups have."""
        return sum(request.num_episodes for block in self._waiting for request in block)

    def add_groups(self, requests: Sequence[GroupRequest], *, is_first: bool = False) -> None:
        """Adds groups at the end, or before all others."""
        blocks = self._cut_blocks(requests)
        if is_first:
            self._waiting.extendleft(reversed(blocks))
        else:
            self._waiting.extend(blocks)

    def return_groups(self, requests: Sequence[GroupRequest]) -> None:
        """Takes back a lost runner's groups, to be played before all others: a block stays one."""
        blocks = [requests] if self._is_deterministic else [[request] for request in requests]
        self._waiting.extendleft(reversed([block for block in blocks if block]))

    def clear(self) -> None:
        """Forgets all that wait."""
        self._waiting.clear()

    def assign_groups(self, runners: Mapping[int, RunnerJobs]) -> dict[int, list[GroupRequest]]:
        """Gives groups to runners with room, each to the one with most; returns the new ones."""
        given: dict[int, list[GroupRequest]] = {}
        while self._waiting:
            free = [runner for runner, jobs in runners.items() if self._has_room(jobs)]
            if not free:
                break
            runner = max(free, key=lambda runner: runners[runner].room)  # of equals the first
            requests = self._waiting.popleft()
            runners[runner].requests += requests
            runners[runner].num_given += sum(request.num_episodes for request in requests)
            given.setdefault(runner, []).extend(requests)
        return given

    def _has_room(self, jobs: RunnerJobs) -> bool:
        return not jobs.requests if self._is_deterministic else jobs.room > 0

    def _cut_blocks(self, requests: Sequence[GroupRequest]) -> list[Sequence[GroupRequest]]:
        """Returns single groups; of a deterministic run blocks, as many as runners or more.

        There are more where a runner's share would not be played at once.
        """
        if not self._is_deterministic:
            return [[request] for request in requests]
        num_episodes = max((request.num_episodes for request in requests), default=1)
        num_at_once = max(self._max_episodes // num_episodes, 1)
        num_blocks = max(min(self._num_runners, len(requests)), -(-len(requests) // num_at_once))
        return [requests[block::num_blocks] for block in range(num_blocks)]
