"""The stages of training: which environments and tasks each has."""

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from agentpeft.envs import SettingsError, Task, TaskSource
from agentpeft.policies.rollout.environments.env_pool import EnvPool
from agentpeft.policies.rollout.environments.environment_calls import make_text_env
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.environment_kwargs import without_training_rewards

if TYPE_CHECKING:  # it imports transformers, for which looking at a stage need not wait
    from agentpeft.policies.rollout.groups import GroupRequest

TRAIN_STREAM, EVAL_STREAM = 0, 1
"""Training's tasks and samples: other ones than evaluation's and the warm start's (2)."""


def open_stages(settings: Settings) -> list[EnvPool]:
    """Returns the environments and tasks of each stage of training, easiest first.

    There is one stage unless the settings have `curriculum.stages` or an environment with
    `adaptive` difficulty, whose levels are the stages then. Raises: SettingsError.
    """
    environment, limit_s = settings.environment, settings.env_runners.step_timeout_s
    kwargs: list[dict[str, Any]] = settings.stage_kwargs
    sources: Sequence[TaskSource[Task] | None] = [None] * len(kwargs)
    if environment.is_adaptive:
        sources = _levels(environment.id, environment.kwargs)
        kwargs *= len(sources)
    seed = settings.seed, TRAIN_STREAM
    return [
        EnvPool(environment.id, own, seed, limit_s, source)
        for own, source in zip(kwargs, sources, strict=True)
    ]


def open_held_out(settings: Settings) -> EnvPool:
    """Returns evaluation's environments and tasks. Raises: SettingsError."""
    kwargs = without_training_rewards(settings.held_out_kwargs)
    limit_s = settings.env_runners.step_timeout_s
    return EnvPool(settings.environment.id, kwargs, (settings.seed, EVAL_STREAM), limit_s)


class StagePools:
    """The environments of an env runner: those of each stage of training, and evaluation's."""

    def __init__(self, settings: Settings) -> None:
        """Raises: SettingsError."""
        self._stages, self._held_out = open_stages(settings), open_held_out(settings)

    def of(self, request: "GroupRequest") -> EnvPool:
        """Returns the environments in which a group is played."""
        return self._stages[request.stage] if request.mode == "train" else self._held_out

    def close_unused(self, in_play: "Sequence[GroupRequest]") -> None:
        """Closes the environments of stages of training other than those in play, if any is.

        Or a stage that is over would keep its sandboxes.
        """
        stages = {request.stage for request in in_play if request.mode == "train"}
        for stage, pool in enumerate(self._stages):
            if stages and stage not in stages:
                pool.close()

    def close(self) -> None:
        """Closes all environments; idempotent."""
        for pool in (*self._stages, self._held_out):
            pool.close()


def count_epoch_tasks(settings: Settings, stage: EnvPool) -> int:
    """Returns how many tasks an epoch has. Raises: SettingsError where they have no end."""
    if stage.num_tasks is None and stage.has_finite_tasks:
        raise SettingsError(
            "output.checkpoint_interval 'epoch' needs tasks that are gone through: with skills, "
            "tasks are drawn by skill; set skill_mode='all', or give a number"
        )
    if stage.num_tasks is None:
        raise SettingsError(
            f"output.checkpoint_interval 'epoch' needs a set of tasks that is gone through (a task "
            f"file), and those of {settings.environment.id!r} are drawn without end: give a number"
        )
    return stage.num_tasks


def _levels(env_id: str, kwargs: dict[str, Any]) -> Sequence[TaskSource[Task]]:
    with closing(make_text_env(env_id, kwargs)) as env:
        levels = env.levels
    if not levels:
        raise SettingsError(
            f"environment.kwargs.adaptive: {env_id!r} has no levels; list its stages in "
            "curriculum.stages instead"
        )
    return levels
