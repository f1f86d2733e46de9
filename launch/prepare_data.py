"""Prepares task files: generate, download, convert, filter by skill, and validate them.

```sh
agentpeft prepare-data generate --num-tasks 500 --output entry_dict.json
agentpeft prepare-data validate entry_dict.json --env AgentPEFT/DBBench-v0
```

Exit status: 0 done; 1 a gold solution fails, the data set cannot be had, or nothing could be
written; 2 wrong input; 130 interrupted.
"""

import agentpeft.launch  # noqa: F401 (takes this folder off the path, before all others)

# isort: split
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option
from typer.core import TyperCommand

from agentpeft.envs import DataError, EnvFault, SettingsError, Task, Taskset
from agentpeft.envs.system.whole_files import write_file
from agentpeft.envs.tasks.hub import load_hub_rows
from agentpeft.envs.tasks.records import Json
from agentpeft.envs.tasks.task import Split
from agentpeft.launch.data.gold_validation import validate_gold
from agentpeft.launch.data.task_families import FAMILIES, TaskFamily, family_of, family_of_file
from agentpeft.launch.run.command_line import CommandLine
from agentpeft.launch.run.ending import AsJson
from agentpeft.launch.run.run_folder import as_word

HUB_ID = "csyq/LifelongAgentBench"
InputFile = Annotated[Path, Argument(help="A task file.")]
OutputFile = Annotated[Path, Option(help="The file to write.")]
Scripts = Annotated[
    Path | None, Option(help="Folder of the scripts that AgentBench's OS tasks name.")
]
Skills = Annotated[list[str] | None, Option(metavar="SKILL...", show_default="all")]
main = CommandLine(help=__doc__)


class _WithSkills(TyperCommand):
    """A command whose `--skills` takes several words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeats the option before each of its words, since Typer's options take one."""
        words: list[str] = []
        for word in args:
            if words[-2:-1] == ["--skills"] and not word.startswith("-"):
                words.append("--skills")
            words.append(word)
        return super().parse_args(ctx, words)


