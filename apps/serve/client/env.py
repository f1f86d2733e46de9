"""`AgentPEFT/Remote-v0`: an environment that runs on a server."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

from agentpeft.apps.serve.client.connection import Connection, RemoteError, ServerGoneError
from agentpeft.apps.serve.client.links import Links, sharing_links
from agentpeft.apps.serve.client.messages import PROTOCOL, read_field, read_reward
from agentpeft.apps.serve.client.servers import Servers, Urls
from agentpeft.apps.serve.client.tasks import RemoteTasks, RemoteTaskset, get_content
from agentpeft.envs.core.errors import (
    EnvFault,
    SettingsError,
    check_duration,
    check_path,
    shown,
)
from agentpeft.envs.core.rewards import Episode, Outcome, RewardConfig
from agentpeft.envs.core.spaces import to_utf8
from agentpeft.envs.core.text_env import EpisodeOptions, TextEnv, Turn
from agentpeft.envs.core.vector import TextVectorEnv
from agentpeft.envs.registration import get_env_name
from agentpeft.envs.tasks.task import Task, TaskSource


class RemoteEnv(TextEnv[Task]):
    """An environment of a server that `agentpeft serve` has started.

    Description:
        What the server's environment says and does: its prompts, tasks, rewards, outcomes and
        limits. The same seed gives the same task as there. A task is known by its id, its
        instruction and its skills; its solution stays on the server, unless that shows the oracle.

    Action Space:
        Text, as long as on the server.

    Observation Space:
        Text, as long as on the server.

    Rewards:
        The server's.

    Episode End:
        As on the server. Where the server is gone, an answer takes too long or a token is wrong,
        `EnvFault` is raised: the episode is over, without an outcome, and is never gone on with.
        The next reset reconnects, to another server if there are several.

    Arguments:
        url: `http://host:8000` or `https://…`; or a list of such; or a mapping to weights.
        env_id: which of the server's environments; None is its first one.
        token: the bearer token; None is what `AGENTPEFT_TOKEN` says, if anything.
        ca_file: certificates (PEM) to trust besides the system's, for https.
        connect_s: how long connecting to one server may take.
        timeout_s: how long an answer may take.
        options: arguments of the environment, as far as the server lets clients set them.

    Version History:
        v0: first version.
    """

    has_waiting_steps = True

    def __init__(
        self,
        url: Urls,
        env_id: str | None = None,
        token: str | None = None,
        *,
        ca_file: str | None = None,
        connect_s: float = 10.0,
        timeout_s: float = 300.0,
        **options: Any,
    ) -> None:
        """Connects. Raises: SettingsError, DataError, EnvFault."""
        check_duration("connect_s", connect_s)
        check_duration("timeout_s", timeout_s)
        check_path("ca_file", ca_file)
        for name, value in (("env_id", env_id), ("token", token)):
            if value is not None and (not isinstance(value, str) or not value):
                raise SettingsError(f"{name} must be a text or None, got {shown(value)}")
        self._servers = Servers(url, f"{get_env_name(env_id)}/ws" if env_id else "ws")
        self._token, self._ca_file = token, ca_file
        self._connect_s, self._timeout_s = connect_s, timeout_s
        self._links = Links.shared()
        render_mode = options.pop("render_mode", None)
        self._env_kwargs = _check_kwargs(options)
        self._connection: Connection | None = None
        self._playing: Connection | None = None
        self._description: dict[str, Any] = {}
        connection = self._open()
        with ExitStack() as on_error:
            on_error.callback(connection.close)
            has_taskset = self._description.get("tasks_name") is not None
            source: TaskSource[Task] = RemoteTasks(self._ask)
            if has_taskset:
                name = read_field(self._description, "tasks_name", str)
                source = RemoteTaskset(self._ask, name)
            super().__init__(source, self._episode_options(render_mode))
            on_error.pop_all()
        self._connection = connection

    def __getstate__(self) -> dict[str, Any]:
        """Returns all but the session. Raises: ClosedEnvironmentError."""
        left_out = {"_connection": None, "_playing": None, "_links": None}
        return {**super().__getstate__(), **left_out}

    def oracle_actions(self, task: Task) -> Sequence[str]:
        """Returns how a perfect agent acts. Raises: SettingsError where the server does not say."""
        answer = self._ask("oracle", task_id=task.task_id, content=get_content(task))
        return [str(action) for action in read_field(answer, "actions", list)]

    def _begin(self, task: Task) -> str:
        wanted = {"task_id": task.task_id, "content": get_content(task), "info": True}
        self._playing = None
        data = self._asking(lambda connection: connection.ask("reset", wanted))
        self._playing = self._connection
        return _read_text(data)

    def _checked_act(self, action: str) -> Turn:
        """Sends an action unchecked, cut one character above the limit: the server refuses it."""
        return self._act(action[: self.config.max_action_chars + 1])

    def _act(self, action: str) -> Turn:
        data = self._episode_connection().ask("step", {"text": to_utf8(action)})
        info = read_field(read_field(data, "metadata", dict), "info", dict)
        is_valid_action = read_field(info, "is_valid_action", bool)
        try:
            outcome = Outcome(read_field(info, "outcome", str))
        except ValueError as error:
            raise EnvFault(f"the server answered {shown(info)}, no known outcome") from error
        return Turn(_read_text(data), outcome, read_reward(data), is_valid_action)

    def _release(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _episode_options(self, render_mode: str | None) -> EpisodeOptions:
        """Returns settings by which the local loop adds nothing to the server's."""
        return EpisodeOptions(
            max_turns=read_field(self._description, "max_turns", int),
            max_action_chars=read_field(self._description, "max_action_chars", int),
            max_observation_chars=read_field(self._description, "max_observation_chars", int),
            reward=RewardConfig(success=0.0, reward_fn=self._final_reward),
            render_mode=render_mode,
        )

    def _final_reward(self, episode: Episode) -> float:
        """Returns 0, as the server's step has the reward, unless the caller ends the episode."""
        if self.outcome is not Outcome.ONGOING:
            return 0.0
        with self._lock:
            arguments = {"outcome": episode.outcome}
            answer = self._episode_connection().question("final_reward", arguments)
        return read_reward(answer)

    def _episode_connection(self) -> Connection:
        """Returns the session that the episode began in. Raises: EnvFault where it is over."""
        playing = self._playing
        if playing is None or not playing.is_open or playing is not self._connection:
            raise EnvFault("the server is gone, and the episode with it")
        return playing

    def _ask(self, question: str, **arguments: Any) -> dict[str, Any]:
        """Returns a server's answer, also after `close`, which the task source may outlive."""
        with self._lock:
            if not self._is_closed:
                return self._asking(lambda connection: connection.question(question, arguments))
        connection = self._open()
        with closing(connection):
            return connection.question(question, arguments)

    def _asking(self, ask: Callable[[Connection], dict[str, Any]]) -> dict[str, Any]:
        """Returns `ask(connection)`: in the present session, or a new one if that is over.

        Only for questions that may be repeated. Raises: as `Connection.ask`.
        """
        if self._connection is not None and self._connection.is_open:
            try:
                return ask(self._connection)
            except ServerGoneError:  # while nobody looked
                pass
        self._connection = self._open()
        return ask(self._connection)

    def _open(self) -> Connection:
        """Returns a new session with a server. Raises: EnvFault if none lets us in, SettingsError.

        All servers must have the same environment.
        """
        faults = []
        for url in self._servers.in_order():
            try:
                connection = Connection.open(
                    url, self._token, self._ca_file, self._connect_s, self._timeout_s, self._links
                )
                with ExitStack() as on_error:
                    on_error.callback(connection.close)
                    self._compare(_describe(connection, url, self._env_kwargs), url)
                    on_error.pop_all()
            except EnvFault as fault:
                faults.append(str(fault))
            else:
                return connection
        raise EnvFault("; ".join(faults))

    def _compare(self, description: dict[str, Any], url: str) -> None:
        """Keeps the first description. Raises: EnvFault where another one is not the same."""
        self._description = self._description or description
        if description != self._description:
            raise EnvFault(f"{url}: another environment than before: {shown(description)}")


