"""What the suite's own environments have besides: tasks of their own, an oracle, and levels."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agentpeft.envs import SettingsError, Task, TaskSource, TextEnv
from agentpeft.envs.core.spaces import to_utf8
from agentpeft.policies.rollout.environments import (
    CLOSE_S,
    Env,
    EnvPool,
    call_environment,
    close_environments,
    make_environment,
)

if TYPE_CHECKING:  # it imports pydantic, without which one can play
    from agentpeft.policies.settings.config import Settings


def make_text_env(env_id: str, kwargs: Mapping[str, Any]) -> TextEnv[Any]:
    """Returns a new environment of the suite's kind, without Gymnasium's wrappers.

    Raises: SettingsError where it is of another kind, or as `make_environment`.
    """
    env = make_environment(env_id, kwargs).unwrapped
    if not isinstance(env, TextEnv):
        raise SettingsError(
            f"environment {env_id!r} is no TextEnv: it has no tasks, nor an oracle to imitate (RL "
            "needs none: set warm_start.num_steps = 0)"
        )
    return env


@contextmanager
def opened(env_id: str, kwargs: Mapping[str, Any]) -> Iterator[TextEnv[Any]]:
    """Yields an environment, and closes it with all that it holds. Raises: as `make_text_env`."""
    env = make_text_env(env_id, kwargs)
    try:
        yield env
    finally:
        close_environments([env], CLOSE_S)


def begin(env: TextEnv[Any], task: Task) -> str:
    """Returns the prompt of an episode of a task. Raises: as `call_environment`."""
    return to_utf8(call_environment(lambda: env.reset(options={"task": task}))[0])


def oracle_actions(env: Env, task: Task) -> Sequence[str]:
    """Returns how a perfect agent acts. Raises: SettingsError where there is no oracle."""
    if not isinstance(env.unwrapped, TextEnv):
        raise SettingsError("env_runners.engine 'scripted' plays the oracle of a TextEnv")
    return env.unwrapped.oracle_actions(task)


def read_levels(env_id: str, kwargs: Mapping[str, Any]) -> Sequence[TaskSource[Task]]:
    """Returns the tasks of each level, easiest first. Raises: SettingsError where it has none."""
    with opened(env_id, kwargs) as env:
        levels: Sequence[TaskSource[Task]] = env.levels
    if not levels:
        raise SettingsError(
            f"environment.kwargs.adaptive: {env_id!r} has no levels; list its stages in "
            "curriculum.stages instead"
        )
    return levels


def count_epoch_tasks(settings: "Settings", stage: EnvPool) -> int:
    """Returns how many tasks an epoch has. Raises: SettingsError where they have no end."""
    if stage.num_tasks is None:
        why = f"those of {settings.environment.id!r} are drawn without end: give a number"
        if stage.has_finite_tasks:
            why = "tasks are drawn by skill; set skill_mode='all', or give a number"
        raise SettingsError(
            f"output.checkpoint_interval 'epoch' needs a set of tasks that is gone through (a task "
            f"file), and {why}"
        )
    return stage.num_tasks
