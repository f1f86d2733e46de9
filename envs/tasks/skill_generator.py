"""Tasks by skill: unlimited generated ones, each remade from its id, and those of files."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, cast, get_args

import numpy as np

from agentpeft.envs.core.errors import (
    SettingsError,
    UnknownTaskError,
    check_choice,
    check_count,
    check_flag,
    shown,
)
from agentpeft.envs.tasks.streams import Stage, TaskStream
from agentpeft.envs.tasks.task import Split, TaskSource, TaskT, check_split
from agentpeft.envs.tasks.taskset import SingleSkillSource, Taskset

SkillMode = Literal["single", "all"]
"""A task for one of the skills, or with all of them."""
_MAX_DRAWS = 10


class NoTaskHereError(Exception):
    """These choices give no valid task; the generator tries others."""


@dataclass(frozen=True)
class GeneratorOptions:
    """Limits of generated tasks; None is no limit of its own.

    `max_phrasings`: ways to say each thing, plainest first. `split`: each word is for training or
    for testing, by its hash. `invent`: words are made up, so that a small model learns to copy
    rather than to know a few hundred words by heart.
    """

    max_phrasings: int | None = None
    split: Split | None = None
    invent: bool = False
    _limits: ClassVar[dict[str, tuple[str, int]]] = {"max_phrasings": ("", 1)}
    """Per limit: its letter in task ids, and its minimum."""

    def __post_init__(self) -> None:
        """Raises: SettingsError."""
        check_split(self.split)
        for name, (_, least) in self._limits.items():
            if vars(self)[name] is not None:
                check_count(name, vars(self)[name], least)
        check_flag("invent", self.invent)

    @classmethod
    def parse_id(cls, text: str) -> Self | None:
        """Returns the options written in a task id's middle part; None if they are not valid."""
        marks = [f"(?:;{mark}([1-9]\\d*))?" for mark, _ in cls._limits.values() if mark]
        match = re.fullmatch(rf"(all|[1-9]\d*)(?:;(train|test))?{''.join(marks)}(;i)?", text)
        if match is None:
            return None
        first, split, *others, invent = match.groups()
        numbers = [None if number in (None, "all") else int(number) for number in (first, *others)]
        limits = dict(zip(cls._limits, numbers, strict=True))
        try:
            return cls(split=cast(Split | None, split), invent=invent is not None, **limits)
        except SettingsError:
            return None

    def __str__(self) -> str:
        """Returns the middle part of a task's id: "all", "1;test;c4;r8;i"."""
        first, *others = ((mark, vars(self)[name]) for name, (mark, _) in self._limits.items())
        numbers = [f"{mark}{limit}" for mark, limit in others if limit]
        parts = [str(first[1] or "all"), self.split, *numbers, "i" if self.invent else None]
        return ";".join(filter(None, parts))


OptionsT = TypeVar("OptionsT", bound=GeneratorOptions)


