"""The environments whose task files the data commands make, read and write."""

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentpeft.envs import SettingsError, Task, Taskset, TaskSource
from agentpeft.envs.core.errors import did_you_mean
from agentpeft.envs.db_bench import loaders as db_loaders
from agentpeft.envs.db_bench import skills as db_skills
from agentpeft.envs.db_bench.backends.opening import open_database
from agentpeft.envs.db_bench.backends.protocol import DatabaseLimits
from agentpeft.envs.db_bench.generator import DBBenchGenerator
from agentpeft.envs.db_bench.grading.grader import Grader
from agentpeft.envs.db_bench.tasks import DBBenchTask
from agentpeft.envs.os_interaction import loaders as os_loaders
from agentpeft.envs.os_interaction import skills as os_skills
from agentpeft.envs.os_interaction.entries import to_entry as to_os_entry
from agentpeft.envs.os_interaction.generator import OSGenerator
from agentpeft.envs.os_interaction.tasks import OSTask
from agentpeft.envs.registration import get_env_name
from agentpeft.envs.tasks.records import Json, Record, read_records

_OS_FIELDS = ("evaluation_info", "evaluation")


@dataclass(frozen=True)
class TaskFamily:
    """What the commands need of an environment; `to_entries` makes an `entry_dict.json`."""

    skills: tuple[str, ...]
    check_skills: Callable[[Iterable[str]], tuple[str, ...]]
    make_generator: Callable[..., TaskSource[Any]]
    load: Callable[[Path, Path | None], Taskset[Any]]
    parse: Callable[[Record, str], Task]
    to_entries: Callable[[Iterable[tuple[str, Any]]], dict[str, Json]]


def family_of(env_id: str) -> TaskFamily:
    """Returns an environment's family. Raises: SettingsError."""
    name = get_env_name(env_id)
    if name not in FAMILIES:
        raise SettingsError(f"{env_id!r} has no generator of files{did_you_mean(name, FAMILIES)}")
    return FAMILIES[name]


def family_of_file(path: Path) -> TaskFamily:
    """Returns the family that a task file's first row looks like. Raises: DataError."""
    first = next(iter(read_records(path)), None)
    fields = set() if first is None else set(first.fields)
    is_os = not fields.isdisjoint(_OS_FIELDS) and "table" not in fields
    return FAMILIES["AgentPEFT/OSInteraction-v0" if is_os else "AgentPEFT/DBBench-v0"]


def _load_db(path: Path, scripts: Path | None) -> Taskset[DBBenchTask]:
    if scripts is not None:
        raise SettingsError(f"--scripts {scripts} is for tasks of OS-interaction")
    return db_loaders.load_tasks(path)


def _to_db_entries(tasks: Iterable[tuple[str, DBBenchTask]]) -> dict[str, Json]:
    with closing(open_database("sqlite", DatabaseLimits())) as database:
        grader = Grader(database)
        return {key: db_loaders.to_entry(_complete(task, grader)) for key, task in tasks}


def _complete(task: DBBenchTask, grader: Grader) -> DBBenchTask:
    """Returns a task with the md5 or the label that an entry needs."""
    if task.is_write and task.md5 is None:
        return replace(task, md5=grader.gold_md5(task))
    if not task.is_write and task.label is None:
        return replace(task, label=grader.gold_label(task))
    return task


def _to_os_entries(tasks: Iterable[tuple[str, OSTask]]) -> dict[str, Json]:
    return {key: to_os_entry(task) for key, task in tasks}


FAMILIES = {
    "AgentPEFT/DBBench-v0": TaskFamily(
        db_skills.SKILLS,
        db_skills.check_skills,
        DBBenchGenerator,
        _load_db,
        db_loaders.parse_task,
        _to_db_entries,
    ),
    "AgentPEFT/OSInteraction-v0": TaskFamily(
        os_skills.SKILLS,
        os_skills.check_skills,
        OSGenerator,
        os_loaders.load_tasks,
        os_loaders.parse_task,
        _to_os_entries,
    ),
}
"""By environment id."""
