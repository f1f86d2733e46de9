"""Digits to sort, answered in one turn: change it into the environment that you need.

agentpeft play sort_env:SortEnv-v0     # you play, with the oracle's answer beside yours
agentpeft train sort_env.toml          # trains on it
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack
from zlib import crc32

import gymnasium
import numpy as np

from agentpeft.envs import (
    EpisodeConfig,
    EpisodeOptions,
    Outcome,
    SettingsError,
    Task,
    TextEnv,
    Turn,
    UnknownTaskError,
)


@dataclass(frozen=True, kw_only=True)
class SortTask(Task):
    """One task. A `Task` has `task_id`, `instruction` and `skills`; add what grading needs."""

    answer: str


class SortTasks:
    """Where tasks come from: any object with `draw` and `get`, or a `Taskset` of a list or file."""

    def __init__(self, num_digits: int, split: str | None) -> None:
        """`split`: "train" draws four tasks in five, "test" the others, None all of them."""
        if split not in (None, "train", "test"):
            raise SettingsError(f"split must be 'train', 'test' or None, got {split!r}")
        self.num_digits, self.split = num_digits, split

    def draw(self, rng: np.random.Generator) -> SortTask:
        """Returns a task that depends on `rng` alone."""
        while True:
            digits = "".join(map(str, rng.integers(10, size=self.num_digits)))
            is_test = crc32(digits.encode()) % 5 == 0
            if self.split is None or is_test == (self.split == "test"):
                return self.get(digits)

    def get(self, task_id: str) -> SortTask:
        """Returns the task of an id. Raises: UnknownTaskError."""
        if not task_id.isdecimal():
            raise UnknownTaskError(f"a task's id is its digits, got {task_id!r}")
        answer = "".join(sorted(task_id))
        return SortTask(task_id=task_id, instruction=f"Sort: {task_id}", answer=answer)


class SortEnv(TextEnv[SortTask]):
    """The agent sees digits and writes them in ascending order."""

    default_config = EpisodeConfig(max_turns=1)

    def __init__(
        self, num_digits: int = 5, split: str | None = None, **options: Unpack[EpisodeOptions]
    ) -> None:
        """The arguments are `environment.kwargs` of the TOML file."""
        super().__init__(SortTasks(num_digits, split), options)

    def _begin(self, task: SortTask) -> str:
        """Returns the prompt: all that the agent may know, the number of turns too."""
        return f"{task.instruction}\nTurns: {self.config.max_turns}"

    def _act(self, action: str) -> Turn:
        """Returns the answer to an action, and how the episode ends if it does."""
        if not action.isdecimal():
            return Turn("Write digits only.", Outcome.INVALID_ACTION)
        if action == self.task.answer:
            return Turn("", Outcome.SUCCESS)
        return Turn("That is not sorted.")  # the last turn ends the episode without success

    def oracle_actions(self, task: SortTask) -> Sequence[str]:
        """Returns what a perfect agent does: the warm start and the tests learn from it."""
        return [task.answer]


gymnasium.register("SortEnv-v0", entry_point=f"{__name__}:SortEnv")
