"""A remote environment's tasks, as far as a client knows them, and their sources."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from agentpeft.apps.serve.client.messages import (
    read_field,
    read_random_state,
    write_random_state,
)
from agentpeft.envs.core.errors import EnvFault, SettingsError, shown
from agentpeft.envs.tasks.task import Task, content_hash
from agentpeft.envs.tasks.taskset import Taskset

Ask = Callable[..., dict[str, Any]]
"""Puts a question to the server, by its name and its arguments, and returns the answer."""


@dataclass(frozen=True, kw_only=True)
class RemoteTask(Task):
    """A task of a server. `content` is its hash on the server, which refuses another."""

    content: str

    @classmethod
    def read(cls, answer: object) -> "RemoteTask":
        """Returns the task of a server's answer. Raises: EnvFault if that is none."""
        if not isinstance(answer, dict):
            raise EnvFault(f"the server told of no task: {shown(answer)}")
        return cls(
            task_id=read_field(answer, "task_id", str),
            instruction=read_field(answer, "instruction", str),
            skills=tuple(map(str, read_field(answer, "skills", list))),
            content=read_field(answer, "content", str),
        )


class RemoteTasks:
    """The endless tasks of a server's generator: a state draws the same task as there."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def draw(self, rng: np.random.Generator) -> RemoteTask:
        """Returns the task that the server's own source draws with `rng`. Raises: EnvFault."""
        answer = self._ask("draw", random_state=write_random_state(rng))
        try:
            state = read_random_state(read_field(answer, "random_state", dict))
        except SettingsError as error:
            raise EnvFault(f"the server answered with {error}") from error
        rng.bit_generator.state = state.bit_generator.state
        return RemoteTask.read(answer.get("task"))

    def get(self, task_id: str) -> RemoteTask:
        """Returns the task of that id. Raises: UnknownTaskError, EnvFault."""
        return RemoteTask.read(self._ask("task", task_id=task_id).get("task"))


class RemoteTaskset(Taskset[RemoteTask]):
    """All tasks of a server's taskset, asked for when one is first needed."""

    def __init__(self, ask: Ask, name: str) -> None:
        """`name` is the taskset's on the server."""
        self._ask, self.name = ask, name

    @cached_property
    def _tasks(self) -> tuple[RemoteTask, ...]:  # type: ignore[override]
        return tuple(map(RemoteTask.read, read_field(self._ask("tasks"), "tasks", list)))

    @cached_property
    def _by_id(self) -> dict[str, RemoteTask]:  # type: ignore[override]
        return {task.task_id: task for task in self._tasks}


def get_content(task: Task) -> str:
    """Returns the hash by which a server knows a task, remote or local."""
    return task.content if isinstance(task, RemoteTask) else f"{content_hash(task):016x}"
