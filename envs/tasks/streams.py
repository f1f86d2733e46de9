"""Ordered series of task sources: a curriculum, a lifelong sequence."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from agentpeft.envs.core.errors import SettingsError
from agentpeft.envs.tasks.task import TaskSource, TaskT, draw_at


@dataclass(frozen=True)
class Stage(Generic[TaskT]):
    """`num_tasks` tasks of one source. A `Taskset` is visited in shuffled rounds."""

    name: str
    source: TaskSource[TaskT]
    num_tasks: int


class TaskStream(Generic[TaskT]):
    """Iterates over the stages' tasks; its position is saved as a small mapping.

    A task depends on (seed, stage, index) alone, so a restored stream has the same tasks.
    """

    def __init__(self, stages: Sequence[Stage[TaskT]], seed: int = 0) -> None:
        """Raises: SettingsError on no stages or a stage without tasks."""
        if not stages:
            raise SettingsError("a task stream needs at least one stage")
        for stage in stages:
            if stage.num_tasks < 1:
                raise SettingsError(f"stage {stage.name!r} needs num_tasks >= 1")
        self.stages = tuple(stages)
        self.seed = seed
        self.position = 0

    def __len__(self) -> int:
        """Returns the number of tasks in all stages."""
        return sum(stage.num_tasks for stage in self.stages)

    def __iter__(self) -> Iterator[TaskT]:
        """Iterates from the present position."""
        return self

    def __next__(self) -> TaskT:
        """Returns the next task. Raises: StopIteration at the end."""
        if self.position >= len(self):
            raise StopIteration
        self.position += 1
        return self.task_at(self.position - 1)

    def task_at(self, position: int) -> TaskT:
        """Returns the task at a position, wherever the stream stands. Raises: IndexError."""
        stage_index, index = self._locate(position)
        return draw_at(self.stages[stage_index].source, (self.seed, stage_index), index)

    @property
    def stage(self) -> Stage[TaskT]:
        """The stage of the next task (of the last task at the end)."""
        return self.stages[self._locate(min(self.position, len(self) - 1))[0]]

    def state_dict(self) -> dict[str, int]:
        """Returns what `load_state_dict` needs, JSON-able."""
        return {"seed": self.seed, "position": self.position, "num_tasks": len(self)}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Moves to a saved position. Raises: SettingsError if it is another stream's."""
        for key, value in self.state_dict().items():
            if key != "position" and state.get(key) != value:
                raise SettingsError(f"saved position has {key}={state.get(key)}, not {value}")
        if not 0 <= state.get("position", -1) <= len(self):
            raise SettingsError(f"saved position {state.get('position')} is outside this stream")
        self.position = state["position"]

    def _locate(self, position: int) -> tuple[int, int]:
        for stage_index, stage in enumerate(self.stages):
            if position < stage.num_tasks:
                return stage_index, position
            position -= stage.num_tasks
        raise IndexError(position)
