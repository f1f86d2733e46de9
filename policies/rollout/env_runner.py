"""`EnvRunner`: plays groups of episodes of one task, many at once; tokens in, tokens out.

    take ─▶ GroupRequest ─▶ OpenGroup, with an EpisodeRequest and an EpisodeBuilder for each episode
                 turn after turn: engine.generate ─▶ action ─▶ env.step ─▶ observation
    collect ◀─ EpisodeGroup and SampleReport, as soon as all of a group's episodes are over

Episodes are coroutines of one event loop, in a thread of its own (`TakenGroups`). Environments run
in other threads (`EnvThreads`), so that a slow step holds up its own episode only.

What keeps a group from the learner: it is *stale* (a new adapter made it too old while it was
played) or *dropped* (its environment failed again and again). Of a group that is neither, a *slow*
episode (it was not over after `episode_timeout_s`) is left out alone.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from agentpeft.envs import DataError, EnvFault, SettingsError, UnknownTaskError
from agentpeft.policies.delivery.probe import Proof, prove
from agentpeft.policies.engines.protocol import SleepingEngine
from agentpeft.policies.errors import EnvironmentBugError
from agentpeft.policies.messages import AdapterAck, AdapterVersion, EpisodeGroup, Ids
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.rollout.environments.env_pool import oracle_actions
from agentpeft.policies.rollout.environments.stages import StagePools
from agentpeft.policies.rollout.episodes import EngineAgent, EpisodeBuilder
from agentpeft.policies.rollout.groups import (
    EpisodeRequest,
    GroupRequest,
    OpenGroup,
    PlayedGroup,
    SampleReport,
)
from agentpeft.policies.rollout.play import play_episode
from agentpeft.policies.rollout.player import EngineFactory, Player, make_player
from agentpeft.policies.rollout.scheduling.env_threads import EnvHangError, EnvThreads
from agentpeft.policies.rollout.scheduling.taken_groups import TakenGroups
from agentpeft.policies.rollout.turn_sampler import SlowEpisodeError, StaleGroupError, TurnSampler
from agentpeft.policies.settings.config import Settings

logger = logging.getLogger(__name__)
_MAX_ENV_THREADS = 64
_MAX_RETRIES = 3
"""Of an episode after a fault: a world that comes back does so within these; others are down."""
_FAULTS = (EnvFault, DataError, UnknownTaskError)
"""What an environment's reset or step may raise during a run: the episode is played again."""


