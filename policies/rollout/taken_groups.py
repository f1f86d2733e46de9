"""The groups that a runner has taken: some wait for room, some are in play, some are finished.

They are played in an event loop in a thread of its own. Other threads hand groups over (`take`) and
fetch those that are finished (`collect`), in any order: whenever an episode ends, the next one that
waits takes its place, so that an engine is kept full for as long as there is work.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np

from agentpeft.envs import Task
from agentpeft.envs.tasks.task import content_hash
from agentpeft.policies.messages import EpisodeGroup, EpisodeRecord, Ids
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.episodes import EpisodeBuilder
from agentpeft.policies.rollout.groups import GroupRequest, PlayCounts, PlayedGroup

T = TypeVar("T")


@dataclass(eq=False)
class OpenGroup:
    """A group in play: its prompt once it is known, and its finished episodes by sample.

    `version` is the adapter's that sampled its first turn, with `in_flight_updates` its last; None
    before. `num_left` counts the episodes that are not over; it is dropped if its world keeps
    failing, and stale once it is too old to be learnt from.
    """

    request: GroupRequest
    task: Task
    episodes: dict[int, EpisodeBuilder] = field(default_factory=dict)
    prompt: str | None = None
    prompt_ids: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    version: int | None = None
    is_dropped: bool = False
    is_stale: bool = False
    num_left: int = field(init=False)
    counts: PlayCounts = field(default_factory=PlayCounts)
    last_fault: str = ""

    def __post_init__(self) -> None:
        self.num_left = self.request.num_episodes

    @property
    def is_given_up(self) -> bool:
        """Whether no further episode of it is to be played."""
        return self.is_dropped or self.is_stale

    @property
    def name(self) -> str:
        """A name that sorts by position."""
        return f"{self.request.mode}-{self.request.group_id:09d}"

    def name_session(self, sample: int) -> str:
        """Returns an episode's name for the engine."""
        return f"{self.name}-{sample:04d}"

    def begin(self, prompt: str, chat: ChatFormat) -> EpisodeBuilder:
        """Returns a new episode; the tokens of a prompt that the group shares are made once."""
        if self.prompt is None:
            self.prompt, self.prompt_ids = prompt, chat.begin(prompt)
        prompt_ids = self.prompt_ids if prompt == self.prompt else chat.begin(prompt)
        return EpisodeBuilder(prompt, prompt_ids, chat)

    def finish(self, newest: int, has_messages: bool, env_s: float) -> PlayedGroup:
        """Returns the group, all of whose episodes are over; without a version it is of `newest`.

        It is dropped where no episode came to its end. One whose prompt left no room for a token
        says nothing, and would shift the others' mean: it is not learnt from.
        """
        self.is_dropped |= not self.episodes and not self.is_stale
        version = newest if self.version is None else self.version
        episodes = dict(sorted(self.episodes.items()))
        self.counts.num_sampled_tokens = sum(e.num_sampled_tokens for e in episodes.values())
        task, group_id, is_whole = self.task, self.request.group_id, not self.is_given_up
        records = [
            EpisodeRecord(
                group_id=group_id,
                sample=sample,
                task_id=task.task_id,
                skills=task.skills,
                adapter_version=version,
                outcome=episode.outcome,
                episode_return=episode.episode_return,
                num_turns=episode.num_turns,
                num_tokens=episode.num_sampled_tokens,
                messages=tuple(episode.messages) if has_messages else (),
            )
            for sample, episode in (episodes.items() if is_whole else ())
        ]
        group = None
        if is_whole:
            learnt = [e for e in episodes.values() if e.num_turns] or episodes.values()
            trajectories = tuple(episode.to_trajectory(version) for episode in learnt)
            group = EpisodeGroup(group_id, task.task_id, task.skills, version, trajectories)
        return PlayedGroup(
            request=self.request,
            version=version,
            group=group,
            records=tuple(records),
            is_dropped=self.is_dropped,
            is_stale=self.is_stale and not self.is_dropped,
            task_hash=content_hash(task),
            counts=self.counts,
            last_fault=self.last_fault,
            env_s=env_s,
        )


Open: TypeAlias = Callable[[Sequence[GroupRequest]], Sequence[OpenGroup]]
Play: TypeAlias = Callable[[Iterator[tuple[OpenGroup, int]]], Coroutine[Any, Any, None]]


