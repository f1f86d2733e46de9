"""OS tasks as entries of LifelongAgentBench's `entry_dict.json`, and back.

An entry has LAB's fields. What is right is in `verdict` (and `start`), which is ours, where one
check script does not say it. `agentpeft.apps.drivers.lab_entries` writes such a verdict as a bash
script, for LAB's own code.
"""

import re
from collections.abc import Iterable
from dataclasses import asdict
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from agentpeft.envs.core.errors import DataError
from agentpeft.envs.os_interaction.grading.answers import AnswerKind, ExpectedAnswer
from agentpeft.envs.os_interaction.grading.state import (
    FileState,
    GroupState,
    Interval,
    State,
    UserState,
)
from agentpeft.envs.os_interaction.tasks import Check, OSTask, Script, Verdict
from agentpeft.envs.tasks.records import Json, Record

_NAMES = {"c++": "cpp"}
_PARTS = {"files": FileState, "users": UserState, "groups": GroupState, "intervals": Interval}
_PROCESSES = re.compile(
    r"\b(pgrep|pkill|pidof|killall|kill|ps|pstree|top|htop|lsof|fuser|jobs|nohup|psutil|sleep)\b|/proc\b"
)


def to_entry(task: OSTask) -> dict[str, Json]:
    """Returns a task as an entry."""
    check = task.verdict.only_script
    entry: dict[str, Json] = {
        "instruction": task.instruction,
        "initialization_command_item": to_item(task.setup),
        "evaluation_info": {
            "evaluation_command_item": to_item(check),
            "ground_truth_command_item": to_item(task.gold),
        },
        "skill_list": list(task.skills),
    }
    if check is None or task.verdict.is_live != looks_at_processes(task.verdict.checks):
        verdict = _without_none(asdict(task.verdict))
        if not task.verdict.is_live:
            del verdict["is_live"]
        entry["evaluation_info"]["verdict"] = verdict  # type: ignore[index, call-overload]
    if task.start is not None:
        entry["start"] = task.start
    return entry


def looks_at_processes(checks: Iterable[Check]) -> bool:
    """Returns whether a check's text looks at processes or waits."""
    return any(isinstance(check, Script) and _PROCESSES.search(check.source) for check in checks)


def parse_verdict(record: Record) -> Verdict:
    """Returns the verdict that an entry keeps. Raises: DataError."""
    given = record.fields
    try:
        state = None
        if given.get("state") is not None:
            parts = record.child("state").fields
            state = State(**{name: _build_all(_PARTS[name], parts[name]) for name in parts})
        answer = _build(ExpectedAnswer, given["answer"]) if given.get("answer") else None
        checks = tuple(_build_check(item) for item in given.get("checks") or ())  # type: ignore[union-attr]
        return Verdict(state, answer, checks, given.get("is_live") is True)
    except (TypeError, KeyError, AttributeError, DataError) as error:
        raise DataError(f"{record.place}: no verdict of this format ({error})") from None


def _build_all(kind: Any, rows: Any) -> tuple[Any, ...]:
    return tuple(_build(kind, row) for row in rows)


def _build(kind: Any, row: Any) -> Any:
    """Returns a dataclass's object of a JSON object. Raises: TypeError if a value does not fit."""
    built = kind(**{key: tuple(v) if isinstance(v, list) else v for key, v in row.items()})
    for name, hint in get_type_hints(kind).items():
        value = vars(built)[name]
        if not _fits(value, hint):
            raise TypeError(f"{name} is {value!r:.60}, which is no {kind.__name__}'s")
    return built


def _fits(value: Any, hint: Any) -> bool:
    match get_origin(hint):
        case origin if origin is UnionType:
            return any(_fits(value, option) for option in get_args(hint))
        case origin if origin is Literal:
            return value in get_args(hint)
        case origin if origin is tuple:
            kind = get_args(hint)[0]
            return isinstance(value, tuple) and all(_fits(item, kind) for item in value)
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return bool(isinstance(value, hint))


def _build_check(item: Any) -> Check:
    if isinstance(item, dict):
        return _build(Script, item)  # type: ignore[no-any-return]
    if item not in get_args(AnswerKind):
        raise TypeError(f"unknown comparison {item!r:.40}")
    return item  # type: ignore[no-any-return]


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value


def to_item(script: Script | None) -> Json:
    """Returns a script as an entry has it; null for none."""
    if script is None:
        return None
    name = _NAMES.get(script.language, script.language)
    return {"command_name": name, "script": script.source}
