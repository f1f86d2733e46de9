"""Prepares task files: generate, download, convert, filter by skill, and validate them.

    python launch/prepare_data.py generate --num-tasks 500 --output entry_dict.json
    python launch/prepare_data.py validate entry_dict.json --env AgentPEFT/DBBench-v0

Exit status: 0 done; 1 a gold solution fails, or the data set cannot be had; 2 wrong input.
"""

import json
import logging
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

if __name__ == "__main__" and Path(sys.path[0]) == Path(__file__).parent:
    del sys.path[0]  # the scripts beside this one would shadow installed packages

import gymnasium

from agentpeft.envs import (
    DataError,
    EnvFault,
    Outcome,
    SettingsError,
    Task,
    Taskset,
    TextEnv,
    UnknownTaskError,
)
from agentpeft.envs.db_bench.backends import open_database
from agentpeft.envs.db_bench.database import DatabaseLimits
from agentpeft.envs.db_bench.env import DBBenchEnv
from agentpeft.envs.db_bench.generator import DBBenchGenerator
from agentpeft.envs.db_bench.grading import Grader
from agentpeft.envs.db_bench.loaders import load_tasks, parse_task, to_entry
from agentpeft.envs.db_bench.skills import SKILLS, check_skills
from agentpeft.envs.db_bench.tasks import DBBenchTask
from agentpeft.envs.records import Json, Record

HUB_ID = "csyq/LifelongAgentBench"


