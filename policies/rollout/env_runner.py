"""`EnvRunner`: plays groups of episodes of one task, many at once; tokens in, tokens out."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from agentpeft.envs import EnvFault
from agentpeft.envs.tasks.task_rows import content_hash
from agentpeft.policies.delivery.probe import Proof, prove
from agentpeft.policies.engines.protocol import Engine
from agentpeft.policies.engines.scripted import ScriptedEngine
from agentpeft.policies.errors import EngineError, EnvironmentBugError
from agentpeft.policies.messages import (
    AdapterAck,
    AdapterVersion,
    Completion,
    EpisodeGroup,
    GenerationRequest,
    Ids,
    StopReason,
)
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.env_pool import EnvPool, oracle_actions
from agentpeft.policies.rollout.episodes import EngineAgent, EpisodeBuilder
from agentpeft.policies.rollout.groups import GroupRequest, Mode, OpenGroup, SampleReport, Seat
from agentpeft.policies.rollout.lanes import BusyClock, LaneHang, Lanes
from agentpeft.policies.rollout.play import play_episode
from agentpeft.policies.rollout.stages import EVAL_STREAM, TRAIN_STREAM, open_held_out, open_stages
from agentpeft.policies.rollout.tool_chat import make_chat
from agentpeft.policies.settings.config import Settings

__all__ = ["EngineFactory", "EnvRunner", "GroupRequest", "Player", "SampleReport"]

logger = logging.getLogger(__name__)
EngineFactory = Callable[[Settings, PolicyBase, ChatFormat], Engine]
_STREAMS = {"train": TRAIN_STREAM, "eval": EVAL_STREAM}
_MAX_LANES = 64


@dataclass(frozen=True)
class Player:
    """What plays: how it reads and writes, and what answers.

    `oracle` is told, by session, how a perfect agent acts, if the settings' engine is "scripted".
    """

    chat: ChatFormat
    engine: Engine
    oracle: dict[str, Sequence[str]] = field(default_factory=dict)


class _SlowEngineError(Exception):
    """An episode's time was over before its next turn was sampled."""


