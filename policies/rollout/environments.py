"""The environments of an env runner: calling their code, pooling them, and drawing their tasks.

An environment's author may be anyone, so `call_environment` gives whatever it raises a name.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import gymnasium
import numpy as np

from agentpeft.envs import (
    DataError,
    EnvFault,
    SettingsError,
    Task,
    TaskSource,
    TextEnv,
    UnknownTaskError,
)
from agentpeft.envs.core.errors import UnknownSettingError, describe_error
from agentpeft.envs.core.spaces import to_utf8
from agentpeft.envs.tasks.task import draw_at
from agentpeft.policies.errors import EnvironmentBugError
from agentpeft.policies.settings.environment_kwargs import without_training_rewards

if TYPE_CHECKING:  # it imports pydantic, without which one can play
    from agentpeft.policies.settings.config import Settings

logger = logging.getLogger(__name__)
Env: TypeAlias = gymnasium.Env[str, str]
T = TypeVar("T")
CLOSE_S = 60.0
"""How long an environment that nothing waits for may take to close."""
ENVIRONMENT_ERRORS = (EnvFault, SettingsError, DataError, UnknownTaskError, EnvironmentBugError)
"""All that `call_environment` raises."""
_GYMNASIUMS_END = " was raised from the environment creator for"
"""Gymnasium ends its words with all arguments, of which some may be secrets."""
TRAIN_STREAM, EVAL_STREAM = 0, 1
"""Training's tasks and samples: other ones than evaluation's and the warm start's (2)."""


def call_environment(function: Callable[[], T]) -> T:
    """Returns `function()`, which is an environment's code.

    Raises: what an environment may raise (`EnvFault`, bad settings, data or task ids);
    EnvironmentBugError for all else, `SystemExit` too. Signals pass: only the main thread has them.
    """
    try:
        return function()
    except BaseException as error:
        in_main_thread = threading.current_thread() is threading.main_thread()
        is_signal = in_main_thread and isinstance(error, KeyboardInterrupt)
        if not (is_signal or isinstance(error, ENVIRONMENT_ERRORS)):
            raise EnvironmentBugError(f"the environment raised {describe_error(error)}") from error
        raise


def make_environment(env_id: str, kwargs: Mapping[str, Any]) -> Env:
    """Returns a new environment. Raises: SettingsError, EnvFault, DataError."""
    try:
        return call_environment(lambda: gymnasium.make(env_id, disable_env_checker=True, **kwargs))
    except UnknownSettingError as error:
        problem, cause = str(error), None
    except EnvironmentBugError as bug:
        cause = bug.__cause__
        known = isinstance(cause, gymnasium.error.Error | TypeError)
        problem = str(cause) if known else f"making it, {bug}"
    problem = problem.partition(_GYMNASIUMS_END)[0]
    raise SettingsError(f"environment {env_id!r}: {problem}") from cause


