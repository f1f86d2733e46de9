"""A task, where tasks come from, and which of them are held out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, timedelta
from decimal import Decimal
from hashlib import blake2b
from typing import Literal, Protocol, TypeAlias, TypeVar, get_args, runtime_checkable
from zlib import crc32

import numpy as np

from agentpeft.envs.core.errors import SettingsError, shown

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
    if type(task) is Task:  # as earlier checkpoints name it
        kind = "agentpeft.envs.tasks.taskset:Task"
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


def draw_at(source: TaskSource[TaskT], seed: tuple[int, ...], index: int) -> TaskT:
    """Returns the task at an index, which depends on it and on the seed alone.

    A `Taskset` is visited in shuffled rounds.
    """
    if isinstance(source, Sequence):
        from agentpeft.envs.tasks.taskset import Taskset

        if isinstance(source, Taskset):
            return source.get_in_rounds(seed, index)
    return source.draw(np.random.default_rng([*seed, index]))


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
