"""`TrlEnvironment`: an environment that TRL's `GRPOTrainer` plays by tool calls.

Read with TRL 1.16. The trainer renders and parses the calls, so the model's chat template must be
one of those whose tool calls TRL knows. It is also TRL that takes the turns, one `act` at a time,
and not `play_episode`.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, wraps
from typing import Any

from agentpeft.apps.drivers.task_rows import from_rows, is_task_row, to_rows
from agentpeft.apps.drivers.tool_episode import OVER, ToolEpisode, tool_kwargs
from agentpeft.envs import SettingsError, Task
from agentpeft.envs.tools.tool_table import Tool, ToolCall, ToolTable, find_tools
from agentpeft.policies.rollout.environments import Env, EnvPool


def make_rows(
    tasks: int | Iterable[Task], system_prompt: str | None = None
) -> list[dict[str, Any]]:
    """Returns a data set's rows: so many tasks by position, or these tasks, for `TrlEnvironment`.

    A position is in a column and in the message to fill, since TRL gives environments the columns,
    and a `rollout_func` the messages alone. `system_prompt` stands before that message; a
    `TrlRollout` has its own.
    """
    message = {"role": "user", "content": ""}
    before = [{"role": "system", "content": system_prompt}] if system_prompt else []
    if isinstance(tasks, int):
        positions = range(tasks)
        return [{"prompt": [*before, {**message, "position": i}], "position": i} for i in positions]
    return [{"prompt": [*before, message], **row} for row in to_rows(tasks)]


class TrlEnvironment:
    """One environment at a time, for `environment_factory`; its public methods are the tools.

    TRL looks for tools among a class's functions, so that each table of tools has a class of its
    own, below this one. The task is a function of the row (and of the environment's seed, for a
    position), so that a group's episodes are of one task.
    """

    def __new__(cls, env_id: str, *_: object, **__: object) -> "TrlEnvironment":
        """Returns an instance of the class with the environment's tools."""
        return super().__new__(_class_with(find_tools(env_id)))

    def __init__(self, env_id: str, kwargs: dict[str, Any] | None = None, seed: int = 0) -> None:
        """`kwargs` are the environment's settings, its prompt that for tools by default.

        Raises: SettingsError.
        """
        self._pool = EnvPool(env_id, tool_kwargs(env_id, kwargs or {}), (seed,))
        self._env: Env | None = None
        self._episode: ToolEpisode | None = None
        self._next_position = 0

    def reset(
        self,
        position: int | Mapping[str, Any] | None = None,
        *,
        seed: int | None = None,
        task_id: str | None = None,
        **row: object,
    ) -> str:
        """Starts an episode and returns the prompt, which TRL appends to the row's message.

        The task is that of the columns of `to_rows`, of `task_id`, of `position`, or what is drawn
        with `seed`. Other columns are not looked at. A row with none of these stands for the next
        position, from 0 on, so that those who are reset together play one task. Instead of columns
        as arguments, a row may be the only one.

        Raises: SettingsError, DataError, UnknownTaskError, EnvFault.
        """
        if isinstance(position, Mapping):
            return self.reset(**position)
        if self._env is not None and self._episode and self._episode.fault is None:
            self._pool.give_back(self._env)
        self._env = self._episode = None
        self._env, prompt = self._begin(position, seed, task_id, row)
        self._episode = ToolEpisode(self._env)
        return prompt

    def _begin(
        self,
        position: int | None,
        seed: int | None,
        task_id: str | None,
        row: Mapping[str, object],
    ) -> tuple[Env, str]:
        columns = {**row, "task_id": task_id}
        if is_task_row(columns):
            return self._pool.begin_with(seed, from_rows([columns])[0])
        if task_id is not None:
            return self._pool.begin_with(seed, task_id)
        if seed is None:
            if position is None:
                position = self._next_position
            self._next_position = position + 1
            return self._pool.begin(position, self._pool.task_at(position))
        if position is not None:
            raise SettingsError(f"a row has a position or a seed, got {position} and {seed}")
        return self._pool.begin_with(seed)

    def get_reward(self) -> float:
        """Returns the episode's return; one that stopped without a call ends as an invalid action.

        Raises: what an earlier call raised, since TRL would show it to the model and train on it.
        """
        return 0.0 if self._episode is None else self._episode.return_if_stopped()

    def _call(self, tool: Tool, arguments: Mapping[str, object]) -> str:
        """Plays a call of one of the tools. Raises: EnvFault."""
        if self._episode is None:
            return OVER
        return self._episode.call(ToolCall(tool.name, arguments))


@lru_cache
def _class_with(tools: ToolTable) -> type[TrlEnvironment]:
    """Returns the class whose methods are these tools."""
    methods = {tool.name: _method_of(tool) for tool in tools}
    return type(TrlEnvironment.__name__, (TrlEnvironment,), methods)


def _method_of(tool: Tool) -> Callable[..., str]:
    """Returns a method with the tool's docstring and signature, which takes what may be called."""

    @wraps(tool.write)
    def call(self: TrlEnvironment, **arguments: object) -> str:
        return self._call(tool, arguments)

    signature = inspect.signature(tool.write)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    call.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[own, *signature.parameters.values()]
    )
    return call
