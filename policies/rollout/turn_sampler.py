"""`TurnSampler`: how the turns of an env runner's episodes are sampled while adapters come and go.

For an engine of one version new turns are held back while an adapter is loaded, until those under
way have ended. With `in_flight_updates` these are interrupted, and continue with the new adapter
after the tokens that they have, each of which keeps the version that sampled it. An engine that
cannot be interrupted is waited for.
"""

import asyncio
from collections.abc import Sequence

import numpy as np

from agentpeft.policies.engines.protocol import Engine
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import Completion, GenerationRequest, StopReason
from agentpeft.policies.rollout.environments import EVAL_STREAM, TRAIN_STREAM
from agentpeft.policies.rollout.episodes import EpisodeBuilder
from agentpeft.policies.rollout.taken_groups import OpenGroup
from agentpeft.policies.settings.config import Settings

_STREAMS = {"train": TRAIN_STREAM, "eval": EVAL_STREAM}


class AbandonedEpisodeError(Exception):
    """An episode's time is over, or its group has become too old to be learnt from."""


class TurnSampler:
    """Asks an engine for turns; `version` is the newest that it serves. Of one event loop."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self._settings, self._limits, self._engine = settings, settings.env_runners, engine
        self.version = 0
        self._num_turns = 0
        self._may_sample, self._is_quiet = asyncio.Event(), asyncio.Event()
        self._may_sample.set()
        self._is_quiet.set()

    async def hold(self) -> None:
        """Lets no turn begin or continue, and returns once none is under way."""
        self._may_sample.clear()
        if self._settings.in_flight_updates:
            self._engine.interrupt()
        await self._is_quiet.wait()

    async def release(self) -> None:
        """Lets turns begin and continue."""
        self._may_sample.set()

    async def sample(
        self,
        group: OpenGroup,
        sample: int,
        attempt: int,
        deadline_s: float,
        episode: EpisodeBuilder,
    ) -> Completion:
        """Samples the next turn of an episode. Raises: AbandonedEpisodeError, EngineError."""
        parts: list[Completion] = []
        try:
            async with asyncio.timeout_at(deadline_s):
                while not parts or parts[-1].stop_reason is StopReason.INTERRUPTED:
                    while not self._may_sample.is_set():
                        await self._may_sample.wait()
                    self._num_turns += 1
                    self._is_quiet.clear()
                    try:
                        parts.append(await self._generate(group, sample, attempt, episode, parts))
                    finally:
                        self._num_turns -= 1
                        if self._num_turns == 0:
                            self._is_quiet.set()
        except TimeoutError:
            group.counts.num_slow_episodes += 1
            limit = f"env_runners.episode_timeout_s {self._limits.episode_timeout_s:g}"
            group.last_fault = f"episode {group.name_session(sample)} was not over after {limit}"
            raise AbandonedEpisodeError from None
        group.counts.num_interruptions += len(parts) - 1
        group.counts.num_cut_turns += parts[-1].stop_reason is StopReason.MAX_NEW_TOKENS
        return join_parts(parts)

    async def _generate(
        self,
        group: OpenGroup,
        sample: int,
        attempt: int,
        episode: EpisodeBuilder,
        parts: Sequence[Completion],
    ) -> Completion:
        """Samples a turn, or what is left of it after `parts`, to its end or an interruption."""
        if group.is_left_out:
            raise AbandonedEpisodeError
        if group.version is None or self._settings.in_flight_updates:
            group.version = self.version
        sampled = [part.token_ids for part in parts if len(part.token_ids)]
        played = group.request
        is_shared = played.num_episodes > 1 and episode.num_turns == 0
        is_greedy = played.mode == "eval" and played.num_episodes == 1
        seed = self._settings.seed, _STREAMS[played.mode], played.group_id, sample
        later = (attempt, len(parts)) if parts else (attempt,) if attempt else ()
        request = GenerationRequest(
            session=group.name_session(sample),
            prompt_ids=np.concatenate([episode.context, *sampled]) if sampled else episode.context,
            seed=(*seed, episode.first_turn + episode.num_turns, *later),
            temperature=0.0 if is_greedy else self._limits.temperature,
            max_new_tokens=self._limits.max_new_tokens - sum(map(len, sampled)),
            prefix=group.name if is_shared and not sampled else None,
            adapter_version=group.version if self._engine.num_versions > 1 else self.version,
        )
        try:
            completion = await self._engine.generate(request)
        except EngineError:
            if group.is_left_out:  # its session was closed
                raise AbandonedEpisodeError from None
            raise
        if (served := completion.adapter_version) != (wanted := request.adapter_version):
            raise EngineError(f"the engine served adapter version {served}, not {wanted}")
        return completion


def join_parts(parts: Sequence[Completion]) -> Completion:
    """Returns the parts of a turn as one completion, of the last one's version."""
    if len(parts) == 1:
        return parts[0]
    versions = [np.full(len(part.token_ids), part.adapter_version) for part in parts]
    return Completion(
        token_ids=np.concatenate([part.token_ids for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        stop_reason=parts[-1].stop_reason,
        adapter_version=parts[-1].adapter_version,
        token_versions=np.concatenate(versions),
    )
