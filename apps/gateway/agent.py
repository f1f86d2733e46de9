"""`Gateway`: the agent that plays an episode by running a program of the user's.

    env runner ── play(env, episode) ─▶ OpenEpisode, a key ─▶ the program, with the key and the URLs
                       GatewayServer ◀── /v1/chat/completions, /env/step ──┘
                       OpenEpisode ─▶ the runner's engine, the environment

The environment grades as it grades our own loop, and the tokens that were sampled are learnt from.
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field, HttpUrl, ValidationError

from agentpeft.apps.gateway.conversations import RequestChat, RequestTools
from agentpeft.apps.gateway.open_episode import OpenEpisode
from agentpeft.apps.gateway.program import Ended, FreshProcesses, ServerPool
from agentpeft.apps.gateway.server import GatewayServer
from agentpeft.apps.gateway.wire import ChatRequest, Json, Refused
from agentpeft.envs import EnvFault, Outcome, SettingsError
from agentpeft.envs.tools.tool_table import find_tools
from agentpeft.policies.engines.outside_agent import Call, Complete
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.environments import Env
from agentpeft.policies.rollout.episodes import EpisodeBuilder
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.section import Count, Section
from agentpeft.policies.settings.wrong_settings import describe_wrong

logger = logging.getLogger(__name__)
_GRACE_S = 5.0
"""How long a program may take to end once its episode is over."""
_MAX_TOOL_CHATS = 64
_NUM_TRIED = 8
"""So many programs that fail before they have asked for anything are a wrong command."""


class GatewayOptions(Section):
    """What `env_runners.agent` may say beside its class. Either `command` or `url` plays."""

    command: str | None = None
    """A program, and its arguments."""
    url: Sequence[HttpUrl] = ()
    """Servers that play."""
    folder: str | None = None
    """Where the command runs."""
    timeout_s: Annotated[float, Field(gt=0)] = 300.0
    """A program that takes longer is ended."""
    max_requests: Count = 256
    """Turns that an episode may have."""
    posts_reward: bool = False
    """The program gives the reward, not the environment."""


class Gateway:
    """Plays each episode by a program, in a fresh process or on one of a pool of servers."""

    def __init__(self, settings: Settings, chat: ChatFormat | None, **options: object) -> None:
        """`options`: see `GatewayOptions`. Raises: SettingsError."""
        try:
            self._options = said = GatewayOptions.model_validate(options)
        except ValidationError as error:
            raise SettingsError(f"env_runners.agent: {describe_wrong(error)}") from None
        if said.timeout_s >= settings.env_runners.episode_timeout_s:
            raise SettingsError("agent.timeout_s must be below env_runners.episode_timeout_s")
        command = said.command
        if (not command) == (not said.url):
            raise SettingsError("env_runners.agent: set command, or url, and not both")
        self._programs = FreshProcesses(command, said.folder) if command else ServerPool(said.url)
        self._settings, self._chat = settings, chat
        self._open_tool_chat = lru_cache(_MAX_TOOL_CHATS)(self._make_tool_chat)
        self._server: GatewayServer | None = None
        self._num_failed, self._has_asked = 0, False

    async def play(
        self, env: Env, episode: EpisodeBuilder, complete: Complete, call: Call
    ) -> Outcome | None:
        """Plays an episode; see `OutsideAgent`."""
        if self._server is None:
            self._server = GatewayServer(self._find_chat)
        posts_reward, most = self._options.posts_reward, self._options.max_requests
        opened = OpenEpisode(env, episode, complete, call, most, posts_reward=posts_reward)
        task = episode.messages[-1][1]
        program = asyncio.create_task(self._programs.run(self._server.tell(opened), task))
        outcome = Outcome.TIMEOUT
        try:
            waited: set[asyncio.Future[Any]] = {program, opened.stopped}
            await asyncio.wait(
                waited, timeout=self._options.timeout_s, return_when="FIRST_COMPLETED"
            )
            if opened.stopped.done():
                await asyncio.wait({program}, timeout=_GRACE_S)
            ended = program.result() if program.done() else None
            self._warn(opened, ended)
            if ended is not None:
                outcome = await self._take(opened, ended)
        except EnvFault:
            await asyncio.sleep(self._programs.pause_s)
            raise
        finally:
            program.cancel()
            await asyncio.wait({program}, timeout=2 * _GRACE_S)
            del self._server.episodes[opened.key]
            await opened.close()  # whoever has the environment next, has it alone
        opened.give_up(outcome)
        # What is shown of the episode is its longest conversation
        shown = max((episode, *episode.branches), key=lambda builder: len(builder.messages))
        episode.messages = shown.messages
        return opened.outcome

    async def close(self) -> None:
        """Ends the server."""
        if self._server is not None:
            await self._server.close()

    async def _take(self, opened: OpenEpisode, ended: Ended) -> Outcome:
        """Returns how an episode ends whose program has ended, if it is not over.

        What a program prints that has not acted is its action.
        """
        has_acted = opened.num_steps > 0 or self._options.posts_reward
        if ended.output.strip() and not ended.problem and not has_acted:
            with suppress(Refused):  # it is over
                await opened.step(ended.output.removesuffix("\n"))
        return Outcome.CONTEXT_LIMIT if opened.is_full else Outcome.INVALID_ACTION

    def _warn(self, opened: OpenEpisode, ended: Ended | None) -> None:
        """Logs what was wrong with a program. Raises: SettingsError where none has done a thing."""
        self._has_asked |= opened.num_requests > 0
        if ended is None and opened.outcome is None and not opened.stopped.done():
            logger.warning("a program was not over after timeout_s %g", self._options.timeout_s)
        if ended is None or not ended.problem:
            return
        logger.warning("a program %s", ended.problem)
        self._num_failed += 1
        if not self._has_asked and self._num_failed >= _NUM_TRIED:
            raise SettingsError(
                f"env_runners.agent: the first {_NUM_TRIED} programs failed before they had asked "
                f"the model for anything; the last one {ended.problem}"
            )

    def _find_chat(self, request: ChatRequest) -> ChatFormat:
        """Returns how the model reads and writes a request's tools. Raises: Refused."""
        assert self._chat is not None  # noqa: S101 (None only where settings are checked)
        tools: Sequence[Json] = request.tools
        if not tools and self._settings.model.tool_calls:
            tools = find_tools(self._settings.environment.id).to_openai()
        return self._open_tool_chat(self._chat, json.dumps(tools)) if tools else self._chat

    def _make_tool_chat(self, plain: ChatFormat, tools: str) -> RequestChat:
        stops, table = plain.stop_token_ids, RequestTools(json.loads(tools))
        try:
            chat = RequestChat(plain.tokenizer, self._settings.model, table, stops)
        except SettingsError as error:
            raise Refused(400, f"tools: {error}") from None
        chat.max_context_tokens = plain.max_context_tokens
        return chat
