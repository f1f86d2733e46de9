"""`TurnSampler`: how the turns of an env runner's episodes are sampled while adapters come and go.

An engine of one version holds new turns back while an adapter is loaded, and waits for those under
way. With `in_flight_updates` it does not wait: they are interrupted, and go on with the new adapter
after the tokens that they have, each of which keeps the version that sampled it; keys and values of
the older adapter are computed anew. An engine that cannot be interrupted is waited for.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import numpy as np

from agentpeft.policies.engines.protocol import Engine, InterruptibleEngine
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import Completion, GenerationRequest, Ids, StopReason
from agentpeft.policies.rollout.env_threads import BusyClock
from agentpeft.policies.rollout.environments import EVAL_STREAM, TRAIN_STREAM
from agentpeft.policies.rollout.episodes import EpisodeBuilder
from agentpeft.policies.rollout.taken_groups import EpisodeRequest
from agentpeft.policies.settings.config import Settings

_STREAMS = {"train": TRAIN_STREAM, "eval": EVAL_STREAM}


class TurnGate:
    """Turns pass while it is open; closing it waits for those under way. Of one event loop."""

    def __init__(self) -> None:
        self._num_turns = 0
        self._changed = asyncio.Condition()
        self._is_open = True

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Holds a turn, once the gate is open."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_open)
            self._num_turns += 1
        try:
            yield
        finally:
            self._num_turns -= 1
            if not self._is_open:
                async with self._changed:
                    self._changed.notify_all()

    async def close(self, hurry: Callable[[], None] | None = None) -> None:
        """Lets no turn begin, and returns when none is under way; `hurry` is to end these soon."""
        async with self._changed:
            self._is_open = False
            if hurry is not None:
                hurry()
            await self._changed.wait_for(lambda: self._num_turns == 0)

    async def open(self) -> None:
        """Lets turns begin."""
        async with self._changed:
            self._is_open = True
            self._changed.notify_all()


class SlowEpisodeError(Exception):
    """An episode's time was over before its next turn was sampled."""


class StaleGroupError(Exception):
    """An episode's group has become too old to be learnt from."""


class TurnSampler:
    """Asks an engine for turns. `version` is the adapter's that it serves newest.

    Its methods run in one event loop; `clock` counts the seconds in which the engine was asked.
    """

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self._settings, self._own, self._engine = settings, settings.env_runners, engine
        self._interrupt: Callable[[], None] | None = None
        if settings.in_flight_updates and isinstance(engine, InterruptibleEngine):
            self._interrupt = engine.interrupt
        self._gate = TurnGate()
        self.clock = BusyClock()
        self.version = 0

    async def hold(self) -> None:
        """Lets no turn begin or go on, and returns once none is under way."""
        await self._gate.close(self._interrupt)

    async def release(self) -> None:
        """Lets turns begin and go on."""
        await self._gate.open()

    async def sample(
        self, wanted: EpisodeRequest, attempt: int, deadline_s: float, episode: EpisodeBuilder
    ) -> Completion:
        """Samples an episode's next turn.

        Raises: SlowEpisodeError where its time is over, StaleGroupError where its group is stale,
        EngineError.
        """
        parts: list[Completion] = []
        try:
            async with asyncio.timeout_at(deadline_s):
                while not parts or parts[-1].stop_reason is StopReason.INTERRUPTED:
                    async with self._gate.turn():
                        parts.append(await self._generate(wanted, attempt, episode, parts))
        except TimeoutError:
            raise SlowEpisodeError from None
        counts = wanted.group.counts
        counts["interruptions"] += len(parts) - 1
        counts["cut"] += parts[-1].stop_reason is StopReason.MAX_NEW_TOKENS
        return join_parts(parts)

    def _make_request(
        self,
        episode: EpisodeBuilder,
        wanted: EpisodeRequest,
        attempt: int,
        parts: Sequence[Completion],
    ) -> GenerationRequest:
        group, request = wanted.group, wanted.group.request
        is_shared = request.num_episodes > 1 and episode.context is group.prompt_ids
        seed = self._settings.seed, _STREAMS[request.mode], request.group_id, wanted.sample
        if group.version is None or self._settings.in_flight_updates:
            group.version = self.version
        sampled = [part.token_ids for part in parts if len(part.token_ids)]
        later = (attempt, len(parts)) if parts else (attempt,) if attempt else ()
        return GenerationRequest(
            session=wanted.session,
            prompt_ids=np.concatenate([episode.context, *sampled]) if sampled else episode.context,
            seed=(*seed, episode.num_turns, *later),
            temperature=0.0 if request.is_greedy else self._own.temperature,
            max_new_tokens=self._own.max_new_tokens - sum(map(len, sampled)),
            prefix=group.name if is_shared and not sampled else None,
            adapter_version=group.version if self._engine.num_versions > 1 else self.version,
        )

    async def _generate(
        self,
        wanted: EpisodeRequest,
        attempt: int,
        episode: EpisodeBuilder,
        parts: Sequence[Completion],
    ) -> Completion:
        """Samples a turn, or what is left of one after `parts`, up to its end or interruption."""
        if wanted.group.is_stale:
            raise StaleGroupError
        request = self._make_request(episode, wanted, attempt, parts)
        self.clock.begin()
        try:
            completion = await self._engine.generate(request)
        except EngineError:
            if wanted.group.is_stale:  # its session was closed
                raise StaleGroupError from None
            raise
        finally:
            self.clock.end()
        if completion.adapter_version != request.adapter_version:
            raise EngineError(
                f"the engine served adapter version {completion.adapter_version}, not "
                f"{request.adapter_version}, in the middle of a group"
            )
        return completion


def join_parts(parts: Sequence[Completion]) -> Completion:
    """Returns the parts of a turn as one completion, of the version of the last."""
    if len(parts) == 1:
        return parts[0]
    versions = [np.full(len(part.token_ids), part.adapter_version) for part in parts]
    joined: Ids = np.concatenate(versions)
    return Completion(
        token_ids=np.concatenate([part.token_ids for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        stop_reason=parts[-1].stop_reason,
        adapter_version=parts[-1].adapter_version,
        token_versions=joined,
    )
