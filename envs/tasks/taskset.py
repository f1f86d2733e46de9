"""Sets of tasks that are known one by one, as those of a file."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Generic, overload

import numpy as np

from agentpeft.envs.core.errors import DataError, SettingsError, UnknownTaskError, did_you_mean
from agentpeft.envs.tasks.task import TaskSource, TaskT

if TYPE_CHECKING:  # tasks that are generated are in no file
    from agentpeft.envs.tasks.records import Record


class Taskset(Sequence[TaskT], Generic[TaskT]):
    """An immutable ordered set of tasks with distinct ids."""

    _last_round: "tuple[tuple[int, ...], Taskset[TaskT]] | None" = None

    def __init__(self, tasks: Iterable[TaskT], name: str = "tasks") -> None:
        """`name` is used in messages. Raises: SettingsError on no tasks or a repeated id."""
        self.name = name
        self._tasks = tuple(tasks)
        if not self._tasks:
            raise SettingsError(f"taskset {name!r} has no tasks")
        self._by_id = {task.task_id: task for task in self._tasks}
        if len(self._by_id) < len(self._tasks):
            counts = Counter(task.task_id for task in self._tasks)
            raise SettingsError(f"taskset {name!r} repeats task id {counts.most_common(1)[0][0]!r}")

    @classmethod
    def load(cls, path: str | Path, parse: "Callable[[Record], TaskT]") -> "Taskset[TaskT]":
        """Returns the tasks of a JSON, JSONL or parquet file. Raises: DataError."""
        from agentpeft.envs.tasks.records import parse_records

        tasks = parse_records(path, parse)
        if not tasks:
            raise DataError(f"{path}: no tasks in this file")
        return cls(tasks, name=str(path))

    @classmethod
    def generate(cls, source: TaskSource[TaskT], num_tasks: int, seed: int) -> "Taskset[TaskT]":
        """Returns `num_tasks` distinct tasks drawn from `source`.

        Raises: SettingsError where the source has too few distinct tasks.
        """
        rng = np.random.default_rng(seed)
        tasks: dict[str, TaskT] = {}
        num_repeated = 0
        while len(tasks) < num_tasks:
            task = source.draw(rng)
            num_repeated = num_repeated + 1 if task.task_id in tasks else 0
            tasks[task.task_id] = task
            if num_repeated > 1000:
                raise SettingsError(f"only {len(tasks)} distinct tasks exist, {num_tasks} wanted")
        return cls(tasks.values(), name="generated")

    def __len__(self) -> int:
        return len(self._tasks)

    @overload
    def __getitem__(self, index: int) -> TaskT: ...
    @overload
    def __getitem__(self, index: slice) -> "Taskset[TaskT]": ...
    def __getitem__(self, index: int | slice) -> "TaskT | Taskset[TaskT]":
        """Returns a task, or a smaller taskset for a slice."""
        if isinstance(index, slice):
            return Taskset(self._tasks[index], self.name)
        return self._tasks[index]

    def __iter__(self) -> Iterator[TaskT]:
        return iter(self._tasks)

    def draw(self, rng: np.random.Generator) -> TaskT:
        """Returns a uniformly random task."""
        return self._tasks[int(rng.integers(len(self._tasks)))]

    def get(self, task_id: str) -> TaskT:
        """Returns the task of that id. Raises: UnknownTaskError."""
        try:
            return self._by_id[task_id]
        except KeyError:
            hint = did_you_mean(task_id, self._by_id) if len(self) <= 1000 else ""
            raise UnknownTaskError(f"no task {task_id!r} in {self.name!r}{hint}") from None

    def get_in_rounds(self, seed: tuple[int, ...], index: int) -> TaskT:
        """Returns the task at an index of rounds, each of which has all tasks in another order."""
        round_index, offset = divmod(index, len(self))
        key = (*seed, round_index)
        present = self._last_round
        if present is None or present[0] != key:
            round_seed = int(np.random.default_rng(key).integers(2**31))
            present = self._last_round = (key, self.shuffle(round_seed))
        return present[1][offset]

    @cached_property
    def skills(self) -> dict[str, int]:
        """Number of tasks by skill, sorted by name."""
        return dict(sorted(Counter(s for task in self._tasks for s in task.skills).items()))

    def filter(self, skills: Iterable[str]) -> "Taskset[TaskT]":
        """Returns the tasks that have all of `skills`.

        Raises: SettingsError on an unknown skill, or where nothing is left.
        """
        wanted = set(skills)
        for skill in sorted(wanted - self.skills.keys()):
            raise SettingsError(f"unknown skill {skill!r}{did_you_mean(skill, self.skills)}")
        tasks = [task for task in self._tasks if wanted <= set(task.skills)]
        if not tasks:
            raise SettingsError(f"no task in {self.name!r} has skills {sorted(wanted)}")
        return Taskset(tasks, self.name)

    def shuffle(self, seed: int) -> "Taskset[TaskT]":
        """Returns the same tasks in a random order."""
        order = np.random.default_rng(seed).permutation(len(self))
        return Taskset((self._tasks[i] for i in order), self.name)

    def split(self, fraction: float, seed: int) -> "tuple[Taskset[TaskT], Taskset[TaskT]]":
        """Returns two disjoint tasksets, the first with `fraction` of the tasks.

        Raises: SettingsError where either part would be empty.
        """
        cut = round(len(self) * fraction)
        if not 0 < cut < len(self):
            raise SettingsError(f"split {fraction} of {len(self)} tasks leaves one part empty")
        shuffled = self.shuffle(seed)
        return shuffled[:cut], shuffled[cut:]


class SingleSkillSource(Generic[TaskT]):
    """Draws a skill, then a task that has it, so that rare skills come as often as others."""

    def __init__(self, tasks: Taskset[TaskT], skills: Sequence[str]) -> None:
        """Raises: SettingsError where a skill has no task."""
        self._tasks = tasks
        self._by_skill = [tasks.filter([skill]) for skill in skills]

    def draw(self, rng: np.random.Generator) -> TaskT:
        """Returns a random task of a random skill."""
        return self._by_skill[int(rng.integers(len(self._by_skill)))].draw(rng)

    def get(self, task_id: str) -> TaskT:
        """Returns the task of that id. Raises: UnknownTaskError."""
        return self._tasks.get(task_id)
