"""Tasks, sets of tasks, the protocol of tasksets and generators, and held-out parts of both."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, timedelta
from decimal import Decimal
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Generic,
    Literal,
    Protocol,
    TypeAlias,
    TypeVar,
    get_args,
    overload,
    runtime_checkable,
)
from zlib import crc32

import numpy as np

from agentpeft.envs.core.errors import (
    DataError,
    SettingsError,
    UnknownTaskError,
    did_you_mean,
    shown,
)

if TYPE_CHECKING:  # tasks that are generated are in no file
    from agentpeft.envs.tasks.records import Record

Split: TypeAlias = Literal["train", "test"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """One problem; environments subclass it with their own typed fields.

    `task_id` is unique within its source. `instruction` is the problem in words.
    `skills` are the names that results are grouped by.
    """

    task_id: str
    instruction: str
    skills: tuple[str, ...] = ()


def content_hash(task: Task) -> int:
    """Returns a 64-bit hash of a task's content, without its id and skills.

    It is the same in every process. A task with a field that has no fixed text, such as an array,
    is known by its id.
    """
    kind = f"{type(task).__module__}:{type(task).__qualname__}"
    common = ("task_id", "instruction", "skills")
    others = {f.name: getattr(task, f.name) for f in fields(task) if f.name not in common}
    try:
        content = json.dumps([kind, task.instruction, others], default=_to_json)
    except TypeError:
        content = json.dumps([kind, task.instruction, {"task_id": task.task_id}])
    return int.from_bytes(blake2b(content.encode(), digest_size=8).digest(), "little")


def _to_json(value: object) -> object:
    """Returns what stands for a value that JSON lacks. Raises: TypeError."""
    if is_dataclass(value):
        return {type(value).__name__: [getattr(value, field.name) for field in fields(value)]}
    if isinstance(value, Decimal | bytes | date | timedelta):
        return repr(value)
    raise TypeError


TaskT = TypeVar("TaskT", bound=Task)
TaskT_co = TypeVar("TaskT_co", bound=Task, covariant=True)


@runtime_checkable
class TaskSource(Protocol[TaskT_co]):
    """The source of an environment's tasks: a `Taskset` or a generator."""

    def draw(self, rng: np.random.Generator) -> TaskT_co:
        """Returns one random task; the same `rng` state gives the same task."""
        ...

    def get(self, task_id: str) -> TaskT_co:
        """Returns the task of that id. Raises: UnknownTaskError."""
        ...


class Taskset(Sequence[TaskT], Generic[TaskT]):
    """An immutable ordered set of tasks with distinct ids."""

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
        from agentpeft.envs.tasks.records import read_records

        tasks = [parse(record) for record in read_records(path)]
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


def compute_split(text: str) -> Split:
    """Returns the split of a text, by its hash: about one in four is in "test".

    >>> compute_split("1+2"), compute_split("3+4")
    ('train', 'test')
    """
    return "test" if crc32(text.encode()) % 100 < 25 else "train"


def check_split(split: str | None) -> None:
    """Raises: SettingsError if it is neither "train", "test" nor None."""
    if split is not None and split not in get_args(Split):
        raise SettingsError(f"split must be 'train', 'test' or None, got {shown(split)}")
