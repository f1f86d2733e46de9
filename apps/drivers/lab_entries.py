"""OS-interaction's tasks as entries that LifelongAgentBench's own code can check.

LAB has no answers; where a task wants one, the script takes it as its first argument, as
AgentBench's do.
"""

from collections.abc import Iterator
from shlex import quote
from typing import Any

from agentpeft.envs.os_interaction.entries import to_entry, to_item
from agentpeft.envs.os_interaction.grading.state import AGING, FileState, State, UserState
from agentpeft.envs.os_interaction.tasks import OSTask, Script, Verdict

_TESTS = {"file": "-f", "directory": "-d", "symlink": "-L"}
_SCRIPT_FORM = r"sed -E 's/^[ \t]+//; s/[ \t;]+$//; /^(#|$)/d'"


def to_lab_entry(task: OSTask) -> dict[str, Any]:
    """Returns a task as an entry whose check is a bash script (or the task's own script)."""
    entry: dict[str, Any] = to_entry(task)
    if task.verdict.only_script is None:
        entry["evaluation_info"]["evaluation_command_item"] = to_item(_check_script(task.verdict))
    return entry


def _check_script(verdict: Verdict) -> Script:
    """Returns one script that checks a verdict's conditions, as well as bash can."""
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
