"""Agents that are not our own loop: they play an env runner's episodes through its engine.

`env_runners.agent` names the class of one. `apps/gateway` has one that runs a program of the user's
for each episode.
"""

from collections.abc import Awaitable, Callable
from inspect import signature
from typing import Any, Protocol

from agentpeft.envs import Outcome
from agentpeft.envs.core.errors import SettingsError, import_user_class, shown
from agentpeft.policies.messages import Completion
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.environments import Env
from agentpeft.policies.rollout.episodes import EpisodeBuilder
from agentpeft.policies.settings.config import Settings


class OutsideAgent(Protocol):
    """Plays many episodes at once, all in one event loop."""

    async def play(
        self,
        env: Env,
        episode: EpisodeBuilder,
        complete: Callable[[EpisodeBuilder], Awaitable[Completion]],
        call: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> Outcome | None:
        """Plays an episode, for which `env` has been reset, and returns how it ended.

        Turns and rewards are added to `episode`, which begins with what `env` said. `complete`
        samples the next turn of one of its conversations, one at a time; `call` carries out a call
        of `env`. None: the context is full. Raises: EnvFault where the world failed, so that the
        episode is played again, and what `complete` and `call` raise.
        """
        ...

    async def close(self) -> None:
        """Frees what it holds; no episode is played afterwards."""
        ...


def find_agent(settings: Settings) -> Callable[..., OutsideAgent]:
    """Returns the class that the settings name, of which nothing is made. Raises: SettingsError."""
    kwargs = dict(settings.env_runners.agent)
    name = kwargs.pop("class", None)
    if not isinstance(name, str):
        raise SettingsError(f"env_runners.agent.class must be module:Class, got {shown(name)}")
    try:
        kind: Callable[..., OutsideAgent] = import_user_class(name)
        signature(kind).bind(settings, None, **kwargs)
    except (SettingsError, TypeError) as error:
        raise SettingsError(f"env_runners.agent {name!r}: {error}") from error
    return kind


def make_agent(settings: Settings, chat: ChatFormat) -> OutsideAgent:
    """Returns the settings' agent, which reads and writes by `chat`. Raises: SettingsError."""
    kwargs = {name: value for name, value in settings.env_runners.agent.items() if name != "class"}
    return find_agent(settings)(settings, chat, **kwargs)
