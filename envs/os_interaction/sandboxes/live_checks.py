"""Checks that look at an episode's processes: `LiveCheck`.

Two machines take part. The episode's is stopped: its files and its list of processes are read from
outside. The checker's is a new machine that no process of the episode ever reaches; it gets the
files, and a placeholder for each process (`live_processes.py`). Whenever the check sleeps, the
episode runs as long, is stopped again, and the checker is updated. So the check sees one moment at
a time, and nothing of the episode ever runs while it looks.

Sleeping is what the program `sleep` and Python's `time.sleep` do; there is no other time.
"""

import math
import re
import secrets
import shlex
import time
from typing import Any

from agentpeft.envs.os_interaction.sandboxes.channel import Refusal
from agentpeft.envs.os_interaction.sandboxes.inside.root_files import (
    FILES,
    FULL,
    NAMED,
    START_FILES,
)
from agentpeft.envs.os_interaction.sandboxes.sandbox import (
    CHECK_ENVIRONMENT,
    CommandResult,
    Sandbox,
    TrustedScript,
)

VIEW = (
    [f"/{path}" for path in (*FULL, *FILES)],
    [f"/{path}" for path in NAMED],
    START_FILES,
)
"""A check's view of the files, for `apply_changes`."""
MAX_CHANGED_BYTES = 32 << 20
_START_TIMEOUT_S = 30.0
_SETTLE_S = 0.3
"""Time for a background process of the last command to execute its program."""
_DURATION = re.compile(r"(\d{0,9}(?:\.\d{0,9})?)([smhd]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}

_PREPARE = """\
mkdir -m 700 {folder} && mkfifo {folder}/asked {folder}/answered &&
exec 210<>{folder}/asked 211<>{folder}/answered && rm /usr/bin/sleep &&
cat >/usr/bin/sleep <<'END' && chmod 755 /usr/bin/sleep
#!/bin/bash
echo "sleep $*" >{folder}/asked
read -r _ <{folder}/answered
END
"""
_START = """\
{{ {command}
echo "end $?" >{folder}/asked
}} 210>&- 211>&- >{folder}/output 2>&1 &
"""
_PYTHON = """\
import subprocess, sys, time
time.sleep = lambda seconds: subprocess.run(["/usr/bin/sleep", str(float(seconds))])
sys.argv[1:] = {args!r}
exec(compile(open(9).read(), "/dev/fd/9", "exec"), {{"__name__": "__main__"}})
"""


class _CheckEndedError(Exception):
    """The check has ended without an exit status."""

    def __init__(self, reason: str, is_timeout: bool = False) -> None:
        super().__init__(reason)
        self.result = CommandResult(reason, None, is_timeout=is_timeout)


class LiveCheck:
    """A script that runs on `checker`, which was just reset, while an episode's processes live.

    They are left stopped.
    """

    def __init__(
        self, episode: Sandbox, checker: Sandbox, script: TrustedScript, timeout_s: float
    ) -> None:
        """`timeout_s` is for all, sleeping included."""
        self._episode = episode
        self._checker = checker
        self._script = script
        self._deadline_s = time.monotonic() + timeout_s
        self._files: dict[str, Any] | None = None

    def run(self) -> CommandResult:
        """Returns the script's output and status. Raises: EnvFault."""
        try:
            return self._run_script()
        except _CheckEndedError as ended:
            return ended.result

    def _run_script(self) -> CommandResult:
        # In /dev, into which no link of the episode leads.
        folder = f"/dev/shm/check-{secrets.token_hex(12)}"  # noqa: S108 (a name that is not known)
        time.sleep(_SETTLE_S)
        # This is a first shell, numbered as the agent's is.
        self._run(f"export {CHECK_ENVIRONMENT}", _START_TIMEOUT_S)
        self._bring_up_to_date()
        self._run(_PREPARE.format(folder=folder), _START_TIMEOUT_S)
        start = _START.format(folder=folder, command=_compose(self._script))
        self._run(start, _START_TIMEOUT_S)
        while True:
            event = self._run('read -r event <&210; echo "$event"', self._left_s())
            kind, _, words = event.output.rstrip("\n").partition(" ")
            if kind == "end":
                output = self._run(f"cat {folder}/output", _START_TIMEOUT_S).output
                return CommandResult(output, int(words))
            self._sleep(_parse_duration(words))
            self._run("echo >&211", _START_TIMEOUT_S)

    def _sleep(self, duration_s: float) -> None:
        if duration_s >= self._left_s():
            raise _CheckEndedError("", is_timeout=True)
        self._ask_episode("resume")
        time.sleep(duration_s)
        self._bring_up_to_date()

    def _bring_up_to_date(self) -> None:
        self._ask_episode("stop")
        before, files = self._files, self._ask_episode("list_changes", MAX_CHANGED_BYTES)
        processes = self._ask_episode("list_processes")
        if files is None or processes is None:
            raise _CheckEndedError("memory ran out while the episode's files were read")
        max_processes = self._checker.limits.num_processes // 2  # what the checker has room for
        if len(processes) > max_processes:
            raise _CheckEndedError(f"the episode has more than {max_processes} processes")
        self._files, gone = files, None
        if before is not None:
            known = {change[0]: change for change in before["changes"]}
            changes = [change for change in files["changes"] if known.get(change[0]) != change]
            gone = sorted(set(before["paths"]) - set(files["paths"]), reverse=True)
            files = {"paths": [], "changes": changes, "links": files["links"]}
        why = self._checker.ask("apply_changes", files, *VIEW, self._script.source, gone)
        if why:
            raise _CheckEndedError(why)
        self._checker.ask("update_placeholders", processes, before is None)

    def _ask_episode(self, operation: str, *arguments: object) -> Any:
        try:
            return self._episode.ask(operation, *arguments)
        except Refusal as refusal:
            raise _CheckEndedError(str(refusal)) from None

    def _run(self, command: str, timeout_s: float) -> CommandResult:
        result = self._checker.run(command, timeout_s)
        if result.exit_code != 0:
            raise _CheckEndedError(result.output, result.is_timeout)
        return result

    def _left_s(self) -> float:
        return max(self._deadline_s - time.monotonic(), 0.01)


def _compose(script: TrustedScript) -> str:
    """Returns the command that runs a script, none of which is in the list of processes."""
    end = f"END{secrets.token_hex(12)}"
    if script.interpreter == "bash":
        words = " ".join(map(shlex.quote, script.args))
        return f"bash /dev/fd/9 9<<'{end}'\nset -- {words}\n{script.source}\n{end}"
    inputs = f"{_PYTHON.format(args=list(script.args))}\n{end}\n{script.source}\n{end}"
    return f"python3 -I -B /dev/fd/8 8<<'{end}' 9<<'{end}'\n{inputs}"


def _parse_duration(words: str) -> float:
    """Returns the seconds that `sleep` would take; 0 for words that it would refuse.

    >>> _parse_duration("1 0.5m")
    31.0
    """
    if "inf" in words:
        return math.inf
    matches = [_DURATION.fullmatch(word) for word in words.split()]
    return sum(float(match[1]) * _UNITS[match[2]] for match in matches if match and match[1] != ".")
