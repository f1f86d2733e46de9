"""`TextSession`: one client's environment, as OpenEnv's server library wants it.

`reset`, `step` and `close` of a session are called one at a time, in a thread but where they take
no time, so that a slow step delays nobody else.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeVar

from gymnasium.error import ResetNeeded
from pydantic import BaseModel, ConfigDict

from agentpeft.apps.drivers.tool_episode import compose_answer
from agentpeft.apps.lab.playing.beside import OtherPlayer, play_others
from agentpeft.apps.serve.client.messages import PROTOCOL, read_random_state, write_random_state
from agentpeft.apps.serve.client.tasks import get_content
from agentpeft.apps.serve.metrics import ServerMetrics
from agentpeft.apps.serve.openenv_types import (
    CallToolAction,
    CallToolObservation,
    Environment,
    EnvironmentMetadata,
    ListToolsObservation,
    State,
    TextAction,
    TextObservation,
    Tool,
)
from agentpeft.envs import (
    EnvFault,
    Outcome,
    RewardConfig,
    SettingsError,
    Task,
    Taskset,
    TextEnv,
)
from agentpeft.envs.core.errors import UnknownTaskError, shown
from agentpeft.envs.core.spaces import to_utf8
from agentpeft.envs.tools.tool_table import ToolCall, find_tools
from agentpeft.policies.errors import EngineError
from agentpeft.policies.rollout.environments import (
    CLOSE_S,
    ENVIRONMENT_ERRORS,
    call_environment,
    close_environments,
)
from agentpeft.policies.rollout.scripted_play import make_text_env

_MAX_BYTES_A_CHARACTER = 12
"""Of an action in JSON: two escaped surrogates, as Python's own `json.dumps` writes an emoji."""
_MAX_REST_BYTES = 4096
"""Of the message around it."""
T = TypeVar("T")


class ServedError(Exception):
    """What a client is told; its text begins with the name of the error, as a client reads it."""

    @classmethod
    def of(cls, error: BaseException) -> "ServedError":
        """Returns another error as one that a client is told."""
        return cls(f"{type(error).__name__}: {error}")


@dataclass(eq=False)
class ServedEnvironment:
    """One environment id as it is served: what all its sessions share.

    `kwargs` are the server's; a client may set those of `client_kwargs` ("*": all) itself.
    `has_oracle`: whether a client may ask how a perfect agent acts. `name` is the id without its
    module; `max_message_bytes` is what the server takes.
    """

    env_id: str
    kwargs: Mapping[str, Any]
    client_kwargs: frozenset[str]
    has_oracle: bool
    metrics: ServerMetrics
    max_message_bytes: int
    name: str
    has_tools: bool = False
    """Whether clients may call the environment's tools; its prompt speaks of them then."""
    policy: OtherPlayer | None = None
    """Who plays a task too, after whoever asks to see it played by others."""
    live: set[TextEnv[Any]] = field(default_factory=set)
    """The environments that are there, for the end of the server to close."""
    has_waiting_steps: bool = False
    """Whether the environment that was made last has, as those to come will."""
    working: "set[TextSession]" = field(default_factory=set)
    """The sessions whose environment is at work."""

    def make(self, client_kwargs: Mapping[str, Any]) -> TextEnv[Any]:
        """Returns a new environment. Raises: SettingsError, DataError, EnvFault."""
        if "*" not in self.client_kwargs:
            for name in client_kwargs:
                if name not in self.client_kwargs:
                    known = ", ".join(sorted(self.client_kwargs)) or "none"
                    raise SettingsError(
                        f"this server lets no client set {shown(name)} (it does: {known}); "
                        "see agentpeft serve --client-kwargs"
                    )
        env = make_text_env(self.env_id, {**self.kwargs, **client_kwargs})
        longest = env.config.max_action_chars * _MAX_BYTES_A_CHARACTER + _MAX_REST_BYTES
        if longest > self.max_message_bytes:  # or an agent could end its session by a long action
            raise SettingsError(
                f"max_action_chars={env.config.max_action_chars} takes --max-message-kib "
                f"{longest // 1024 + 1}, got {self.max_message_bytes // 1024}"
            )
        self.has_waiting_steps = env.has_waiting_steps
        self.live.add(env)
        self.metrics.environments.labels(self.name).inc()
        return env

    def close(self, env: TextEnv[Any]) -> None:
        """Closes an environment, and frees what it holds."""
        if env in self.live:
            self.live.remove(env)
            self.metrics.environments.labels(self.name).dec()
            close_environments([env], CLOSE_S)

    def close_all(self) -> None:
        """Closes the environments that sessions have left behind."""
        left = list(self.live)
        self.live.clear()
        close_environments(left, CLOSE_S)


