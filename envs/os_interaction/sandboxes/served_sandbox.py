"""The common part of the sandboxes: `ServedSandbox`, whose shell and files a process serves."""

import base64
import secrets
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from agentpeft.envs.core.errors import EnvFault
from agentpeft.envs.os_interaction.sandboxes.live_checks import run_live_check
from agentpeft.envs.os_interaction.sandboxes.protocol import (
    CommandResult,
    FileStat,
    Interpreter,
    SandboxLimits,
    TrustedScript,
)

_COMMANDS: dict[Interpreter, str] = {"bash": "bash", "python3": "python3 -I -B"}
_CHECK_ENVIRONMENT = (
    "PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"
    " PYTHONNOUSERSITE=1 PYTHONSAFEPATH=1 AWKPATH=/usr/share/awk"
)
"""The image's programs before those that an episode has added, and only the image's modules."""
_KILLED = CommandResult("[everything was killed, since memory ran out]", None, is_new_shell=True)


class ServedSandbox(ABC):
    """A `Sandbox` without `reset` and `close`; `reset` must set `_files` to None."""

    limits: SandboxLimits
    """Limits of an episode."""
    has_lost_files = False
    """See `Sandbox.has_lost_files`."""
    _files: "ServedFiles | None" = None
    _checker: "ServedSandbox | None" = None
    """The sandbox in which live checks run; None before the first."""

    @abstractmethod
    def reset(self) -> None:
        """See `Sandbox.reset`."""

    @abstractmethod
    def close(self) -> None:
        """See `Sandbox.close`."""

    @abstractmethod
    def _make_checker(self) -> "ServedSandbox":
        """Returns another sandbox of the same kind."""

    @abstractmethod
    def ask(self, operation: str, *arguments: object, timeout_s: float = 0.0) -> Any:
        """Returns the answer of the process that serves the episode; None if it was killed."""

    @abstractmethod
    def _check(self, command: str, script: str, timeout_s: float) -> CommandResult:
        """Runs a command with `script` in it over the frozen files, by the image's programs."""

    def prepare(self, script: TrustedScript | str, timeout_s: float) -> CommandResult:
        """See `Sandbox.prepare`."""
        script = TrustedScript.build(script)
        if script.interpreter == "bash" and not script.args:  # a subshell costs less than a bash
            return self.run(f"(eval {shlex.quote(script.source)})", timeout_s)
        return self.run(_compose_command(script), timeout_s)

    def run(self, command: str, timeout_s: float) -> CommandResult:
        """See `Sandbox.run`."""
        if self._files:
            raise EnvFault("a frozen sandbox runs no command: reset it first")
        return read_result(self.ask("run", command, timeout_s, timeout_s=timeout_s))

    def freeze(self) -> "ServedFiles":
        """See `Sandbox.freeze`."""
        if self._files is None:
            self.ask("freeze")
            self._files = ServedFiles(self)
        return self._files

    def check(self, script: TrustedScript | str, timeout_s: float) -> CommandResult:
        """See `Sandbox.check`; freezes first."""
        self.freeze()
        script = TrustedScript.build(script)
        command = f"{_CHECK_ENVIRONMENT} {_compose_command(script)}"
        return self._check(command, script.source, timeout_s)

    def check_live(self, script: TrustedScript | str, timeout_s: float) -> CommandResult:
        """See `Sandbox.check_live`."""
        if self._files:
            raise EnvFault("a frozen sandbox has no process left to look at: reset it first")
        if self._checker is None:
            self._checker = self._make_checker()
        self._checker.reset()
        try:
            return run_live_check(
                self,
                self._checker,
                TrustedScript.build(script),
                environment=_CHECK_ENVIRONMENT,
                max_processes=self.limits.num_processes // 2,
                timeout_s=timeout_s,
            )
        finally:
            self._checker.freeze()

    def _close_checker(self) -> None:
        if self._checker is not None:
            self._checker.close()
            self._checker = None


class ServedFiles:
    """`FrozenFiles` of a sandbox."""

    def __init__(self, sandbox: ServedSandbox) -> None:
        self._sandbox = sandbox

    def stat(self, path: str) -> FileStat | None:
        """See `FrozenFiles.stat`."""
        fields = self._sandbox.ask("stat", path)
        return FileStat(**fields) if fields else None

    def read(self, path: str, max_bytes: int) -> bytes | None:
        """See `FrozenFiles.read`."""
        data = self._sandbox.ask("read", path, max_bytes)
        return None if data is None else base64.b64decode(data)

    def walk(self, path: str) -> Iterator[tuple[str, FileStat]]:
        """See `FrozenFiles.walk`."""
        for path_below, fields in self._sandbox.ask("walk", path) or []:
            yield path_below, FileStat(**fields)


def read_result(fields: dict[str, Any] | None) -> CommandResult:
    """Returns a command's result from its fields; None: the shell's process was killed."""
    return CommandResult(**fields) if fields else _KILLED


def _compose_command(script: TrustedScript) -> str:
    end = f"END{secrets.token_hex(12)}"
    words = " ".join(map(shlex.quote, script.args))
    return f"{_COMMANDS[script.interpreter]} /dev/fd/9 {words} 9<<'{end}'\n{script.source}\n{end}"
