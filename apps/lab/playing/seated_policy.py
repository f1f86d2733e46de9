"""A policy that plays beside a person: an adapter on its base, as `evaluate` plays it."""

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from agentpeft.apps.lab.playing.episode_view import ShownEpisode
from agentpeft.envs import Task, TextEnv
from agentpeft.launch.evaluating.contest import find_contestants
from agentpeft.launch.evaluating.players import Methods, playing
from agentpeft.launch.run.ending import say_policy
from agentpeft.launch.run.run_folder import find_run, read_start
from agentpeft.policies.checkpointing.checkpoints import CONFIG_FILE
from agentpeft.policies.engines.protocol import Engine
from agentpeft.policies.messages import Completion, GenerationRequest
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.episodes import EngineAgent, EpisodeBuilder
from agentpeft.policies.rollout.play import play_episode
from agentpeft.policies.rollout.scripted_play import begin
from agentpeft.policies.settings.config import Settings

_SESSION = "play"


@dataclass(frozen=True)
class SeatedPolicy:
    """A policy that is ready to play, greedily: one episode at a time, whichever thread asks."""

    name: str
    chat: ChatFormat
    engine: Engine
    max_new_tokens: int
    _turn: Lock = field(default_factory=Lock)

    def play(self, env: TextEnv[Any], task: Task) -> ShownEpisode:
        """Plays an episode of a task. Raises: EnvFault, EngineError."""
        with self._turn:
            return self._play(env, task)

    def _play(self, env: TextEnv[Any], task: Task) -> ShownEpisode:
        prompt = begin(env, task)
        episode = EpisodeBuilder(prompt, self.chat.begin(prompt), self.chat)
        agent = EngineAgent(episode, self.chat, self._complete)
        self.engine.update_sessions(opened=[_SESSION])
        try:
            episode.end(env, asyncio.run(play_episode(env, agent)))
        finally:
            self.engine.update_sessions(closed=[_SESSION])
        return ShownEpisode.of_messages(self.name, episode.messages, episode.to_trajectory())

    async def _complete(self, episode: EpisodeBuilder) -> Completion:
        request = GenerationRequest(
            session=_SESSION,
            prompt_ids=episode.context,
            seed=(0, episode.num_turns),
            temperature=0.0,
            max_new_tokens=self.max_new_tokens,
        )
        return await self.engine.generate(request)


@contextmanager
def open_policy(settings: Settings, path: Path) -> Iterator[SeatedPolicy]:
    """Yields the policy of a run, a checkpoint or an adapter, as `evaluate` plays it.

    It reads and writes as its run says; where it has none, as `settings` say. Raises:
    SettingsError, CheckpointError.
    """
    run_dir = find_run(path)
    if run_dir is not None:
        settings = read_start([str(run_dir / CONFIG_FILE)], []).settings
    (contestant,) = find_contestants(settings, [str(path)], "adapter", [], None, [])
    disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(settings.threads_per_env_runner)
    with playing(settings, contestant, Methods()) as ready, closing(ready.player.engine) as engine:
        limit = settings.env_runners.max_new_tokens
        yield SeatedPolicy(say_policy(contestant.name), ready.player.chat, engine, limit)