def make_remote(**kwargs: Any) -> TextVectorEnv:
    """Returns copies of a remote environment, whose sessions share a connection to each server."""
    with sharing_links():
        return TextVectorEnv.make("AgentPEFT/Remote-v0", **kwargs)


def _check_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments as they arrive on the server. Raises: SettingsError."""
    try:
        sent: dict[str, Any] = json.loads(json.dumps(kwargs))
    except (TypeError, ValueError) as error:
        raise SettingsError(f"arguments for a server must be JSON: {error}") from error
    return sent


def _describe(connection: Connection, url: str, env_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns a server's description of its environment. Raises: SettingsError, EnvFault."""
    try:
        description = connection.question("describe", {"env_kwargs": env_kwargs})
    except RemoteError as error:
        raise SettingsError(f"{url}: no server of AgentPEFT's ({error})") from error
    if description.get("protocol") != PROTOCOL:
        got = shown(description.get("protocol"))
        raise SettingsError(f"{url}: expected protocol {PROTOCOL} of AgentPEFT's, got {got}")
    return description


def _read_text(data: Mapping[str, Any]) -> str:
    """Returns an observation's text. Raises: EnvFault where there is none."""
    match data.get("observation"):
        case {"text": str() as text}:
            return text
    raise EnvFault(f"the server answered {shown(data)}, no observation")
