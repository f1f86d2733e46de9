"""Which tasks are trained on: the settings of stages and of the choice among tasks."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from agentpeft.policies.settings.section import Count, Section


class CurriculumSettings(Section):
    """Which tasks training takes next: [stages, and tasks at the frontier](curriculum.md)."""

    stages: Annotated[tuple[dict[str, Any], ...], Field(strict=False)] = ()
    """Stages of rising difficulty: each overrides some of `environment.kwargs`, such as
    `[{num_digits = 1}, {num_digits = 2}]`. Training goes from one to the next by its success.
    Empty: one stage.
    """
    promote_at: float = Field(default=0.8, ge=0, le=1)
    """The next stage begins once this share of the stage's last `window` episodes succeed. 0: after
    `window` episodes, whatever comes of them.
    """
    demote_at: float | None = Field(default=None, ge=0, le=1)
    """Training goes back by a stage where no more than this share of them succeed. None: never."""
    window: Count = 256
    """Episodes of a stage that its success is measured by."""
    sampling: Literal["uniform", "frontier"] = "uniform"
    """`uniform` takes tasks as they are drawn. `frontier` draws four times as many, and prefers
    those whose skills, or which themselves, lately had groups with unequal returns.
    """

    def conflicts(self, run: Any) -> Iterator[str]:
        """Yields what cannot work or has no effect in `run`."""
        is_adaptive = run.environment.is_adaptive
        if not run.is_rl and (is_adaptive or self.changed()):
            yield (
                "the section curriculum and environment.kwargs.adaptive choose tasks by what was "
                "sampled, and algorithm 'sft' samples nothing: leave them out"
            )
        if len(self.stages) == 1:
            yield "curriculum.stages must be two or more, got 1: put it into environment.kwargs"
        if self.stages and is_adaptive:
            yield (
                "curriculum.stages and environment.kwargs.adaptive both set the difficulty: leave "
                "one of them out"
            )
        if not self.stages and self.changed() & {"promote_at", "demote_at", "window"}:
            yield (
                "curriculum.promote_at, demote_at and window have no effect without "
                "curriculum.stages (environment.kwargs.adaptive has raise_at, lower_at and window)"
            )
        if self.demote_at is not None and self.demote_at >= self.promote_at:
            yield (
                f"curriculum.demote_at {self.demote_at} must be below curriculum.promote_at "
                f"({self.promote_at})"
            )
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