class _Parser(ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one sub-command and returns the exit status."""
    args = _make_parser().parse_args(argv)
    try:
        status: int = args.run(args)
    except (DataError, SettingsError, UnknownTaskError, EnvFault) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename or 'output'}: {error.strerror}", file=sys.stderr)
        return 2
    return status


def generate(args: Namespace) -> int:
    """Writes new tasks as LifelongAgentBench's `entry_dict.json`."""
    if args.num_tasks < 1:
        raise SettingsError(f"--num-tasks must be >= 1, got {args.num_tasks}")
    source = DBBenchGenerator(
        args.skills,
        skill_mode=args.skill_mode,
        num_skills=args.num_skills,
        max_phrasings=args.max_phrasings,
    )
    tasks = Taskset.generate(source, args.num_tasks, args.seed)
    _write_entries(args.output, ((str(index), task) for index, task in enumerate(tasks)))
    return 0


def single_skill(args: Namespace) -> int:
    """Keeps the tasks of the skills that have enough of them, or lists their ids by skill."""
    tasks = load_tasks(args.input)
    skills = check_skills(args.skills or SKILLS)
    by_skill = {skill: [t.task_id for t in tasks if skill in t.skills] for skill in skills}
    enough = {skill: ids for skill, ids in by_skill.items() if len(ids) >= args.min_tasks}
    for skill, ids in by_skill.items():
        print(f"{skill:<46} {len(ids):>7}")
    short = [skill for skill in skills if skill not in enough]
    if short:
        print(f"left out, fewer than {args.min_tasks} tasks: {', '.join(short)}")
    if not enough:
        raise SettingsError(f"no skill has {args.min_tasks} tasks in {args.input}")
    if args.index:
        _write_json(args.output, {skill: list(ids) for skill, ids in enough.items()})
        return 0
    chosen = {task_id for ids in enough.values() for task_id in ids}
    _write_entries(args.output, ((t.task_id, t) for t in tasks if t.task_id in chosen))
    return 0


def convert(args: Namespace) -> int:
    """Writes any file that DB-bench reads as `entry_dict.json`."""
    _write_entries(args.output, ((task.task_id, task) for task in load_tasks(args.input)))
    return 0


def download(args: Namespace) -> int:
    """Gets LifelongAgentBench's database tasks from the hub and writes `entry_dict.json`."""
    try:
        from datasets import load_dataset
    except ImportError:
        print("error: download needs the datasets package: pip install datasets", file=sys.stderr)
        return 1
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its retries are no news
    try:
        rows = load_dataset(HUB_ID, args.config, split=args.split)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        print(f"error: cannot download {HUB_ID} (network?): {reason}", file=sys.stderr)
        return 1
    records = (Record(f"{HUB_ID} row {i}", str(i), dict(row)) for i, row in enumerate(rows))
    tasks = Taskset((parse_task(record, args.config) for record in records), HUB_ID)
    _write_entries(args.output, ((task.task_id, task) for task in tasks))
    return 0


def validate(args: Namespace) -> int:
    """Plays every gold solution; the last line on standard output is JSON."""
    settings = {"data": str(args.path)}
    if args.database is not None:
        settings["database"] = args.database
    with closing(_make_env(args.env, settings)) as env:
        if not isinstance(env.task_source, Taskset):
            raise SettingsError(f"{args.env} does not read its tasks from {args.path}")
        failed = []
        for task in env.task_source:
            problem = _find_problem(env, task)
            if problem:
                failed.append(task.task_id)
                print(f"{task.task_id}: {problem}")
            elif note := _check_md5(env, task):
                print(f"{task.task_id}: {note}")
        num_tasks = len(env.task_source)
    print(json.dumps({"tasks": num_tasks, "succeeded": num_tasks - len(failed), "failed": failed}))
    return 1 if failed else 0


def _make_env(env_id: str, settings: Mapping[str, Any]) -> TextEnv[Task]:
    try:
        env = gymnasium.make(env_id, disable_env_checker=True, **settings).unwrapped
    except gymnasium.error.Error as error:
        raise SettingsError(str(error)) from None
    except (TypeError, SettingsError) as error:
        raise SettingsError(f"{env_id}: {error}") from None
    if not isinstance(env, TextEnv):
        raise SettingsError(f"{env_id} is not a text environment")
    return env


def _find_problem(env: TextEnv[Task], task: Task) -> str | None:
    """Returns why a task's gold solution does not succeed; None if it does."""
    try:
        return _play_gold(env, task) or _check_label(env, task)
    except DataError as error:
        return str(error)


def _play_gold(env: TextEnv[Task], task: Task) -> str | None:
    observation = ""
    env.reset(options={"task": task})
    for action in env.oracle_actions(task):
        observation = env.step(action)[0] or observation
        if env.outcome is not Outcome.ONGOING:
            break
    if env.outcome is Outcome.SUCCESS:
        return None
    return f"the gold solution ends in {env.outcome.value}, after {observation!r:.300}"


def _check_label(env: TextEnv[Task], task: Task) -> str | None:
    """Returns how the label differs from what the gold SQL gives, where there are both."""
    if not isinstance(env, DBBenchEnv) or not isinstance(task, DBBenchTask):
        return None
    if task.label is None or task.gold_sql is None:
        return None
    rows = env.grader.gold_label(replace(task, label=None))
    if env.grader.is_right_answer(task, str(list(rows))):
        return None
    return f"the gold SQL gives {list(rows)!r:.200}, the label is {list(task.label)!r:.200}"


def _check_md5(env: TextEnv[Task], task: Task) -> str | None:
    """Returns a note where a changed table's hash is not the one that the data give."""
    if not isinstance(env, DBBenchEnv) or not isinstance(task, DBBenchTask) or task.md5 is None:
        return None
    md5 = env.grader.gold_md5(task)
    return None if md5 == task.md5 else f"note: its md5 is {task.md5}, the gold SQL gives {md5}"


def _write_entries(path: Path, tasks: Iterable[tuple[str, DBBenchTask]]) -> None:
    with closing(open_database("sqlite", DatabaseLimits())) as database:
        grader = Grader(database)
        entries = {key: to_entry(_complete(task, grader)) for key, task in tasks}
    _write_json(path, dict(entries))
    print(f"{len(entries)} tasks written to {path}")


def _complete(task: DBBenchTask, grader: Grader) -> DBBenchTask:
    """Returns a task with the md5 or the label that an entry needs."""
    if task.is_write and task.md5 is None:
        return replace(task, md5=grader.gold_md5(task))
    if not task.is_write and task.label is None:
        return replace(task, label=grader.gold_label(task))
    return task


def _write_json(path: Path, data: Json) -> None:
    """Writes to a temporary name, then renames. Raises: OSError."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.write_text(json.dumps(data, ensure_ascii=False, indent=1), encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _make_parser() -> ArgumentParser:
    parser = _Parser(prog="prepare_data", description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="command", parser_class=_Parser)

    def add(name: str, run: object, output: str | None) -> ArgumentParser:
        command = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        command.set_defaults(run=run)
        if output:
            command.add_argument("--output", type=Path, default=Path(output), help=output)
        return command

    command = add("generate", generate, "entry_dict.json")
    command.add_argument("--num-tasks", type=int, default=500, help="500")
    command.add_argument("--skills", nargs="+", metavar="SKILL", help="default: all 22")
    command.add_argument("--skill-mode", choices=("single", "all"), default="single")
    command.add_argument("--num-skills", type=int, help="with --skill-mode all: this many a task")
    command.add_argument("--max-phrasings", type=int, help="ways to say each thing (default: all)")
    command.add_argument("--seed", type=int, default=0, help="0")
    command = add("single-skill", single_skill, "single_skill_tasks.json")
    command.add_argument("input", type=Path)
    command.add_argument("--skills", nargs="+", metavar="SKILL", help="default: all 22")
    command.add_argument("--min-tasks", type=int, default=1, help="a skill needs this many (1)")
    command.add_argument("--index", action="store_true", help="write task ids by skill instead")
    command = add("convert", convert, "entry_dict.json")
    command.add_argument("input", type=Path)
    command = add("download", download, "entry_dict.json")
    command.add_argument("--config", default="db_bench", help="subset on the hub (db_bench)")
    command.add_argument("--split", default="train", help="split on the hub (train)")
    command = add("validate", validate, None)
    command.add_argument("path", type=Path)
    command.add_argument("--env", required=True, help="id of a registered text environment")
    command.add_argument("--database", help='of DB-bench: "sqlite", "mysql://…" or "docker"')
    return parser


if __name__ == "__main__":
    sys.exit(main())
