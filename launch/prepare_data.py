"""Prepares task files: generate, download, convert, filter by skill, and validate them.

    python launch/prepare_data.py generate --num-tasks 500 --output entry_dict.json
    python launch/prepare_data.py validate entry_dict.json --env AgentPEFT/DBBench-v0

Exit status: 0 done; 1 a gold solution fails, or the data set cannot be had; 2 wrong input.
"""

import agentpeft.launch  # noqa: F401 (takes this folder off the path, before all others)

# isort: split
import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from agentpeft.envs import DataError, EnvFault, SettingsError, Task, Taskset, UnknownTaskError
from agentpeft.envs.gsm8k.word_problems import WordProblems
from agentpeft.envs.system.whole_files import write_file
from agentpeft.envs.tasks.hub import load_hub_rows
from agentpeft.envs.tasks.records import Json
from agentpeft.envs.tasks.splits import Split
from agentpeft.launch.data.gold_validation import validate
from agentpeft.launch.data.task_families import TaskFamily, family_of, family_of_file

HUB_ID = "csyq/LifelongAgentBench"
_INTERRUPTED = 130


class _Parser(ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one sub-command and returns the exit status."""
    args = make_parser().parse_args(argv)
    try:
        if "output" in args:
            _check_output(args.output)
        status: int = args.run(args)
        sys.stdout.flush()
    except (DataError, SettingsError, UnknownTaskError, EnvFault) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 2
    except OSError as error:
        print(f"error: {error.filename or 'output'}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return _INTERRUPTED
    return status


def _check_output(path: Path) -> None:
    """Says before the work what would fail after it. Raises: SettingsError."""
    if path.is_dir():
        raise SettingsError(f"--output {path} is a folder, a file is needed")
    if not path.parent.is_dir():
        raise SettingsError(f"--output {path}: no such folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise SettingsError(f"--output {path}: no right to write into {path.parent}")


def generate(args: Namespace) -> int:
    """Writes new tasks as LifelongAgentBench's `entry_dict.json`."""
    if args.num_tasks < 1:
        raise SettingsError(f"--num-tasks must be >= 1, got {args.num_tasks}")
    if args.seed < 0:
        raise SettingsError(f"--seed must be >= 0, got {args.seed}")
    family = family_of(args.env)
    source = family.make_generator(
        args.skills,
        skill_mode=args.skill_mode,
        num_skills=args.num_skills,
        max_phrasings=args.max_phrasings,
        split=args.split,
    )
    tasks = Taskset.generate(source, args.num_tasks, args.seed)
    _write_entries(args.output, family, ((str(index), t) for index, t in enumerate(tasks)))
    return 0


def single_skill(args: Namespace) -> int:
    """Keeps the tasks of the skills that have enough of them, or lists their ids by skill."""
    family = family_of_file(args.input)
    tasks = family.load(args.input, args.scripts)
    skills = family.check_skills(args.skills or family.skills)
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
    _write_entries(args.output, family, ((t.task_id, t) for t in tasks if t.task_id in chosen))
    return 0


def convert(args: Namespace) -> int:
    """Writes any file that DB-bench or OS-interaction reads as `entry_dict.json`."""
    family = family_of_file(args.input)
    tasks = family.load(args.input, args.scripts)
    _write_entries(args.output, family, ((task.task_id, task) for task in tasks))
    return 0


def download(args: Namespace) -> int:
    """Gets LifelongAgentBench's database or OS tasks from the hub and writes `entry_dict.json`."""
    try:
        records = load_hub_rows(HUB_ID, args.config, args.split)
    except (DataError, SettingsError) as error:
        print(f"error: cannot download: {error}", file=sys.stderr)
        return 1
    is_os = args.config == "os_interaction"
    family = family_of(f"AgentPEFT/{'OSInteraction' if is_os else 'DBBench'}-v0")
    tasks = Taskset((family.parse(record, args.config) for record in records), HUB_ID)
    _write_entries(args.output, family, ((task.task_id, task) for task in tasks))
    return 0


def write_word_problems(path: Path, num_tasks: int, seed: int, split: Split) -> None:
    """Writes new word problems as GSM8K's JSONL; the splits have no problem's numbers in common.

    Raises: SettingsError.
    """
    rng, source = np.random.default_rng(seed), WordProblems(split)
    tasks = (source.draw(rng) for _ in range(num_tasks))
    rows = [{"question": task.instruction, "answer": task.solution} for task in tasks]
    _write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    print(f"{len(rows)} word problems written to {path}")


def _write_entries(path: Path, family: TaskFamily, tasks: Iterable[tuple[str, Task]]) -> None:
    entries = family.to_entries(tasks)
    _write_json(path, entries)
    print(f"{len(entries)} tasks written to {path}")


def _write_json(path: Path, data: Json) -> None:
    _write_text(path, json.dumps(data, ensure_ascii=False, indent=1))


def _write_text(path: Path, text: str) -> None:
    """Raises: SettingsError."""
    try:
        write_file(path, text.encode())
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror}") from None


def make_parser() -> ArgumentParser:
    """Returns the words of all sub-commands."""
    scripts = "folder of the scripts that AgentBench's OS tasks name"
    parser = _Parser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="command", parser_class=_Parser)

    def add(name: str, run: object, output: str | None) -> ArgumentParser:
        command = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        command.set_defaults(run=run)
        if output:
            command.add_argument("--output", type=Path, default=Path(output), help=output)
        return command

    command = add("generate", generate, "entry_dict.json")
    command.add_argument("--env", default="AgentPEFT/DBBench-v0", help="AgentPEFT/DBBench-v0")
    command.add_argument("--num-tasks", type=int, default=500, help="500")
    command.add_argument("--skills", nargs="+", metavar="SKILL", help="default: all")
    command.add_argument("--skill-mode", choices=("single", "all"), default="single")
    command.add_argument("--num-skills", type=int, help="with --skill-mode all: this many a task")
    command.add_argument("--max-phrasings", type=int, help="ways to say each thing (default: all)")
    command.add_argument(
        "--split", choices=("train", "test"), help="share no words (default: both)"
    )
    command.add_argument("--seed", type=int, default=0, help="0")
    command = add("single-skill", single_skill, "single_skill_tasks.json")
    command.add_argument("input", type=Path)
    command.add_argument("--scripts", type=Path, help=scripts)
    command.add_argument("--skills", nargs="+", metavar="SKILL", help="default: all")
    command.add_argument("--min-tasks", type=int, default=1, help="a skill needs this many (1)")
    command.add_argument("--index", action="store_true", help="write task ids by skill instead")
    command = add("convert", convert, "entry_dict.json")
    command.add_argument("input", type=Path)
    command.add_argument("--scripts", type=Path, help=scripts)
    command = add("download", download, "entry_dict.json")
    command.add_argument("--config", default="db_bench", help="db_bench or os_interaction")
    command.add_argument("--split", default="train", help="split on the hub (train)")
    command = add("validate", validate, None)
    command.add_argument("path", type=Path)
    command.add_argument("--env", required=True, help="id of a registered text environment")
    command.add_argument("--database", help='of DB-bench: "sqlite", "mysql://…" or "docker"')
    command.add_argument("--sandbox", help='of OS-interaction: "bubblewrap" or "docker"')
    command.add_argument("--scripts", type=Path, help=scripts)
    return parser


if __name__ == "__main__":
    sys.exit(main())