def sort_skills(names: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """Returns the names once each, in the order of `known`. Raises: SettingsError."""
    wanted = set(names)
    for name in sorted(wanted):
        check_choice("skill", name, known)
    return tuple(skill for skill in known if skill in wanted)


def _read_skills(
    skills: Sequence[str] | str | None, skill_mode: str, known: Sequence[str]
) -> tuple[str, ...]:
    """Returns the skills named in settings; None is all. Raises: SettingsError."""
    if skill_mode not in get_args(SkillMode):
        raise SettingsError(f"skill_mode must be 'single' or 'all', got {shown(skill_mode)}")
    names = [skills] if isinstance(skills, str) else known if skills is None else skills
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise SettingsError(f"skills are names, got {shown(skills)}")
    if not names:
        raise SettingsError("skills must name at least one skill, or be None for all")
    return sort_skills(names, known)


class SkillGenerator(ABC, Generic[TaskT, OptionsT]):
    """Draws skills and a number. With the options they are a task's id, from which it is remade.

    A subclass names its skills and the type of its options, and makes tasks. Thread-safe.
    """

    known_skills: ClassVar[Sequence[str]]
    options_type: type[OptionsT]

    def __init__(
        self,
        skills: Sequence[str] | None = None,
        *,
        skill_mode: str = "single",
        num_skills: int | None = None,
        **options: Any,
    ) -> None:
        """Checks that such tasks exist.

        Args:
            skills: names of skills; None is all.
            skill_mode: "single": each task is for one of them; "all": has all of them.
            num_skills: with "all", each task has this many, drawn for each task; None is all.
            options: those of `options_type`.

        Raises: SettingsError.
        """
        self.options = self.options_type(**options)
        self.skills = _read_skills(skills, skill_mode, self.known_skills)
        if num_skills is not None:
            check_count("num_skills", num_skills)
        if skill_mode == "single" and num_skills not in (None, 1):
            raise SettingsError(f"num_skills={num_skills} needs skill_mode 'all'")
        self.num_skills = num_skills or (1 if skill_mode == "single" else len(self.skills))
        if self.num_skills > len(self.skills):
            raise SettingsError(f"num_skills={num_skills} of {len(self.skills)} skills")
        self._pick_skills(np.random.default_rng(0))

    @classmethod
    def curriculum(
        cls,
        seed: int,
        *,
        skills: Sequence[str] | None = None,
        tasks_per_stage: int = 1000,
        max_skills: int = 4,
    ) -> TaskStream[TaskT]:
        """Returns stages of 1, 2, … `max_skills` skills a task, drawn from `skills` (None: all)."""
        stages = []
        for number in range(1, max_skills + 1):
            source = cls(skills, skill_mode="all", num_skills=number)
            stages.append(Stage(f"{number} skill{'s' * (number > 1)}", source, tasks_per_stage))
        return TaskStream(stages, seed)

    @abstractmethod
    def make(self, task_id: str, skills: tuple[str, ...], options: OptionsT) -> TaskT | None:
        """Returns the task of an id; None if no attempt gave a valid one."""

    def draw(self, rng: np.random.Generator) -> TaskT:
        """Returns a new task; the same `rng` state gives the same task.

        Raises: SettingsError where so many skills come together that none is found.
        """
        for _ in range(_MAX_DRAWS):
            skills = self._pick_skills(rng)
            task_id = f"{'+'.join(skills)}/{self.options}/{rng.integers(2**31)}"
            task = self.make(task_id, skills, self.options)
            if task is not None:
                return task
        raise SettingsError(f"no task was found that has {', '.join(skills)}; ask for fewer")

    def get(self, task_id: str) -> TaskT:
        """Returns the task of an id, also another generator's. Raises: UnknownTaskError."""
        names, _, rest = task_id.partition("/")
        text, _, number = rest.partition("/")
        options = self.options_type.parse_id(text)
        skills = tuple(names.split("+"))
        is_known = self._fit(skills) and number.isdecimal() and str(int(number)) == number
        task = self.make(task_id, skills, options) if is_known and options else None
        if task is None:
            form = "skill+skill/options/number"
            raise UnknownTaskError(f"{task_id!r} is no generated task's id ({form})")
        return task

    def _fit(self, skills: tuple[str, ...]) -> bool:
        """Returns whether an id may name these skills."""
        return skills == tuple(skill for skill in self.known_skills if skill in skills)

    def _pick_skills(self, rng: np.random.Generator) -> tuple[str, ...]:
        """Returns `num_skills` of the skills."""
        chosen = rng.choice(len(self.skills), self.num_skills, replace=False)
        return sort_skills((self.skills[index] for index in chosen), self.known_skills)


def choose_tasks(
    generator: type[SkillGenerator[TaskT, OptionsT]],
    load: Callable[[], Taskset[TaskT]] | None,
    skills: Sequence[str] | None,
    skill_mode: str,
    num_skills: int | None,
    options: OptionsT,
) -> TaskSource[TaskT]:
    """Returns a generator, or the tasks that have the skills of a file to `load`.

    With `skill_mode` "single" a skill is drawn for each of the file's tasks. Raises: SettingsError,
    also if a file comes with a setting that only generated tasks have.
    """
    generated = {"num_skills": num_skills, **asdict(options)}
    if load is None:
        return generator(skills, skill_mode=skill_mode, **generated)
    chosen = _read_skills(skills, skill_mode, generator.known_skills)
    for name, value in generated.items():
        if value not in (None, False):
            raise SettingsError(
                f"{name}={shown(value)} is for generated tasks, and data names a file of tasks: "
                f"leave {name} out"
            )
    tasks = load()
    if skills is None:
        return tasks
    return SingleSkillSource(tasks, chosen) if skill_mode == "single" else tasks.filter(chosen)
