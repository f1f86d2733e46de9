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
from itertools import chain
from typing import Any, TypeAlias, TypeVar

from agentpeft.envs import Task
from agentpeft.envs.tasks.task import content_hash
from agentpeft.policies.messages import EpisodeGroup, EpisodeRecord, Ids
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.episodes import EpisodeBuilder
from agentpeft.policies.rollout.groups import GroupRequest, PlayCounts, PlayedGroup

T = TypeVar("T")


@dataclass(eq=False)
class OpenGroup:
    """A group in play: its finished episodes by sample, and the tokens of its prompt.

    There are several prompts if its environment gives its episodes different ones. `version` is the
    adapter's that sampled its first turn, with `in_flight_updates` its last; None before.
    `num_ended` episodes are over. It is dropped if its environment keeps failing, and left out
    once it is too old to be learnt from, or if an evaluation has had its task already.
    """

    request: GroupRequest
    task: Task
    episodes: dict[int, EpisodeBuilder] = field(default_factory=dict)
    prompts: dict[str, Ids] = field(default_factory=dict)
    version: int | None = None
    is_dropped: bool = False
    is_left_out: bool = False
    num_ended: int = 0
    counts: PlayCounts = field(default_factory=PlayCounts)
    last_fault: str = ""

    @property
    def is_given_up(self) -> bool:
        """Whether no further episode of it is played."""
        return self.is_dropped or self.is_left_out

    @property
    def name(self) -> str:
        """A name that sorts by position."""
        return f"{self.request.mode}-{self.request.group_id:09d}"

    def name_session(self, sample: int) -> str:
        """Returns an episode's name for the engine."""
        return f"{self.name}-{sample:04d}"

    def begin(self, prompt: str, chat: ChatFormat) -> EpisodeBuilder:
        """Returns a new episode; the tokens of a prompt that episodes share are made once."""
        if prompt not in self.prompts:
            self.prompts[prompt] = chat.begin(prompt)
        return EpisodeBuilder(prompt, self.prompts[prompt], chat)

    def finish(self, newest: int, has_messages: bool, env_s: float) -> PlayedGroup:
        """Returns the group, all of whose episodes are over; without a version it is of `newest`.

        It is dropped where no episode came to its end. One whose prompt left no room for a token
        says nothing, and would shift the others' mean: it is not learnt from.
        """
        self.is_dropped |= not self.episodes and not self.is_left_out
        version = newest if self.version is None else self.version
        episodes = dict(sorted(self.episodes.items()))
        self.counts.num_sampled_tokens = sum(e.num_sampled_tokens for e in episodes.values())
        task, group_id = self.task, self.request.group_id
        group, records = None, []
        if not self.is_given_up:
            learnt = [e for e in episodes.values() if e.num_turns] or episodes.values()
            trajectories = tuple(chain.from_iterable(e.to_trajectories(version) for e in learnt))
            group = EpisodeGroup(group_id, task.task_id, task.skills, version, trajectories)
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
                for sample, episode in episodes.items()
            ]
        return PlayedGroup(
            request=self.request,
            version=version,
            group=group,
            records=tuple(records),
            is_dropped=self.is_dropped,
            is_left_out=self.is_left_out and not self.is_dropped,
            task_hash=content_hash(task),
            counts=self.counts,
            last_fault=self.last_fault,
            env_s=env_s,
        )


Episodes: TypeAlias = Iterator[tuple[OpenGroup, int]]
"""Groups, and the numbers of samples in them."""


class TakenGroups:
    """Groups of one runner, at most `max_episodes` episodes of them in play at once.

    `open_groups` makes groups of requests; `play` plays episodes one after another, and calls
    `end_episode` after each. Both are called in the event loop. A failure of either is final.
    """

    def __init__(
        self,
        max_episodes: int,
        open_groups: Callable[[Sequence[GroupRequest]], Sequence[OpenGroup]],
        play: Callable[[Episodes], Coroutine[Any, Any, None]],
    ) -> None:
        self._max_episodes, self._open_groups, self._play = max_episodes, open_groups, play
        self._waiting: deque[tuple[OpenGroup, int]] = deque()
        self._players: set[asyncio.Task[None]] = set()
        self.under_way: list[OpenGroup] = []
        self._news = threading.Condition()  # guards what follows
        self._finished: deque[OpenGroup] = deque()
        self._num_taken = self._num_ended = 0  # episodes
        self._failure: BaseException | None = None
        self._is_woken = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="episodes", daemon=True)
        self._thread.start()

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

        def is_ready() -> bool:
            has_room = self._num_taken - self._num_ended < self._max_episodes
            is_told = self._failure is not None or self._is_woken
            return is_told or bool(self._finished) or (until_room and has_room)

        with self._news:
            self._news.wait_for(is_ready)
            self._is_woken = False
            if self._failure is not None:
                raise self._failure
            num_groups = min(max_groups, len(self._finished))
            return [self._finished.popleft() for _ in range(num_groups)], self._num_ended

    def end_episode(self, group: OpenGroup) -> None:
        """Notes that an episode of a group is over, and with its last one the group."""
        group.num_ended += 1
        with self._news:
            self._num_ended += 1
            if group.num_ended == group.request.num_episodes:
                self.under_way.remove(group)
                self._finished.append(group)
            self._news.notify_all()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Returns what a coroutine does in the event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        """Gives up what is in play, and ends the thread; idempotent."""
        if not self._loop.is_closed():
            self.run(self._end_players())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _begin(self, requests: Sequence[GroupRequest]) -> None:
        """Starts as many players as there are places for them, all of them before any acts."""
        groups = self._open_groups(requests)
        self.under_way.extend(groups)
        for group in groups:
            self._waiting.extend((group, n) for n in range(group.request.num_episodes))
        for _ in range(min(self._max_episodes - len(self._players), len(self._waiting))):
            self._players.add(self._start(self._play(self._next_episodes())))

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        task.add_done_callback(self._end_player)
        return task

    def _next_episodes(self) -> Episodes:
        while self._waiting:
            yield self._waiting.popleft()

    def _end_player(self, task: asyncio.Task[None]) -> None:
        self._players.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._waiting.clear()
            with self._news:
                self._failure = self._failure or error
                self._news.notify_all()

    async def _end_players(self) -> None:
        self._waiting.clear()
        players = list(self._players)
        for player in players:
            player.cancel()
        await asyncio.gather(*players, return_exceptions=True)