def close_environments(environments: Sequence[gymnasium.Env[Any, Any]], limit_s: float) -> None:
    """Closes environments, all at once and for `limit_s` at most; what fails is one warning."""
    problems: list[str] = []

    def close(env: gymnasium.Env[Any, Any]) -> None:
        try:
            call_environment(env.close)
        except ENVIRONMENT_ERRORS as error:
            problems.append(str(error))

    threads = [threading.Thread(target=close, args=[e], daemon=True) for e in environments]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    problems += [f"it takes longer than {limit_s:g} s" for thread in threads if thread.is_alive()]
    if problems:
        counts = len(problems), len(environments)
        logger.warning("closing %d of %d environments failed: %s", *counts, problems[-1])


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
        close_timeout_s: float = CLOSE_S,
    ) -> None:
        """Makes the first environment. Raises: SettingsError on bad arguments.

        `close_timeout_s`: how long closing may take before the environments are left as they are.
        """
        self._env_id, self._kwargs, self._seed = env_id, kwargs, seed
        self._close_timeout_s = close_timeout_s
        env = make_environment(env_id, kwargs)
        self._free = [env]
        self._source: TaskSource[Task] | None = None
        if isinstance(env.unwrapped, TextEnv):
            self._source = env.unwrapped.task_source

    @property
    def has_tasks(self) -> bool:
        """Whether the environment is a `TextEnv`, which has tasks and an oracle."""
        return self._source is not None

    @property
    def has_finite_tasks(self) -> bool:
        """Whether the tasks are a fixed set, so that the stream comes back to each."""
        from agentpeft.envs.tasks.taskset import SingleSkillSource, Taskset

        return isinstance(self._source, Taskset | SingleSkillSource)

    @property
    def num_tasks(self) -> int | None:
        """The number of tasks in a round, in which each comes once; None where there is no end."""
        if not isinstance(self._source, Sequence):
            return None
        from agentpeft.envs.tasks.taskset import Taskset

        return len(self._source) if isinstance(self._source, Taskset) else None

    def count_tasks(self, most: int) -> int:
        """Returns how many tasks there are, at most `most`: more of a set would come again."""
        return most if self.num_tasks is None else min(most, self.num_tasks)

    def task_at(self, position: int) -> Task:
        """Returns the task of a position; for an environment without tasks, its seed as one."""
        if self._source is None:
            seed = self._derive_seed(position)
            return Task(task_id=f"{self._env_id}#{position}", instruction=f"seed {seed}")
        return draw_at(self._source, (self._derive_seed(), 0), position)

    def begin(self, position: int, task: Task) -> tuple[Env, str]:
        """Returns an environment at the start of its episode, and the prompt.

        Raises: as `begin_with`.
        """
        if self._source is None:
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
            self.discard(env)
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
        close_environments(free, self._close_timeout_s)

    def discard(self, env: Env) -> None:
        """Closes an environment that no episode is to have again."""
        close_environments([env], self._close_timeout_s)

    def _derive_seed(self, *position: int) -> int:
        return int(np.random.default_rng([*self._seed, *position]).integers(2**31))


def open_stages(settings: "Settings") -> list[EnvPool]:
    """Returns the environments and tasks of each stage of training, easiest first.

    There is one stage unless the settings have `curriculum.stages`. Raises: SettingsError.
    """
    env_id, limit_s = settings.environment.id, settings.env_runners.step_timeout_s
    seed = settings.seed, TRAIN_STREAM
    return [EnvPool(env_id, kwargs, seed, limit_s) for kwargs in settings.stage_kwargs]


def limit_evaluation(settings: "Settings") -> "Settings":
    """Returns settings with no more tasks to evaluate than there are, and says so.

    A set of tasks, such as a file's, would begin again, and success rates and their intervals would
    count its tasks several times. Raises: SettingsError, DataError, EnvFault.
    """
    wanted = settings.evaluation.num_tasks
    with closing(open_held_out(settings)) as held_out:
        num_tasks = held_out.count_tasks(wanted)
    if num_tasks == wanted:
        return settings
    say_limit(num_tasks, wanted)
    evaluation = settings.evaluation.model_copy(update={"num_tasks": num_tasks})
    return settings.model_copy(update={"evaluation": evaluation})


def say_limit(num_tasks: int, wanted: int) -> None:
    """Says that an evaluation has fewer tasks than were asked for."""
    logger.info(
        "evaluation: %d of num_tasks = %d, as there are no more tasks; each is played once",
        num_tasks,
        wanted,
    )


def open_held_out(settings: "Settings") -> EnvPool:
    """Returns evaluation's environments and tasks. Raises: SettingsError."""
    kwargs = without_training_rewards(settings.held_out_kwargs)
    limit_s = settings.env_runners.step_timeout_s
    return EnvPool(settings.environment.id, kwargs, (settings.seed, EVAL_STREAM), limit_s)
