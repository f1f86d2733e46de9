"""`EnvRunner`: plays groups of episodes of one task, many at once; tokens in, tokens out.

    take ─▶ GroupRequest ─▶ OpenGroup, with an EpisodeBuilder for each episode
                 turn after turn: engine.generate ─▶ action ─▶ env.step ─▶ observation
                 (tokens of a Completion with mask True, then the observation's with mask False)
    collect ◀─ PlayedGroup, with its EpisodeGroup, as soon as all of its episodes are over

Episodes are coroutines of one event loop, in a thread of its own (`TakenGroups`). Environments run
in other threads (`EnvThreads`), so that a slow step holds up its own episode only.

What keeps a group from the learner: it is *stale* (a new adapter made it too old, in play or while
it waited) or *dropped* (its environment failed again and again). Of a group that is neither, a
*slow* episode (it was not over after `episode_timeout_s`) is left out alone.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from agentpeft.envs import DataError, EnvFault, UnknownTaskError
from agentpeft.policies.delivery.probe import Proof, prove
from agentpeft.policies.engines.player import Player, make_player
from agentpeft.policies.errors import EnvironmentBugError
from agentpeft.policies.messages import AdapterAck, AdapterVersion, EpisodeGroup, Ids
from agentpeft.policies.rollout.env_threads import EnvHangError, EnvThreads
from agentpeft.policies.rollout.environments import EnvPool, open_held_out, open_stages
from agentpeft.policies.rollout.episodes import EngineAgent, EpisodeBuilder
from agentpeft.policies.rollout.groups import GroupRequest, PlayedGroup, PlayedSoFar, SampleReport
from agentpeft.policies.rollout.play import play_episode
from agentpeft.policies.rollout.taken_groups import OpenGroup, TakenGroups
from agentpeft.policies.rollout.turn_sampler import AbandonedEpisodeError, TurnSampler
from agentpeft.policies.settings.config import Settings

if TYPE_CHECKING:  # a run that our own loop plays does without it
    from agentpeft.policies.engines.outside_agent import OutsideAgent

logger = logging.getLogger(__name__)
_MAX_ENV_THREADS = 64
_MAX_RETRIES = 3
"""Of an episode after a fault: an environment that still fails after these is taken to be down."""
_FAULTS = (EnvFault, DataError, UnknownTaskError)
"""What an environment's reset or step may raise during a run: the episode is played again."""