class EnvRunner:
    """Environments and an engine in one process.

    Each token follows from a seed: the settings' seed, whether it is training, the group, the
    sample in it, the turn (from 0), and, if an episode is played again after a fault, the attempt
    (`TurnSampler`: also the part, of a turn that was interrupted).
    """

    def __init__(
        self,
        settings: Settings,
        *,
        base: PolicyBase | None = None,
        make_engine: EngineFactory | None = None,
        player: Player | None = None,
    ) -> None:
        """`base` None is the settings' model; `make_engine` None is the settings' engine.

        A `player` takes the place of both. Raises: SettingsError.
        """
        self._settings, self._own = settings, settings.env_runners
        self._pools = StagePools(settings)
        player = player or make_player(settings, base, make_engine)
        self._chat, self._engine, self._oracle = player.chat, player.engine, player.oracle
        num_threads = min(self._own.max_concurrent_episodes, _MAX_ENV_THREADS)
        self._threads = EnvThreads(num_threads, self._own.step_timeout_s)
        most = self._own.max_concurrent_episodes
        self._taken = TakenGroups(most, self._open, self._play)
        self._turns = TurnSampler(settings, self._engine)
        self._proving_loop = asyncio.Runner()
        self._told_s = (0.0, 0.0)

    def load_adapter(self, adapter: AdapterVersion) -> AdapterAck:
        """Serves an adapter; see `serve`. Raises: EngineError."""
        return self.serve(adapter, None)[0]

    def serve(
        self, adapter: AdapterVersion, sequences: Sequence[Ids] | None
    ) -> tuple[AdapterAck, Proof | None]:
        """Serves an adapter from the next turn on; returns what was received.

        With `sequences`, returns what the engine says of them too. Groups that this makes too old
        to be learnt from are given up. An engine of one version finishes the turns under way first,
        or interrupts them (`TurnSampler`); one of several goes on meanwhile, and with the older
        versions. Raises: EngineError.
        """
        self._taken.run(self._give_up_stale(adapter.version))
        with self._paused():
            ack = self._engine.load_adapter(adapter)
            self._turns.version = adapter.version
            return ack, None if sequences is None else self.prove(sequences)

    def prove(self, sequences: Sequence[Ids]) -> Proof:
        """Returns what is served, told by token sequences. Raises: EngineError."""
        return self._proving_loop.run(prove(self._engine, sequences, self._own.episode_timeout_s))

    def take(self, requests: Sequence[GroupRequest]) -> None:
        """Begins to play groups, each episode as soon as there is room for it."""
        self._taken.take(requests)

    def wake(self) -> None:
        """Has the `collect` under way return at once, with what there is."""
        self._taken.wake()

    def collect(self, max_groups: int, until_room: bool) -> tuple[int, list[PlayedGroup]]:
        """Waits for groups that are finished; with `until_room` for room for an episode, too.

        Returns how many episodes are over since the runner started, and these groups. Raises:
        EngineError, or what a broken environment raises.
        """
        finished, num_ended = self._taken.collect(max_groups, until_room)
        played = []
        for group in finished:
            if not group.episodes and not group.is_stale:
                group.is_dropped = True
            whole = None if group.is_given_up else group.to_group(self._version_of(group))
            played.append(PlayedGroup(group.request, whole, self._report(group)))
        return num_ended, played

    def sample(self, requests: Sequence[GroupRequest]) -> tuple[list[EpisodeGroup], SampleReport]:
        """Plays groups, and returns those that are whole, in order, once all are finished.

        Raises: EngineError, or what a broken environment raises.
        """
        start_s = time.perf_counter()
        self.take(requests)
        by_request: dict[GroupRequest, PlayedGroup] = {}
        while len(by_request) < len(requests):
            _, finished = self.collect(len(requests), until_room=False)
            by_request |= {played.request: played for played in finished}
        ordered = [by_request[request] for request in requests]
        report = SampleReport.merge((played.report for played in ordered), is_in_turn=True)
        report = replace(report, total_s=time.perf_counter() - start_s)
        return [played.group for played in ordered if played.group is not None], report

    def sleep(self) -> None:
        """Has the engine leave its memory to others. Raises: EngineError, SettingsError."""
        if not isinstance(self._engine, SleepingEngine):
            name = type(self._engine).__name__
            raise SettingsError(f"env_runners.sleep_while_learning: {name} cannot sleep")
        self._engine.sleep()

    def close(self) -> None:
        """Closes engine, environments and threads; idempotent."""
        self._taken.close()
        self._engine.close()
        self._threads.close()
        self._proving_loop.close()
        self._pools.close()

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Holds all turns back, if the engine has to be idle to be changed."""
        if self._engine.num_versions > 1:
            yield
            return
        try:
            self._taken.run(self._turns.hold())
            yield
        finally:
            self._taken.run(self._turns.release())

    async def _give_up_stale(self, version: int) -> None:
        """Gives up the groups in play that may not be learnt from once `version` is there."""
        if self._settings.in_flight_updates:
            return
        oldest = version - self._settings.max_adapter_lag
        for group in self._taken.under_way:
            is_training, began = group.request.mode == "train", group.version
            if is_training and began is not None and began < oldest and not group.is_stale:
                group.is_stale = True
                episodes = [
                    EpisodeRequest(group, sample) for sample in range(group.request.num_episodes)
                ]
                self._engine.update_sessions(closed=[wanted.session for wanted in episodes])

    def _version_of(self, group: OpenGroup) -> int:
        return self._turns.version if group.version is None else group.version

    def _open(self, requests: Sequence[GroupRequest]) -> list[OpenGroup]:
        """Makes groups of requests."""
        groups = [OpenGroup(r, self._pools.of(r).task_at(r.group_id)) for r in requests]
        self._pools.close_unused([each.request for each in (*self._taken.under_way, *groups)])
        return groups

    async def _play(self, episodes: Iterator[EpisodeRequest]) -> None:
        """Plays one episode after another.

        Closing a session and opening the next is one step, so that a deterministic engine never
        sees a moment between the two.
        """
        closed: list[str] = []
        try:
            for wanted in episodes:
                if not wanted.group.is_given_up:
                    self._engine.update_sessions(opened=[wanted.session], closed=closed)
                    closed = [wanted.session]
                    await self._play_or_drop(wanted)
                self._taken.end(wanted)
        finally:
            self._engine.update_sessions(closed=closed)

    async def _play_or_drop(self, wanted: EpisodeRequest) -> None:
        """Plays an episode, again in a fresh environment after each fault.

        A task whose data turn out to be bad in play is one too: other tasks are whole. After too
        many faults its group is dropped: episodes not begun are skipped, the run goes on. An
        EnvironmentBugError, which none may raise, ends the run instead.
        """
        for attempt in range(_MAX_RETRIES + 1):
            if attempt:
                wanted.group.counts["retries"] += 1
                self._engine.update_sessions(opened=[wanted.session], closed=[wanted.session])
            try:
                episode = await self._play_episode(wanted, attempt)
            except EnvironmentBugError as bug:
                raise EnvironmentBugError(self._describe(wanted, bug)) from bug
            except _FAULTS as fault:
                wanted.group.counts["faults"] += 1
                wanted.group.last_fault = self._describe(wanted, fault)
                logger.warning("attempt %d: %s", attempt + 1, wanted.group.last_fault)
            else:
                if episode is not None:
                    wanted.group.episodes[wanted.sample] = episode
                return
            finally:
                self._oracle.pop(wanted.session, None)
            if wanted.group.is_stale:
                return
        wanted.group.is_dropped = True
        logger.warning("the group of %s is dropped: its environment keeps failing", wanted.session)

    def _describe(self, wanted: EpisodeRequest, fault: Exception) -> str:
        place = f"environment {self._settings.environment.id}, task {wanted.group.task.task_id!r}"
        return f"{place}, episode {wanted.session}: {fault}"

    async def _play_episode(self, wanted: EpisodeRequest, attempt: int) -> EpisodeBuilder | None:
        """Plays one episode; None if it is slow, or its group is stale.

        Another attempt samples other actions: the same ones might make the environment fail again.
        Raises: EnvFault, and then the environment is gone; a step over its time limit is one;
        DataError where the task cannot be set up.
        """
        request, task = wanted.group.request, wanted.group.task
        pool = self._pools.of(request)
        env, prompt = await self._threads.call(partial(pool.begin, request.group_id, task))
        episode = wanted.group.begin(prompt, self._chat)
        deadline_s = asyncio.get_running_loop().time() + self._own.episode_timeout_s
        complete = partial(self._turns.sample, wanted, attempt, deadline_s)
        try:
            if self._own.engine == "scripted":
                self._oracle[wanted.session] = oracle_actions(env, task)
            agent = EngineAgent(episode, self._chat, complete)
            episode.end(env, await play_episode(env, agent, self._threads.call))
        except SlowEpisodeError:
            pool.give_back(env)
            wanted.group.counts["slow"] += 1
            limit = f"env_runners.episode_timeout_s {self._own.episode_timeout_s:g}"
            wanted.group.last_fault = f"episode {wanted.session} was not over after {limit}"
            return None
        except StaleGroupError:
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

    def _report(self, group: OpenGroup) -> SampleReport:
        """Returns the report of a finished group; seconds are those since the last report."""
        spent_s = (self._turns.clock.busy_s, self._threads.clock.busy_s)
        engine_s, env_s = (now - told for now, told in zip(spent_s, self._told_s, strict=True))
        self._told_s = spent_s
        has_messages = self._settings.output.episodes
        return group.to_report(self._version_of(group), has_messages, engine_s, env_s)