class EnvRunner:
    """Environments, an engine and an event loop in one process.

    What is sampled depends on the settings' seed, the group, the sample and the turn alone.
    EnvFaults end here: the episode is played again in a fresh environment, and a group that keeps
    failing is left out and counted.
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
        self._pools = self._make_pools()
        self._oracle: dict[str, Sequence[str]] = player.oracle if player else {}
        player = player or self._make_player(base, make_engine or self._make_engine)
        self._chat, self._engine = player.chat, player.engine
        num_lanes = min(self._own.max_concurrent_episodes, _MAX_LANES)
        self._lanes = Lanes(num_lanes, self._own.step_timeout_s)
        self._loop, self._proving_loop = asyncio.Runner(), asyncio.Runner()
        self._engine_clock = BusyClock()
        self._counts: Counter[str] = Counter()
        self._newest = self._version = 0
        self._last_fault = ""

    def load_adapter(self, adapter: AdapterVersion) -> AdapterAck:
        """Begins no round without `adapter` from now on, and answers what was received.

        A round that another thread is playing ends as it began. Raises: EngineError.
        """
        ack = self._engine.load_adapter(adapter)
        self._newest = adapter.version
        return ack

    def prove(self, sequences: Sequence[Ids]) -> Proof:
        """Returns what is served, told by token sequences. Raises: EngineError."""
        return self._proving_loop.run(prove(self._engine, sequences, self._own.episode_timeout_s))

    def is_loaded_beside(self) -> bool:
        """Returns whether adapters may be loaded and proven in the middle of a round."""
        return self._engine.num_versions > 1

    def sample(self, requests: Sequence[GroupRequest]) -> tuple[list[EpisodeGroup], SampleReport]:
        """Plays the groups and returns those that are whole, in order.

        Raises: EngineError, or what a broken environment raises.
        """
        start_s, self._version = time.perf_counter(), self._newest
        self._counts.clear()
        self._last_fault = ""
        self._oracle.clear()
        self._engine_clock.busy_s = self._lanes.clock.busy_s = 0.0
        stages = {request.stage for request in requests if request.mode == "train"}
        for (mode, stage), pool in self._pools.items():
            if stages and mode == "train" and stage not in stages:
                pool.close()  # or a stage that is over would keep its sandboxes
        groups = [OpenGroup(r, self._pool_of(r).task_at(r.group_id)) for r in requests]
        self._loop.run(self._play_all(groups))
        for group in groups:
            group.is_dropped |= not group.episodes
        kept = [group for group in groups if not group.is_dropped]
        report = self._report(groups, kept, time.perf_counter() - start_s)
        return [group.to_group(self._version) for group in kept], report

    def close(self) -> None:
        """Closes engine, environments and threads; idempotent."""
        self._engine.close()
        self._lanes.close()
        self._loop.close()
        self._proving_loop.close()
        for pool in self._pools.values():
            pool.close()

    def _make_pools(self) -> dict[tuple[Mode, int], EnvPool]:
        """Returns the environments by mode and stage; evaluation has one stage."""
        pools: dict[tuple[Mode, int], EnvPool] = {
            ("train", stage): pool for stage, pool in enumerate(open_stages(self._settings))
        }
        return {**pools, ("eval", 0): open_held_out(self._settings)}

    def _pool_of(self, request: GroupRequest) -> EnvPool:
        return self._pools[request.mode, request.stage]

    def _make_player(self, base: PolicyBase | None, make_engine: EngineFactory) -> Player:
        settings = self._settings
        if base is None and settings.env_runners.engine == "vllm":
            from agentpeft.policies.engines.vllm.start import start_vllm

            return Player(*start_vllm(settings))
        if base is None:
            from agentpeft.policies.models.load import load_served_base

            base = load_served_base(settings, settings.env_runners.num_gpus_per_env_runner)
        chat = make_chat(base, settings)
        return Player(chat, make_engine(settings, base, chat))

    def _make_engine(self, settings: Settings, base: PolicyBase, chat: ChatFormat) -> Engine:
        if self._own.engine == "scripted":
            return ScriptedEngine(chat, self._oracle, self._own.max_context_tokens)
        from agentpeft.policies.engines.transformers.start import start_transformers

        return start_transformers(settings, base, chat)

    async def _play_all(self, groups: Sequence[OpenGroup]) -> None:
        seats = [Seat(g, sample) for g in groups for sample in range(g.request.num_episodes)]
        num_players = min(self._own.max_concurrent_episodes, len(seats))
        queue = iter(seats)
        players = [asyncio.ensure_future(self._play(queue)) for _ in range(num_players)]
        try:
            await asyncio.gather(*players)
        finally:
            for player in players:
                player.cancel()
            await asyncio.gather(*players, return_exceptions=True)

    async def _play(self, seats: Iterator[Seat]) -> None:
        """Plays one episode after another.

        Closing a session and opening the next is one step, so that a deterministic engine never
        sees a moment between the two.
        """
        closed: list[str] = []
        try:
            for seat in seats:
                if not seat.group.is_dropped:
                    self._engine.update_sessions(opened=[seat.session], closed=closed)
                    closed = [seat.session]
                    await self._play_or_drop(seat)
        finally:
            self._engine.update_sessions(closed=closed)

    async def _play_or_drop(self, seat: Seat) -> None:
        """Plays an episode, again where the world fails, and in the end without its group."""
        for attempt in range(self._settings.fault_tolerance.max_episode_retries + 1):
            if attempt:
                self._counts["retries"] += 1
                self._engine.update_sessions(opened=[seat.session], closed=[seat.session])
            try:
                episode = await self._play_episode(seat, attempt)
            except EnvironmentBugError as bug:
                raise EnvironmentBugError(self._describe(seat, bug)) from bug
            except EnvFault as fault:
                self._counts["faults"] += 1
                self._last_fault = self._describe(seat, fault)
                logger.warning("attempt %d: %s", attempt + 1, self._last_fault)
            else:
                if episode is not None:
                    seat.group.episodes[seat.sample] = episode
                return
        seat.group.is_dropped = True
        logger.warning("the group of %s is dropped: its environment keeps failing", seat.session)

    def _describe(self, seat: Seat, fault: Exception) -> str:
        place = f"environment {self._settings.environment.id}, task {seat.group.task.task_id!r}"
        return f"{place}, episode {seat.session}: {fault}"

    async def _play_episode(self, seat: Seat, attempt: int) -> EpisodeBuilder | None:
        """Plays one episode; None if the engine was too slow for it.

        Another attempt samples other actions: the same ones might make the world fail again.
        The agent is not to blame for slow service: nothing is learnt from such an episode, which
        leaves its group and is counted. Raises: EnvFault, and then its environment is gone.
        """
        request, task = seat.group.request, seat.group.task
        pool = self._pool_of(request)
        env, prompt = await self._lanes.call(partial(pool.begin, request.group_id, task))
        if self._own.engine == "scripted":
            self._oracle[seat.session] = oracle_actions(env, task)
        episode = seat.group.begin(prompt, self._chat)
        deadline_s = asyncio.get_running_loop().time() + self._own.episode_timeout_s
        complete = partial(self._complete, seat, attempt, deadline_s)
        try:
            agent = EngineAgent(episode, self._chat, complete)
            episode.end(env, await play_episode(env, agent, self._lanes.call))
        except _SlowEngineError:
            pool.give_back(env)
            self._counts["slow"] += 1
            limit = f"env_runners.episode_timeout_s {self._own.episode_timeout_s:g}"
            self._last_fault = f"episode {seat.session}: the engine took longer than {limit}"
            return None
        except EnvFault as fault:
            if not isinstance(fault, LaneHang):  # a hanging one is its thread's
                await self._lanes.call(partial(pool.discard, env))
            raise EnvFault(f"turn {episode.num_turns}: {fault}") from fault
        except EnvironmentBugError as bug:
            raise EnvironmentBugError(f"turn {episode.num_turns}: {bug}") from bug
        pool.give_back(env)
        return episode

    def _make_request(self, episode: EpisodeBuilder, seat: Seat, attempt: int) -> GenerationRequest:
        request = seat.group.request
        is_shared = request.num_episodes > 1 and episode.context is seat.group.prompt_ids
        stream, turn = _STREAMS[request.mode], episode.num_turns
        seed = (self._settings.seed, stream, request.group_id, seat.sample, turn)
        return GenerationRequest(
            session=seat.session,
            prompt_ids=episode.context,
            seed=(*seed, attempt) if attempt else seed,
            temperature=0.0 if request.is_greedy else self._own.temperature,
            max_new_tokens=self._own.max_new_tokens,
            prefix=seat.group.name if is_shared else None,
            adapter_version=self._version,
        )

    async def _complete(
        self, seat: Seat, attempt: int, deadline_s: float, episode: EpisodeBuilder
    ) -> Completion:
        """Samples an episode's next turn. Raises: _SlowEngineError where its time is over."""
        request = self._make_request(episode, seat, attempt)
        self._engine_clock.begin()
        try:
            async with asyncio.timeout_at(deadline_s):
                completion = await self._engine.generate(request)
        except TimeoutError:
            raise _SlowEngineError from None
        finally:
            self._engine_clock.end()
        self._counts["cut"] += completion.stop_reason is StopReason.MAX_NEW_TOKENS
        if completion.adapter_version != self._version:
            raise EngineError(
                f"the engine served adapter version {completion.adapter_version}, not "
                f"{self._version}, in the middle of a group"
            )
        return completion

    def _report(
        self, groups: Sequence[OpenGroup], kept: Sequence[OpenGroup], total_s: float
    ) -> SampleReport:
        has_messages = self._settings.output.episodes
        played = [episode for group in groups for episode in group.episodes.values()]
        return SampleReport(
            records=tuple(r for g in kept for r in g.to_records(self._version, has_messages)),
            adapter_versions=(self._version,) * len(kept),
            task_hashes={g.request.group_id: content_hash(g.task) for g in kept},
            dropped_group_ids=tuple(g.request.group_id for g in groups if g.is_dropped),
            num_faults=self._counts["faults"],
            last_fault=self._last_fault,
            num_retries=self._counts["retries"],
            num_slow_episodes=self._counts["slow"],
            num_cut_turns=self._counts["cut"],
            num_sampled_tokens=sum(episode.num_sampled_tokens for episode in played),
            total_s=total_s,
            engine_s=self._engine_clock.busy_s,
            env_s=self._lanes.clock.busy_s,
        )