class _ResetOptions(BaseModel):
    """What a reset may say beside a seed; all of it is optional."""

    model_config = ConfigDict(extra="forbid", strict=True)

    task_id: str | None = None
    content: str | None = None
    info: bool = False
    env_kwargs: dict[str, Any] | None = None


class TextSession(Environment):  # type: ignore[misc]
    """A text environment behind OpenEnv's `reset` and `step`.

    What an agent is shown is the observation's `text`. Its `metadata` is empty, so that a client
    that shows it to a model gives nothing away, unless the reset asked for `info`; then it holds
    the environment's `info`. An action whose `metadata` has `ask` is no turn: it is a question,
    whose answer is the observation's metadata, and the episode does not hear of it.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, served: ServedEnvironment) -> None:
        """Makes no environment before it is needed: the library makes sessions for little."""
        super().__init__()
        self._served = served
        self._env: TextEnv[Any] | None = None
        self._env_kwargs: dict[str, Any] = {}
        self._has_quick_steps = False
        self._has_info = False
        self._played: str | None = None
        self._state = State()

    @property
    def state(self) -> State:
        """The number of steps, and the name that the client gave the episode."""
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        """Returns what `/metadata` tells."""
        return EnvironmentMetadata(
            name=self._served.name,
            description="A text environment of AgentPEFT: text in, text out.",
            version=str(PROTOCOL),
        )

    @property
    def has_tools(self) -> bool:
        """Whether tools can be called, and are listed."""
        return self._served.has_tools

    @property
    def has_quick_steps(self) -> bool:
        """Whether there is an environment, whose episodes take no time."""
        return self._env is not None and self._has_quick_steps

    @property
    def has_waiting_steps(self) -> bool:
        """Whether the environment's steps wait on other processes."""
        return (self._env or self._served).has_waiting_steps

    def reset(
        self, /, seed: int | None = None, episode_id: str | None = None, **options: Any
    ) -> TextObservation:
        """Begins an episode; the observation is its prompt. Raises: ServedError, ValidationError.

        `options`: `task_id` (else one is drawn), `content` (what that task's hash must be), `info`
        and `env_kwargs`, which make the session's environment anew where they differ.
        """
        wanted = _ResetOptions.model_validate(options)
        return self._telling(partial(self._reset, seed, episode_id, wanted))

    def step(
        self,
        action: TextAction,
        timeout_s: float | None = None,  # noqa: ARG002 (OpenEnv's signature)
        **kwargs: Any,  # noqa: ARG002
    ) -> TextObservation:
        """Carries out an action, or answers a question. Raises: ServedError."""
        if "ask" in action.metadata:
            answer = self._telling(partial(self._answer, dict(action.metadata)))
            return TextObservation(text="", metadata=answer)
        return self._telling(partial(self._step, action.text))

    def list_tools(self) -> ListToolsObservation:
        """Returns the environment's tools, before an episode has begun too."""
        return ListToolsObservation(
            tools=[
                Tool(name=tool.name, description=tool.description, input_schema=tool.schema)
                for tool in find_tools(self._served.env_id)
            ]
        )

    def call_tool(self, action: CallToolAction) -> CallToolObservation:
        """Plays a call of a tool as one turn, however malformed it is. Raises: ServedError."""
        return self._telling(partial(self._call_tool, action))

    def _call_tool(self, action: CallToolAction) -> CallToolObservation:
        tools = find_tools(self._served.env_id)
        call = ToolCall(action.tool_name, action.arguments)
        played = self._step(tools.to_action(call))
        answer = compose_answer(played.text, tools.find_problem(call), is_over=played.done)
        return CallToolObservation(
            tool_name=to_utf8(action.tool_name),
            result=to_utf8(answer),
            reward=played.reward,
            done=played.done,
            metadata=played.metadata,
        )

    def close(self) -> None:
        """Frees the environment; idempotent.

        The library calls this on its event loop after a request over HTTP: another thread closes
        then, as it may take a while.
        """
        env, self._env = self._env, None
        if env is None:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._served.close(env)
        else:
            threading.Thread(target=self._served.close, args=[env], daemon=True).start()

    def _telling(self, function: Callable[[], T]) -> T:
        """Returns `function()`. Raises: ServedError in place of what it raises."""
        self._served.working.add(self)
        try:
            return call_environment(function)
        except EnvFault as fault:
            self._served.metrics.faults.labels(self._served.name).inc()
            self.close()  # it may be broken: the next reset makes another
            raise ServedError.of(fault) from fault
        except EngineError as error:
            raise ServedError.of(error) from error
        except ENVIRONMENT_ERRORS as error:
            cause = error.__cause__ if isinstance(error.__cause__, ResetNeeded) else error
            raise ServedError.of(cause) from error
        finally:
            self._served.working.discard(self)

    def _open(self, env_kwargs: dict[str, Any] | None) -> TextEnv[Any]:
        """Returns the session's environment, a new one where its arguments have changed."""
        if env_kwargs is not None and env_kwargs != self._env_kwargs:
            env = self._served.make(env_kwargs)  # before the old one is closed: it may be refused
            self.close()
            self._hold(env, env_kwargs)
        return self._env or self._hold(self._served.make(self._env_kwargs), self._env_kwargs)

    def _hold(self, env: TextEnv[Any], env_kwargs: dict[str, Any]) -> TextEnv[Any]:
        self._env, self._env_kwargs = env, env_kwargs
        self._has_quick_steps = _has_quick_steps(env)
        return env

    def _reset(
        self, seed: int | None, episode_id: str | None, wanted: _ResetOptions
    ) -> TextObservation:
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
            raise SettingsError(f"seed must be an integer >= 0 or null, got {shown(seed)}")
        env = self._open(wanted.env_kwargs)
        task = None if wanted.task_id is None else _get_task(env, wanted.task_id, wanted.content)
        prompt, info = env.reset(seed=seed, options=None if task is None else {"task": task})
        self._has_info, self._played = wanted.info, None
        self._state = State(episode_id=episode_id, step_count=0)
        return TextObservation(text=to_utf8(prompt), metadata=self._metadata(info))

    def _step(self, text: str) -> TextObservation:
        if self._env is None:
            raise ResetNeeded(
                "no episode is going on: reset first, in the same session (over HTTP each request "
                "is a session of its own: play over the WebSocket, /ws)"
            )
        name, metrics = self._served.name, self._served.metrics
        with metrics.timing_step(name):
            observation, reward, terminated, truncated, info = self._env.step(text)
        is_over = terminated or truncated
        if is_over:
            self._played = self._env.task.task_id
            metrics.episodes.labels(name, str(info["outcome"])).inc()
        self._state = State(
            episode_id=self._state.episode_id, step_count=self._state.step_count + 1
        )
        return TextObservation(
            text=to_utf8(observation),
            reward=reward,
            done=is_over,
            metadata=self._metadata(info),
        )

    def _metadata(self, info: Mapping[str, Any]) -> dict[str, Any]:
        return {"info": dict(info)} if self._has_info else {}

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Returns the answer to what is asked beside an episode. Raises: SettingsError, …."""
        ask = question["ask"]
        if ask == "describe":
            return self._describe(self._open(question.get("env_kwargs")))
        env = self._open(None)
        match question:
            case {"ask": "tasks"} if isinstance(env.task_source, Taskset):
                return {"tasks": [_to_json(task) for task in env.task_source]}
            case {"ask": "draw", "random_state": dict() as state}:
                rng = read_random_state(state)
                task = env.task_source.draw(rng)
                return {"task": _to_json(task), "random_state": write_random_state(rng)}
            case {"ask": "task", "task_id": str() as task_id}:
                return {"task": _to_json(env.task_source.get(task_id))}
            case {"ask": "oracle", "task_id": str() as task_id}:
                if not self._served.has_oracle:
                    raise SettingsError("this server shows no oracle; see serve --allow-oracle")
                task = _get_task(env, task_id, question.get("content"))
                return {"actions": list(env.oracle_actions(task))}
            case {"ask": "others", "task_id": str() as task_id}:
                return {"episodes": self._play_others(task_id)}
            case {"ask": "final_reward", "outcome": str() as outcome} if outcome in set(Outcome):
                return {"reward": env.final_reward(Outcome(outcome))}
        raise SettingsError(f"unknown question {shown(question)}")

    def _play_others(self, task_id: str) -> list[dict[str, Any]]:
        """Returns how the oracle and the policy, if they are here, play the task just played.

        Raises: SettingsError of another task, ServedError where an environment fails.
        """
        policy, has_oracle = self._served.policy, self._served.has_oracle
        if policy is None and not has_oracle:
            return []
        if task_id != self._played:
            raise SettingsError("others show how they play a task to who has just played it")
        env = self._served.make(self._env_kwargs)  # a fault of it is not the session's
        try:
            episodes = play_others(
                env, _get_task(env, task_id, None), policy, has_oracle=has_oracle
            )
        except EnvFault as fault:
            raise ServedError.of(fault) from fault
        finally:
            self._served.close(env)
        return [_to_sendable(asdict(episode)) for episode in episodes]

    def _describe(self, env: TextEnv[Any]) -> dict[str, Any]:
        source = env.task_source
        return {
            "protocol": PROTOCOL,
            "env_id": self._served.name,
            "max_turns": env.config.max_turns,
            "max_action_chars": env.config.max_action_chars,
            "max_observation_chars": env.config.max_observation_chars,
            "tasks_name": source.name if isinstance(source, Taskset) else None,
        }


def _has_quick_steps(env: TextEnv[Any]) -> bool:
    """Returns whether an environment's own class says so, and calls nothing that does not.

    A subclass may do more than what it inherits this from, and a reward of one's own too.
    """
    if not env.has_quick_steps or "has_quick_steps" not in vars(type(env)):
        return False
    reward = RewardConfig.build(env.config.reward)
    return reward.reward_fn is None and reward.turn_reward_fn is None


def _to_sendable(value: Any) -> Any:
    """Returns JSON's values with texts that can be sent."""
    match value:
        case str():
            return to_utf8(value)
        case dict():
            return {key: _to_sendable(each) for key, each in value.items()}
        case list() | tuple():
            return [_to_sendable(each) for each in value]
    return value


def _get_task(env: TextEnv[Any], task_id: str, content: object) -> Task:
    """Returns a task by its id. Raises: UnknownTaskError, also where its content is not as told."""
    task: Task = env.task_source.get(task_id)
    if content is not None and content != get_content(task):
        raise UnknownTaskError(f"task {task_id!r} is another one on the server")
    return task


def _to_json(task: Task) -> dict[str, Any]:
    """Returns what a client may know of a task; nothing of its solution."""
    return {
        "task_id": task.task_id,
        "instruction": task.instruction,
        "skills": task.skills,
        "content": get_content(task),
    }
