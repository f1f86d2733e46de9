"""The settings of what is played: environment, curriculum, warm start, evaluation."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from agentpeft.policies.settings.environment_kwargs import drawn_kwargs, without_training_rewards
from agentpeft.policies.settings.section import Count, CountOrZero, Section

if TYPE_CHECKING:
    from agentpeft.policies.settings.config import Settings

_Stages = Annotated[tuple[dict[str, Any], ...], Field(strict=False)]
ENVIRONMENT_FILES = ("data", "scripts", "ca_file")
"""Environments' keyword arguments that name files."""
SUCCESS_WINDOW = 8
"""Steps of a warm start by whose mean success its target and its stages go."""


class EnvironmentSettings(Section):
    """The Gymnasium environment that is trained on."""

    id: str = "AgentPEFT/Arithmetic-v0"
    """A Gymnasium id whose observations and actions are text; `module:id` imports the module
    that registers it first.
    """
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """The environment's keyword arguments."""


class CurriculumSettings(Section):
    """Which tasks training takes next: [stages, and tasks at the frontier](curriculum.md)."""

    stages: _Stages = ()
    """Stages of rising difficulty: each overrides some of `environment.kwargs`, such as
    `[{num_digits = 1}, {num_digits = 2}]`. Training goes from one to the next by its success.
    Empty: one stage.
    """
    promote_at: float = Field(default=0.8, ge=0, le=1)
    """The next stage begins once this share of the stage's last `window` episodes succeed. 0: after
    `window` episodes, whatever comes of them.
    """
    window: Count = 256
    """Episodes of a stage that its success is measured by."""
    sampling: Literal["uniform", "frontier"] = "uniform"
    """`uniform` takes tasks as they are drawn. `frontier` draws four times as many, and prefers
    those whose skills, or which themselves, lately had groups with unequal returns.
    """

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in `run`."""
        if not run.is_rl and self.changed():
            yield (
                "the section curriculum chooses tasks by what was sampled, and algorithm 'sft' "
                "samples nothing: leave it out"
            )
        if len(self.stages) == 1:
            yield "curriculum.stages must be two or more, got 1: put it into environment.kwargs"
        if not self.stages and self.changed() & {"promote_at", "window"}:
            yield ("curriculum.promote_at and window have no effect without curriculum.stages")
        if any("split" in stage for stage in self.stages):
            yield (
                "curriculum.stages may not change 'split', which keeps the tasks of training and "
                "evaluation apart: set it in environment.kwargs"
            )
        if self.sampling == "frontier" and run.training.group_size == 1:
            yield (
                "curriculum.sampling 'frontier' looks for groups of unequal returns: "
                "training.group_size must be >= 2, got 1"
            )


class WarmStartSettings(Section):
    """Supervised steps on the oracle's episodes before RL."""

    num_steps: CountOrZero = 0
    """Number of steps at most. They train the tiny model's base weights (cached in
    `~/.cache/agentpeft`, or in `AGENTPEFT_CACHE`) or what is trained of any other model. 0: no
    warm start.
    """
    target_success: float | None = Field(default=None, gt=0, le=1)
    """Tiny model only: the learning rate begins to fall once greedy decoding would play this
    share of the episodes right. None: all `num_steps` are taken.
    """
    decay: float = Field(default=0.1, ge=0, le=1)
    """Tiny model only: share of `num_steps`, or of the steps up to the target, over which the
    learning rate falls to 0 at the end.
    """
    batch_size: Count = 64
    """Episodes in a step."""
    lr: float = Field(default=2e-3, gt=0)
    """Learning rate. The tiny model's rises over the first 5 % of the steps, stays, and falls
    linearly to 0 at the end.
    """
    env_kwargs: dict[str, Any] | _Stages = Field(default_factory=dict)
    """Override `environment.kwargs`, for easier tasks to learn from. A list has stages, from what
    is easily imitated to what is wanted, each of which changes some keywords of the one before.
    They share `num_steps` equally. `target_success` counts in the last one. The tiny model's
    vocabulary is of the first.
    """
    promote_at: float | None = Field(default=None, gt=0, le=1)
    """Tiny model only: a stage ends early once greedy decoding would play this share of the
    episodes of its last eight steps right. The next ones can take longer then.
    """

    @property
    def stages(self) -> tuple[dict[str, Any], ...]:
        """What each stage changes of the environment's keyword arguments, one stage at least."""
        return (self.env_kwargs,) if isinstance(self.env_kwargs, dict) else self.env_kwargs

    @property
    def stage_ends(self) -> list[int]:
        """After how many steps each stage ends at the latest."""
        num_stages = len(self.stages)
        return [self.num_steps * number // num_stages for number in range(1, num_stages + 1)]

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in `run`."""
        if self.target_success is not None and not run.is_tiny:
            yield (
                f"warm_start.target_success {self.target_success} is for the tiny model's base "
                f"weights, not for {run.model.name!r}"
            )
        num_stages = len(self.stages)
        if self.promote_at is not None and not (num_stages > 1 and run.is_tiny):
            yield "warm_start.promote_at is for the stages of the tiny model's warm start"
        elif self.promote_at is not None and 0 < self.num_steps <= SUCCESS_WINDOW * num_stages:
            yield "warm_start.promote_at has no effect on stages of at most eight steps"
        if self.env_kwargs == ():
            yield "warm_start.env_kwargs is an empty list: leave it out, or give two stages or more"
        if 0 < self.num_steps < num_stages:
            yield f"warm_start.num_steps is {self.num_steps}, fewer than the {num_stages} stages"
        if num_stages > 1 and run.warm_start_chats is not None:
            yield "warm_start.env_kwargs has stages of the oracle's episodes, not of training.chats"
        fixed = {*ENVIRONMENT_FILES, "sources", "split"}
        for name in sorted(fixed.intersection(set().union(*self.stages[1:]))):
            yield f"warm_start.env_kwargs: {name!r} may not change after the first stage"


class EvaluationSettings(Section):
    """Greedy episodes on held-out tasks, before and after training."""

    whole_may_change = True

    interval: CountOrZero = 0
    """Also evaluates after every so many iterations. 0: only before and after training."""
    num_tasks: CountOrZero = 200
    """Number of tasks; of a file that has fewer, each once (but in a mixture, or drawn by single
    skills, they come again). 0 evaluates nothing, and the success rates are null.
    """
    samples_per_task: Count = 1
    """1 is greedy. More are sampled at the training temperature, and `pass_at/k` is reported."""
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Override `environment.kwargs`, such as `{split = "test"}`. Needed where training reads
    a file, whose tasks would else be evaluated.
    """

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in `run`."""
        if self.samples_per_task > 1 and run.env_runners.temperature == 0:
            yield (
                f"evaluation.samples_per_task {self.samples_per_task} would be equal samples at "
                "env_runners.temperature 0"
            )
        evaluated = [
            (_resolve(own.get("data")), own.get("split"))
            for own in drawn_kwargs(run.held_out_kwargs)
        ]
        trained = [
            own["data"]
            for stage in run.stage_kwargs
            for own in drawn_kwargs(stage)
            if own.get("data") is not None
            and (_resolve(own["data"]), own.get("split")) in evaluated
        ]
        if self.num_tasks > 0 and trained:
            yield (
                f"evaluation would play the training file {trained[0]!r}: name other data, or "
                "another split of it, in evaluation.env_kwargs, or set evaluation.num_tasks = 0"
            )
        if without_training_rewards(self.env_kwargs) != self.env_kwargs:
            yield (
                "evaluation.env_kwargs has partial_credit or a turn_reward_fn, which are for "
                "training alone: leave them out"
            )
        if self.interval > 0 and self.num_tasks == 0:
            yield f"evaluation.interval {self.interval} has no effect with evaluation.num_tasks = 0"


def _resolve(data: object) -> object:
    """Returns what a `data` setting names: the same for every spelling of the same files."""
    from agentpeft.policies.settings.named_files import find_path  # which imports this module

    if isinstance(data, Mapping):
        from agentpeft.envs.core.errors import SettingsError
        from agentpeft.envs.tasks.task_files import find_files

        try:
            return {key: _resolve(str(path)) for key, path in find_files(data).items()}
        except SettingsError:  # it is said where the environment is made
            return data
    return (find_path(data) or data) if isinstance(data, str) else data
