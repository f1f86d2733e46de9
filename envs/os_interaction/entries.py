"""OS tasks as entries of LifelongAgentBench's `entry_dict.json`, and back.

An entry has LAB's fields, so LAB can play it: its check is a bash script. LAB has no answers; where
a task wants one, the script takes it as its first argument, as AgentBench's do. The field `verdict`
(and `start`), which is ours, keeps the rest: with it, such an entry is graded as the task was.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from shlex import quote
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from agentpeft.envs.core.errors import DataError
from agentpeft.envs.os_interaction.grading.answers import AnswerKind, ExpectedAnswer
from agentpeft.envs.os_interaction.grading.state import (
    AGING,
    SHELL_LINE,
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
_TESTS = {"file": "-f", "directory": "-d", "symlink": "-L"}
_SCRIPT_FORM = (
    rf"sed -E '1{{/^#!/{{\,{SHELL_LINE},!b}}}}; s/^[ \t]+//; s/[ \t]+$//; s/([^;\\]);$/\1/; "
    r"s/[ \t]+$//; /^(#|$)/d'"
)

_PROCESSES = re.compile(
    r"\b(pgrep|pkill|pidof|killall|kill|ps|pstree|top|htop|lsof|fuser|jobs|nohup|psutil|sleep)\b|/proc\b"
)


def to_entry(task: OSTask) -> dict[str, Json]:
    """Returns a task as an entry."""
    verdict = _without_none(asdict(task.verdict))
    is_script = len(task.verdict.checks) == 1 and isinstance(task.verdict.checks[0], Script)
    if not task.verdict.is_live:
        del verdict["is_live"]
    entry: dict[str, Json] = {
        "instruction": task.instruction,
        "initialization_command_item": _to_item(task.setup),
        "evaluation_info": {
            "evaluation_command_item": _to_item(_check_script(task.verdict)),
            "ground_truth_command_item": _to_item(task.gold),
        },
        "skill_list": list(task.skills),
    }
    if not is_script or task.verdict.is_live != looks_at_processes(task.verdict.checks):
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


def _to_item(script: Script | None) -> Json:
    if script is None:
        return None
    name = _NAMES.get(script.language, script.language)
    return {"command_name": name, "script": script.source}


def _check_script(verdict: Verdict) -> Script:
    """Returns one script that checks a verdict's conditions, as well as bash can."""
    if len(verdict.checks) == 1 and isinstance(verdict.checks[0], Script):
        return verdict.checks[0]
    tests = list(_state_tests(verdict.state)) if verdict.state else []
    if verdict.answer is not None:
        operator = "=~" if verdict.answer.kind == "regex" else "=="
        tests.append(f"[[ $1 {operator} {quote(verdict.answer.value)} ]]")
    for check in verdict.checks:
        if isinstance(check, Script):
            tests.append(f'[ "$1" = "$({check.to_command()}\n)" ]')
    return Script("\n".join(f"{test} || exit 1" for test in tests))


def _state_tests(state: State) -> Iterator[str]:
    for file in state.files:
        yield from _file_tests(file)
    for user in state.users:
        yield from _user_tests(user)
    for group in state.groups:
        gid = None if group.gid is None else str(group.gid)
        yield from _line_tests(f"getent group {group.name}", {1: group.name, 3: gid})
        members, administrators = ("group", 4, group.members), ("gshadow", 3, group.administrators)
        for file_name, field, names in (members, administrators):
            if names is not None:
                line = f"grep ^{group.name}: /etc/{file_name} | cut -d: -f{field}"
                yield _is(f"{line} | tr , '\\n' | sort", "\n".join(sorted(names)))
    for wait in state.intervals:
        times = f"stat -c %.3Y {wait.earlier} {wait.later} | xargs"
        yield f"{times} | awk '{{exit !($2 - $1 >= {wait.min_s - 0.02:g})}}'"


def _is(command: str, value: str) -> str:
    return f'[ "$({command})" = {quote(value)} ]'


def _line_tests(command: str, fields: dict[int, str | None]) -> Iterator[str]:
    for field, value in fields.items():
        if value is not None:
            yield _is(f"{command} | cut -d: -f{field}", value)


def _file_tests(file: FileState) -> Iterator[str]:
    path = file.path
    if file.kind == "absent":
        yield f"[ ! -e {path} ] && [ ! -L {path} ]"
        return
    yield f"[ {_TESTS[file.kind]} {path} ]"
    if file.content is not None:
        command, value = f"cat {path}", file.content.rstrip("\n")
        if file.match == "lines":
            command, value = f"sort {path}", "\n".join(sorted(value.split("\n")))
        elif file.match == "script":
            command = f"{_SCRIPT_FORM} {path}"
        yield _is(command, value)
    mode = None if file.mode is None else f"{file.mode:o}"
    time = None if file.mtime_s is None else f"{file.mtime_s:.0f}"
    stated = {"a": mode, "U": file.owner, "G": file.group, "Y": time}
    for letter, value_or_none in stated.items():
        if value_or_none is not None:
            yield _is(f"stat -c %{letter} {path}", value_or_none)
    if file.target is not None:
        yield _is(f"readlink {path}", file.target)


def _user_tests(user: UserState) -> Iterator[str]:
    account, shadow = f"getent passwd {user.name}", f"getent shadow {user.name}"
    uid = None if user.uid is None else str(user.uid)
    known = {1: user.name, 3: uid, 5: user.comment, 6: user.home, 7: user.shell}
    yield from _line_tests(account, known)
    if user.group is not None:
        yield _is(f"id -gn {user.name}", user.group)
    for team in user.groups or ():
        yield f"id -nG {user.name} | grep -qw {team}"
    if user.is_locked is not None:
        yield f"{'' if user.is_locked else '! '}{shadow} | cut -d: -f2 | grep -q '^!'"
    days = {4 + i: vars(user)[name] for i, name in enumerate(AGING)}
    written = {i: None if n is None else "" if n == -1 else str(n) for i, n in days.items()}
    yield from _line_tests(shadow, written)