def _check_output(path: Path) -> None:
    """Says before the work what would fail after it. Raises: SettingsError."""
    if path.is_dir():
        raise SettingsError(f"--output {path} is a folder, a file is needed")
    if not path.parent.is_dir():
        raise SettingsError(f"--output {path}: no such folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise SettingsError(f"--output {path}: no right to write into {path.parent}")


@main.add(cls=_WithSkills)
def generate(  # noqa: PLR0913 (options, by keyword only)
    *,
    output: OutputFile = Path("entry_dict.json"),
    env: str = "AgentPEFT/DBBench-v0",
    num_tasks: int = 500,
    skills: Skills = None,
    skill_mode: Literal["single", "all"] = "single",
    num_skills: Annotated[int | None, Option(help="With --skill-mode all: of each task.")] = None,
    max_phrasings: Annotated[int | None, Option(help="Ways to say each thing.")] = None,
    split: Annotated[Split | None, Option(help="They share no words.", show_default="both")] = None,
    seed: int = 0,
) -> int:
    """Writes new tasks as LifelongAgentBench's `entry_dict.json`."""
    _check_output(output)
    if num_tasks < 1:
        raise SettingsError(f"--num-tasks must be >= 1, got {num_tasks}")
    if seed < 0:
        raise SettingsError(f"--seed must be >= 0, got {seed}")
    options = {"num_skills": num_skills, "max_phrasings": max_phrasings, "split": split}
    write_generated(output, env, num_tasks, seed, skills=skills, skill_mode=skill_mode, **options)
    return 0


@main.add(cls=_WithSkills)
def single_skill(  # noqa: PLR0913 (options, by keyword only)
    path: InputFile,
    *,
    output: OutputFile = Path("single_skill_tasks.json"),
    scripts: Scripts = None,
    skills: Skills = None,
    min_tasks: Annotated[int, Option(help="A skill needs this many.")] = 1,
    exactly: Annotated[
        bool, Option("--exactly", help="Tasks with one skill, not those that have others too.")
    ] = False,
    index: Annotated[bool, Option("--index", help="Write task ids by skill instead.")] = False,
) -> int:
    """Keeps the tasks of the skills that have enough of them, or lists their ids by skill."""
    _check_output(output)
    family = family_of_file(path)
    tasks = family.load(path, scripts)
    by_skill = {
        skill: [
            task.task_id
            for task in tasks
            if (set(task.skills) == {skill} if exactly else skill in task.skills)
        ]
        for skill in family.check_skills(skills or family.skills)
    }
    enough = {skill: ids for skill, ids in by_skill.items() if len(ids) >= min_tasks}
    for skill, ids in by_skill.items():
        print(f"{skill:<46} {len(ids):>7}")
    short = [skill for skill in by_skill if skill not in enough]
    if short:
        few = "without a task" if min_tasks == 1 else f"fewer than {min_tasks} tasks"
        print(f"left out, {few}: {', '.join(short)}")
    if not enough:
        raise SettingsError(f"no skill has {min_tasks} tasks in {path}")
    if index:
        _write_json(output, dict(enough))
        return 0
    chosen = {task_id for ids in enough.values() for task_id in ids}
    _write_entries(output, family, ((t.task_id, t) for t in tasks if t.task_id in chosen))
    return 0


@main.add()
def convert(
    path: InputFile, *, output: OutputFile = Path("entry_dict.json"), scripts: Scripts = None
) -> int:
    """Writes any file that DB-bench or OS-interaction reads as `entry_dict.json`."""
    _check_output(output)
    family = family_of_file(path)
    tasks = family.load(path, scripts)
    _write_entries(output, family, ((task.task_id, task) for task in tasks))
    return 0


@main.add()
def download(
    *,
    output: OutputFile = Path("entry_dict.json"),
    config: Annotated[str, Option(help="db_bench or os_interaction.")] = "db_bench",
    split: Annotated[str, Option(help="Split on the hub.")] = "train",
) -> int:
    """Gets LifelongAgentBench's database or OS tasks from the hub and writes `entry_dict.json`."""
    _check_output(output)
    try:
        records = load_hub_rows(HUB_ID, config, split)
    except (DataError, SettingsError) as error:
        raise EnvFault(f"cannot download: {error}") from None
    is_os = config == "os_interaction"
    family = family_of(f"AgentPEFT/{'OSInteraction' if is_os else 'DBBench'}-v0")
    tasks = Taskset((family.parse(record, config) for record in records), HUB_ID)
    _write_entries(output, family, ((task.task_id, task) for task in tasks))
    return 0


@main.add()
def validate(
    path: InputFile,
    *,
    env: Annotated[str, Option(help="Id of a registered text environment.")],
    database: Annotated[
        str | None, Option(help="Of DB-bench: sqlite, mysql://… or docker.")
    ] = None,
    sandbox: Annotated[str | None, Option(help="Of OS-interaction: bubblewrap or docker.")] = None,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> int:
    """Plays every gold solution; off a terminal, or with --json, the last line is JSON."""
    settings = {"database": database, "sandbox": sandbox, "scripts": scripts}
    given = {name: str(value) for name, value in settings.items() if value is not None}
    return validate_gold(path, env, given, as_json=as_json)


def write_generated(path: Path, env_id: str, num_tasks: int, seed: int, **options: object) -> None:
    """Writes new tasks of an environment as `entry_dict.json`; `options` are its generator's.

    Raises: SettingsError, OSError.
    """
    family = family_of(env_id)
    tasks = Taskset.generate(family.make_generator(**options), num_tasks, seed)
    _write_entries(path, family, ((str(index), task) for index, task in enumerate(tasks)))


def _write_entries(path: Path, family: TaskFamily, tasks: Iterable[tuple[str, Task]]) -> None:
    entries = family.to_entries(tasks)
    _write_json(path, entries)
    print(f"{len(entries)} tasks written to {path}")
    if sys.stdout.isatty():
        (env_id,) = (name for name, other in FAMILIES.items() if other is family)
        print(f"next: agentpeft prepare-data validate {as_word(path)} --env {env_id}")


def _write_json(path: Path, data: Json) -> None:
    write_file(path, json.dumps(data, ensure_ascii=False, indent=1).encode())


if __name__ == "__main__":
    sys.exit(main())
