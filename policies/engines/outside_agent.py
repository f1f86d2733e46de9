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

Complete = Callable[[EpisodeBuilder], Awaitable[Completion]]
Call = Callable[[Callable[[], Any]], Awaitable[Any]]


class OutsideAgent(Protocol):
    """Plays many episodes at once, all in one event loop."""

    async def play(
        self, env: Env, episode: EpisodeBuilder, complete: Complete, call: Call
    ) -> Outcome | None:
        """Plays the episode that `env` has just begun, and returns how it ended.

        It adds turns and rewards to `episode`. `complete` samples the next turn of a conversation,
        one at a time; `call` calls `env`. None: the context is full. Raises: EnvFault, and what
        these two raise.
        """
        ...

    async def close(self) -> None:
        """Frees what it holds."""
        ...


def make_agent(settings: Settings, chat: ChatFormat | None) -> OutsideAgent:
    """Returns the settings' agent, which reads and writes by `chat`; None: it is not to play.

    Raises: SettingsError.
    """
    kwargs = dict(settings.env_runners.agent)
    name = kwargs.pop("class", None)
    if not isinstance(name, str):
        raise SettingsError(f"env_runners.agent needs class = module:Class, got {shown(name)}")
    try:
        kind: Callable[..., OutsideAgent] = import_user_class(name)
        signature(kind).bind(settings, chat, **kwargs)
    except (SettingsError, TypeError) as error:
        raise SettingsError(f"env_runners.agent {name!r}: {error}") from error
    return kind(settings, chat, **kwargs)