class EnvRunner:
    """Environments and an engine in one process.

    Each token follows from a seed: the settings' seed, whether it is training, the group, the
    sample in it, the turn (from 0), and, if an episode is played again after a fault, the attempt
    (`TurnSampler`: also the part, of a turn that was interrupted).
    """

    def __init__(self, settings: Settings, player: Player | None = None) -> None:
        """`player` None: it is made from the settings. Raises: SettingsError."""
        self._settings, self._limits = settings, settings.env_runners
        self._stages, self._held_out = open_stages(settings), open_held_out(settings)
        player = player or make_player(settings)
        self._chat, self._engine, self._oracle = player.chat, player.engine, player.oracle
        self._agent: OutsideAgent | None = None
        if self._limits.agent:
            from agentpeft.policies.engines.outside_agent import make_agent

            self._agent = make_agent(settings, self._chat)
        most = self._limits.max_concurrent_episodes
        self._threads = EnvThreads(min(most, _MAX_ENV_THREADS), self._limits.step_timeout_s)
        self._taken = TakenGroups(most, self._open, self._play)
        self._turns = TurnSampler(settings, self._engine)
        self._proving_loop = asyncio.Runner()  # of this thread: a signal may end it
        self._reported_s = 0.0

    def load_adapter(self, adapter: AdapterVersion) -> AdapterAck:
        """Serves an adapter; see `serve`. Raises: EngineError."""
        return self.serve(adapter, None)[0]

    def serve(
        self, adapter: AdapterVersion, sequences: Sequence[Ids] | None
    ) -> tuple[AdapterAck, Proof | None]:
        """Serves an adapter from the next turn on; returns what was received.

        With `sequences`, returns what the engine says of them too. Groups that this makes too old
        to be learnt from are given up. An engine of one version finishes the turns under way first,
        or interrupts them (`TurnSampler`); one of several versions keeps running, and keeps serving
        the older ones. Raises: EngineError.
        """
        try:
            self._taken.run(self._prepare_to_serve(adapter.version))
            ack, proof = self._engine.load_adapter(adapter), None
            self._turns.version = adapter.version
            if sequences is not None:
                proving = prove(self._engine, sequences, self._limits.episode_timeout_s)
                proof = self._proving_loop.run(proving)
            return ack, proof
        finally:
            self._taken.run(self._turns.release())

    def take(self, requests: Sequence[GroupRequest]) -> None:
        """Begins to play groups, each episode as soon as there is room for it."""
        self._taken.take(requests)

    def wake(self) -> None:
        """Has the `collect` under way return at once, with what there is."""
        self._taken.wake()

    def collect(self, max_groups: int, until_room: bool) -> tuple[int, list[PlayedGroup]]:
        """Waits until groups are finished; with `until_room`, also until a slot is free.

        Returns how many episodes are over since the runner started, and these groups. Raises:
        EngineError, or what a broken environment raises.
        """
        finished, num_ended = self._taken.collect(max_groups, until_room)
        return num_ended, [self._finish(group) for group in finished]

    def sample(self, requests: Sequence[GroupRequest]) -> tuple[list[EpisodeGroup], SampleReport]:
        """Plays groups, and returns those that are whole, by position, once all are finished.

        Raises: as `collect`.
        """
        report = SampleReport(chain.from_iterable(self.play(requests)))
        return report.groups, report

    def play(self, requests: Sequence[GroupRequest]) -> Iterator[list[PlayedGroup]]:
        """Plays groups, and yields those that have just been finished. Raises: as `collect`."""
        self.take(requests)
        num_played, so_far = 0, PlayedSoFar(len(requests))
        while num_played < len(requests):
            finished = self.collect(len(requests), until_room=False)[1]
            num_played += len(finished)
            so_far.tell(num_played)
            yield finished

    def sleep(self) -> None:
        """Puts the engine to sleep, freeing memory, until it is needed. Raises: EngineError."""
        self._engine.sleep()

    def close(self) -> None:
        """Closes engine, environments and threads; idempotent."""
        if self._agent is not None:
            self._taken.run(self._agent.close())
            self._agent = None
        self._taken.close()
        self._engine.close()
        self._threads.close()
        self._proving_loop.close()
        for pool in (*self._stages, self._held_out):
            pool.close()

    async def _prepare_to_serve(self, version: int) -> None:
        """Gives up groups that may not be learnt from once `version` is there; holds turns back."""
        oldest = version - self._settings.max_adapter_lag
        for group in () if self._settings.in_flight_updates else self._taken.under_way:
            is_training, began = group.request.mode == "train", group.version
            if is_training and began is not None and began < oldest and not group.is_left_out:
                group.is_left_out = True
                samples = range(group.request.num_episodes)
                self._engine.update_sessions(closed=list(map(group.name_session, samples)))
        if self._engine.num_versions == 1:
            await self._turns.hold()

    def _open(self, requests: Sequence[GroupRequest]) -> list[OpenGroup]:
        """Makes groups of requests; a stage of training that is over gives its sandboxes back.

        What an evaluation asks for beyond a set's tasks is skipped: it would repeat them.
        """
        groups = [OpenGroup(r, self._pool_of(r).task_at(r.group_id)) for r in requests]
        if (num_held_out := self._held_out.num_tasks) is not None:
            for group in groups:
                comes_again = group.request.group_id >= num_held_out
                group.is_left_out = group.request.mode == "eval" and comes_again
        in_play = [group.request for group in (*self._taken.under_way, *groups)]
        stages = {request.stage for request in in_play if request.mode == "train"}
        for stage, pool in enumerate(self._stages):
            if stages and stage not in stages:
                pool.close()
        return groups

    def _pool_of(self, request: GroupRequest) -> EnvPool:
        return self._stages[request.stage] if request.mode == "train" else self._held_out

    async def _play(self, episodes: Iterator[tuple[OpenGroup, int]]) -> None:
        """Plays one episode after another.

        Closing a session and opening the next is one step, so that a deterministic engine never
        sees a moment between the two.
        """
        closed: list[str] = []
        try:
            for group, sample in episodes:
                if not group.is_given_up:
                    session = group.name_session(sample)
                    self._engine.update_sessions(opened=[session], closed=closed)
                    closed = [session]
                    await self._play_or_drop(group, sample, session)
                self._taken.end_episode(group)
        finally:
            self._engine.update_sessions(closed=closed)

    async def _play_or_drop(self, group: OpenGroup, sample: int, session: str) -> None:
        """Plays an episode, again in a fresh environment after each fault.

        A task whose data turn out to be bad counts as a fault too: other tasks are whole. After too
        many faults its group is dropped: its other episodes are not begun, and the run continues.
        An EnvironmentBugError ends the run instead.
        """
        place = f"environment {self._settings.environment.id}, task {group.task.task_id!r}"
        for attempt in range(_MAX_RETRIES + 1):
            if attempt:
                group.counts.num_retries += 1
                self._engine.update_sessions(opened=[session], closed=[session])
            try:
                episode = await self._play_episode(group, sample, attempt)
            except EnvironmentBugError as bug:
                raise EnvironmentBugError(f"{place}, episode {session}: {bug}") from bug
            except _FAULTS as fault:
                group.counts.num_faults += 1
                group.last_fault = f"{place}, episode {session}: {fault}"
                logger.warning("attempt %d: %s", attempt + 1, group.last_fault)
            else:
                if episode is not None:
                    group.episodes[sample] = episode
                return
            finally:
                self._oracle.pop(session, None)
            if group.is_left_out:
                return
        group.is_dropped = True
        logger.warning("the group of %s is dropped: its environment keeps failing", session)

    async def _play_episode(
        self, group: OpenGroup, sample: int, attempt: int
    ) -> EpisodeBuilder | None:
        """Plays one episode; None if it is slow, or its group is left out.

        Another attempt samples other actions: the same ones might make the environment fail again.
        Raises: EnvFault (its environment is closed then), DataError where the task cannot be set
        up.
        """
        task, pool = group.task, self._pool_of(group.request)
        env, prompt = await self._threads.call(partial(pool.begin, group.request.group_id, task))
        episode = group.begin(prompt, self._chat)
        deadline_s = asyncio.get_running_loop().time() + self._limits.episode_timeout_s
        complete = partial(self._turns.sample, group, sample, attempt, deadline_s)
        try:
            if self._limits.engine == "scripted":
                from agentpeft.policies.rollout.scripted_play import oracle_actions

                self._oracle[group.name_session(sample)] = oracle_actions(env, task)
            call = self._threads.call
            if self._agent is None:
                played = play_episode(env, EngineAgent(episode, self._chat, complete), call)
            else:
                played = self._agent.play(env, episode, complete, call)
            episode.end(env, await played)
        except AbandonedEpisodeError:
            pool.give_back(env)
            return None
        except _FAULTS as fault:
            if not isinstance(fault, EnvHangError):  # a hanging one is its thread's
                await self._threads.call(partial(pool.discard, env))
            raise EnvFault(f"turn {episode.num_turns}: {fault}") from fault
        except EnvironmentBugError as bug:
            raise EnvironmentBugError(f"turn {episode.num_turns}: {bug}") from bug
        pool.give_back(env)
        return episode

    def _finish(self, group: OpenGroup) -> PlayedGroup:
        """Returns a finished group; its `env_s` are the seconds since the one before."""
        env_s = self._threads.busy_s
        since_s, self._reported_s = env_s - self._reported_s, env_s
        return group.finish(self._turns.version, self._settings.output.episodes, since_s)
