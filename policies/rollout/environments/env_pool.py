"""`EnvPool`: the environments of one use (training or evaluation), and their tasks by position."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from agentpeft.envs import (
    DataError,
    EnvFault,
    SettingsError,
    Stage,
    Task,
    Taskset,
    TaskSource,
    TaskStream,
    TextEnv,
    UnknownTaskError,
)
from agentpeft.envs.core.unicode_text import to_utf8
from agentpeft.envs.tasks.taskset import SingleSkillSource
from agentpeft.policies.rollout.environments.environment_calls import (
    Env,
    close_environments,
    make_environment,
)


class EnvPool:
    """Environments that are reused between episodes, each by one episode at a time.

    The task at a position depends on seed and position alone, so all runners agree on it. An
    environment that is no `TextEnv` has no tasks: it is reset with a seed of the position.
    """

    def __init__(
        self,
        env_id: str,
        kwargs: dict[str, Any],
        seed: tuple[int, ...],
        close_timeout_s: float = 60.0,
        source: TaskSource[Task] | None = None,
    ) -> None:
        """Makes the first environment. Raises: SettingsError on bad arguments.

        `close_timeout_s`: how long closing may take before the environments are left as they are.
        `source`: where tasks are drawn from; None is the environment's own task source.
        """
        self._env_id, self._kwargs, self._seed = env_id, kwargs, seed
        self._close_timeout_s = close_timeout_s
        env = make_environment(self._env_id, self._kwargs)
        self._free = [env]
        self._tasks: TaskStream[Task] | None = None
        if isinstance(env.unwrapped, TextEnv):
            source = source or env.unwrapped.task_source
            self._tasks = TaskStream([Stage(env_id, source, sys.maxsize)], self._derive_seed())

    @property
    def has_tasks(self) -> bool:
        """Whether the environment is a `TextEnv`, which has tasks and an oracle."""
        return self._tasks is not None

    @property
    def has_finite_tasks(self) -> bool:
        """Whether the tasks are a fixed set, so that the stream comes back to each."""
        finite = Taskset, SingleSkillSource
        return self._tasks is not None and isinstance(self._tasks.stage.source, finite)

    @property
    def num_tasks(self) -> int | None:
        """The number of tasks in a round, in which each comes once; None where there is no end."""
        source = self._tasks.stage.source if self._tasks is not None else None
        return len(source) if isinstance(source, Taskset) else None

    def task_at(self, position: int) -> Task:
        """Returns the task of a position; for an environment without tasks, its seed as one."""
        if self._tasks is None:
            seed = self._derive_seed(position)
            return Task(task_id=f"{self._env_id}#{position}", instruction=f"seed {seed}")
        return self._tasks.task_at(position)

    def begin(self, position: int, task: Task) -> tuple[Env, str]:
        """Returns an environment at the start of its episode, and the prompt.

        Raises: as `begin_with`.
        """
        if self._tasks is None:
            return self.begin_with(seed=self._derive_seed(position))
        return self.begin_with(task=task)

    def begin_with(
        self, seed: int | None = None, task: Task | str | None = None
    ) -> tuple[Env, str]:
        """As `begin`, of a task, a task's id, or what the environment draws with a seed.

        Raises: UnknownTaskError, SettingsError, DataError, EnvFault.
        """
        try:
            env = self._free.pop()
        except IndexError:  # other threads take environments too
            env = make_environment(self._env_id, self._kwargs)
        try:
            options = None if task is None else {"task": task}
            returned: object = env.reset(seed=seed, options=options)
        except (DataError, EnvFault):
            self._close([env])
            raise
        except (SettingsError, UnknownTaskError):
            self.give_back(env)
            raise
        match returned:
            case (str() as prompt, _):
                return env, to_utf8(prompt)
        raise SettingsError(
            f"environment {self._env_id!r}: reset() must return text and an info, "
            f"returned {returned!r:.60}"
        )

    def give_back(self, env: Env) -> None:
        """Takes an environment back, in whatever state its episode was left."""
        self._free.append(env)

    def close(self) -> None:
        """Closes the environments that are not in use; one that fails to close is a warning."""
        free, self._free = self._free, []
        self._close(free)

    def discard(self, env: Env) -> None:
        """Closes an environment that no episode is to have again."""
        self._close([env])

    def _close(self, environments: Sequence[Env]) -> None:
        close_environments(environments, self._close_timeout_s)

    def _derive_seed(self, *position: int) -> int:
        return int(np.random.default_rng([*self._seed, *position]).integers(2**31))


def oracle_actions(env: Env, task: Task) -> Sequence[str]:
    """Returns how a perfect agent acts. Raises: SettingsError where there is no oracle."""
    if not isinstance(env.unwrapped, TextEnv):
        raise SettingsError("env_runners.engine 'scripted' plays the oracle of a TextEnv")
    return env.unwrapped.oracle_actions(task)