class TakenGroups:
    """Groups of one runner, at most `max_episodes` episodes of them in play at once.

    After a failure all that was taken is gone, and the next `collect` raises it.
    """

    def __init__(self, max_episodes: int, open_groups: Open, play: Play) -> None:
        """`open_groups` makes groups of requests; `play` plays episodes, one after another.

        An episode is a group and the number of the sample in it. `play` calls `end` after each.
        Both are called in the event loop.
        """
        self._max_episodes, self._open_groups, self._play = max_episodes, open_groups, play
        self._waiting: deque[tuple[OpenGroup, int]] = deque()
        self._players: set[asyncio.Task[None]] = set()
        self._under_way: list[OpenGroup] = []
        self._news = threading.Condition()  # guards what follows
        self._finished: deque[OpenGroup] = deque()
        self._num_taken = self._num_ended = 0  # episodes
        self._failure: BaseException | None = None
        self._is_failing = False
        self._is_woken = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="episodes", daemon=True)
        self._thread.start()

    @property
    def under_way(self) -> Sequence[OpenGroup]:
        """The groups that are not finished."""
        return self._under_way

    def take(self, requests: Sequence[GroupRequest]) -> None:
        """Begins to play groups, in order, each episode once there is room for it."""
        with self._news:
            self._num_taken += sum(request.num_episodes for request in requests)
        self._loop.call_soon_threadsafe(self._start, self._begin(tuple(requests)))

    def wake(self) -> None:
        """Has the `collect` that waits, or the next one, return at once."""
        with self._news:
            self._is_woken = True
            self._news.notify_all()

    def collect(self, max_groups: int, until_room: bool) -> tuple[list[OpenGroup], int]:
        """Waits for finished groups; returns them, and how many episodes are over so far.

        There are `max_groups` at most. With `until_room` it returns without any as soon as there is
        room for another episode. Raises: what playing raised.
        """
        with self._news:
            self._news.wait_for(
                lambda: (
                    self._failure
                    or self._finished
                    or self._is_woken
                    or (until_room and self._has_room)
                )
            )
            self._is_woken = False
            if self._failure is not None:
                failure, self._failure = self._failure, None
                self._is_failing = False
                raise failure
            num_groups = min(max_groups, len(self._finished))
            return [self._finished.popleft() for _ in range(num_groups)], self._num_ended

    def end(self, group: OpenGroup) -> None:
        """Notes that an episode of a group is over, and with its last one the group."""
        group.num_left -= 1
        with self._news:
            self._num_ended += 1
            if group.num_left == 0:
                self._under_way.remove(group)
                self._finished.append(group)
            self._news.notify_all()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Returns what a coroutine does in the event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        """Gives up what is in play, and ends the thread; idempotent."""
        if self._loop.is_closed():
            return
        self.run(self._abandon())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def _has_room(self) -> bool:
        return self._num_taken - self._num_ended < self._max_episodes and not self._is_failing

    async def _begin(self, requests: Sequence[GroupRequest]) -> None:
        """Starts as many players as there are places for them, all of them before any acts."""
        groups = self._open_groups(requests)
        self._under_way.extend(groups)
        for group in groups:
            self._waiting.extend((group, n) for n in range(group.request.num_episodes))
        for _ in range(min(self._max_episodes - len(self._players), len(self._waiting))):
            self._players.add(self._start(self._play(self._next_episodes())))

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        task.add_done_callback(self._look_at)
        return task

    def _next_episodes(self) -> Iterator[tuple[OpenGroup, int]]:
        while self._waiting:
            yield self._waiting.popleft()

    def _look_at(self, task: asyncio.Task[None]) -> None:
        self._players.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._is_failing:
            self._is_failing = True
            self._ending = self._loop.create_task(self._report_failure(error))

    async def _report_failure(self, error: BaseException) -> None:
        """Ends all players; `collect` hears of the first failure once they have ended."""
        await self._abandon()
        with self._news:
            self._failure = error
            self._news.notify_all()

    async def _abandon(self) -> None:
        """Ends all players and forgets what was taken."""
        self._waiting.clear()
        players = list(self._players)
        for player in players:
            player.cancel()
        await asyncio.gather(*players, return_exceptions=True)
        self._under_way.clear()
        with self._news:
            self._finished.clear()
            self._num_ended = self._num_taken
