"""OS-interaction task files: LifelongAgentBench's (LAB), its hub rows, and AgentBench's.

LAB's `entry_dict.json` maps an index to an entry; hub rows are such entries whose nested fields are
Python literals in strings, with a `sample_index`. AgentBench's JSON names some scripts by file;
they are read from a folder that the user gives. Its three scripts that compare an answer with the
example's output are not needed: the comparison is made here.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shlex import quote

from agentpeft.envs.core.errors import DataError, SettingsError, did_you_mean
from agentpeft.envs.os_interaction.entries import looks_at_processes, parse_verdict
from agentpeft.envs.os_interaction.grading.answers import AnswerKind, ExpectedAnswer
from agentpeft.envs.os_interaction.skills import SKILLS, detect_skills
from agentpeft.envs.os_interaction.tasks import Check, Language, OSTask, Script, Verdict
from agentpeft.envs.tasks.records import Json, Record, parse_records
from agentpeft.envs.tasks.taskset import Taskset

logger = logging.getLogger(__name__)

_FORMATS = {
    "LifelongAgentBench": (
        "instruction",
        "evaluation_info",
        "initialization_command_item",
        "skill_list",
    ),
    "AgentBench": ("description", "evaluation"),
}
_NESTED_FIELDS = ("initialization_command_item", "evaluation_info", "skill_list")
_LANGUAGES: dict[str, Language] = {
    "bash": "bash",
    "python": "python",
    "c": "c",
    "cpp": "c++",
    "c++": "c++",
    "sh": "bash",
    "py": "python",
}
_COMPARISONS: dict[str, AnswerKind] = {
    "integer-match": "number",
    "string-match": "text",
    "size-match": "size",
}
_SCRIPTS_HINT = "scripts= names the folder that they are in"


class _MissingScriptError(Exception):
    """A script that a row names, and that is not there."""


def load_tasks(
    path: str | Path, scripts: str | Path | None = None, live_checks: bool | None = None
) -> Taskset[OSTask]:
    """Returns a file's tasks; the format is told from the fields of each row.

    `scripts` is the folder of the scripts that AgentBench's rows name; rows whose scripts are not
    there are left out, and a warning names them. `live_checks`: whether check scripts see the
    episode's processes; None: those whose text looks at processes or sleeps. A task's id is its
    index in LAB's files and hub rows, and "dev#5" for row 5 of AgentBench's `dev.json`.

    Raises: DataError.
    """
    folder = None if scripts is None else Path(scripts)
    if folder is not None and not folder.is_dir():
        raise DataError(f"scripts={str(folder)!r}: no such folder of scripts")
    missing = []

    def parse(record: Record) -> OSTask | None:
        try:
            return _with_live_checks(parse_task(record, Path(path).stem, folder), live_checks)
        except _MissingScriptError as error:
            missing.append(f"{record.key} ({error})")
            return None

    tasks = [task for task in parse_records(path, parse) if task is not None]
    if missing:
        problem = f"scripts are missing: rows {', '.join(missing)}; {_SCRIPTS_HINT}"
        if not tasks:
            raise DataError(f"{path}: no tasks in this file, since {problem}")
        logger.warning("%s: left out, since %s", path, problem)
    if not tasks:
        raise DataError(f"{path}: no tasks in this file")
    try:
        return Taskset(tasks, name=str(path))
    except SettingsError as error:
        raise DataError(f"{path}: {error}") from None


def _with_live_checks(task: OSTask, live_checks: bool | None) -> OSTask:
    if live_checks is None or not any(isinstance(check, Script) for check in task.verdict.checks):
        return task
    return replace(task, verdict=replace(task.verdict, is_live=live_checks))


def parse_task(record: Record, stem: str, scripts: Path | None = None) -> OSTask:
    """Returns the task of one row of a file named `stem`. Raises: DataError."""
    if "evaluation_info" in record.fields:
        return _parse_lab(record.with_literals(_NESTED_FIELDS))
    if "description" in record.fields and "evaluation" in record.fields:
        return _AgentBenchRow(record, scripts).parse(stem)
    raise record.refuse(_FORMATS)


def _parse_lab(record: Record) -> OSTask:
    evaluation = record.child("evaluation_info")
    has_verdict = evaluation.fields.get("verdict") is not None
    check = _parse_command(evaluation, "evaluation_command_item")
    if check is None and not has_verdict:
        raise evaluation.error("evaluation_command_item", "must not be null")
    verdict = parse_verdict(evaluation.child("verdict")) if has_verdict else None
    start = record.fields.get("start")
    return OSTask(
        task_id=str(record.fields.get("sample_index", record.key)),
        instruction=record.get("instruction", str),
        skills=record.get_skills(SKILLS),
        verdict=verdict or _read_verdict((check,) if check else ()),
        setup=_parse_command(record, "initialization_command_item"),
        start=None if start is None else record.get("start", str),
        gold=_parse_command(evaluation, "ground_truth_command_item"),
        wants_answer=verdict is not None and verdict.wants_answer,
    )


def _read_verdict(checks: tuple[Check, ...], answer: ExpectedAnswer | None = None) -> Verdict:
    return Verdict(answer=answer, checks=checks, is_live=looks_at_processes(checks))


def _parse_command(record: Record, field: str) -> Script | None:
    if record.fields.get(field) is None:
        return None
    item = record.child(field)
    name = item.get("command_name", str)
    if name not in _LANGUAGES:
        raise item.error(
            "command_name", f"is unknown: {name!r:.40}{did_you_mean(name, _LANGUAGES)}"
        )
    return Script(item.get("script", str), _LANGUAGES[name])


class _AgentBenchRow:
    """One row, and the folder that its scripts are in."""

    def __init__(self, record: Record, scripts: Path | None) -> None:
        self._record = record
        self._scripts = scripts

    def parse(self, stem: str) -> OSTask:
        record, evaluation = self._record, self._record.child("evaluation")
        fields = evaluation.fields
        example = _join(self._read_scripts(fields.get("example") or record.fields.get("example")))
        answer = self._match(evaluation) if "match" in fields else None
        checks = tuple(self._checks(fields.get("check"), example))
        if answer is None and not checks:
            raise record.error("evaluation", "has neither a match nor a check")
        starts = self._read_scripts(record.fields.get("start"))
        return OSTask(
            task_id=f"{stem}#{record.key}",
            instruction=record.get("description", str),
            skills=detect_skills(example.source) if example else (),
            verdict=(verdict := _read_verdict(checks, answer)),
            setup=self._setup(),
            start="\n".join(script.to_command() for script in starts) or None,
            gold=example if answer is None else None,
            wants_answer=verdict.wants_answer or example in checks,
        )

    def _setup(self) -> Script | None:
        """Returns the script of `create`; a list there (a slip in dev.json) says nothing."""
        create = self._record.fields.get("create")
        return _join(self._read_scripts(create.get("init"))) if isinstance(create, dict) else None

    def _match(self, evaluation: Record) -> ExpectedAnswer:
        match = evaluation.fields["match"]
        fields = match if isinstance(match, dict) else {"answer": match}
        kind: AnswerKind = "regex" if "regex" in fields else "text"
        value = fields.get("regex" if kind == "regex" else "answer")
        if not isinstance(value, str):
            raise evaluation.error("match", f"must be text, got {match!r:.60}")
        return ExpectedAnswer(value, kind)

    def _checks(self, check: Json, example: Script | None) -> Iterator[Check]:
        items = check if isinstance(check, list) else [check] if check is not None else []
        for item in items:
            if item is None:
                if example is None:
                    raise self._record.error("evaluation", "has no example, which its check needs")
                yield example
                continue
            name = item.get("file") if isinstance(item, dict) else None
            stem = Path(name).stem if isinstance(name, str) else ""
            if stem in _COMPARISONS and not self._has_file(str(name)):
                yield _COMPARISONS[stem]
            elif script := self._script(item):
                yield script

    def _read_scripts(self, items: Json) -> list[Script]:
        """Returns a script, or each of a list of scripts; without those that say nothing."""
        scripts = map(self._script, items if isinstance(items, list) else [items])
        return [script for script in scripts if script is not None]

    def _script(self, item: Json) -> Script | None:
        """Returns a script that is given as text, as code, or by file; None if nothing is given."""
        if item is None or item == "":
            return None
        if isinstance(item, str):
            return Script(item)
        if not isinstance(item, dict):
            raise self._record.error("create or evaluation", f"has no script: {item!r:.60}")
        code, name = item.get("code"), item.get("file")
        ending = Path(name).suffix.lstrip(".") if isinstance(name, str) else ""
        language = item.get("language", _LANGUAGES.get(ending, "bash"))
        if not isinstance(language, str) or language not in _LANGUAGES:
            raise self._record.error("language", f"is unknown: {language!r:.40}")
        if isinstance(name, str):
            code = self._read(name)
        if not isinstance(code, str):
            raise self._record.error("create or evaluation", f"has no script: {item!r:.60}")
        return Script(code, _LANGUAGES[language])

    def _has_file(self, name: str) -> bool:
        return self._scripts is not None and (self._scripts / name).is_file()

    def _read(self, name: str) -> str:
        if not self._has_file(name) or self._scripts is None:
            raise _MissingScriptError(name)
        path = (self._scripts / name).resolve()
        if not path.is_relative_to(self._scripts.resolve()):
            raise self._record.error("file", f"must be within the folder of scripts: {name!r:.60}")
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise self._record.error("file", f"{name!r} cannot be read ({error})") from None


def _join(scripts: list[Script]) -> Script | None:
    """Returns one script that runs several, each in a process of its own, until one fails."""
    if len(scripts) < 2:
        return scripts[0] if scripts else None
    return Script("\n".join(f"bash -c {quote(script.to_command())} || exit" for script in scripts))
