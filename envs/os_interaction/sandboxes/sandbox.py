"""What is common to the sandboxes for shell tasks, bubblewrap (no daemon) and docker: `Sandbox`.

`make_sandbox` chooses one. docs/environments/os_sandboxes.md says what each protects against.

Its life: `reset`, `prepare` (trusted scripts), `run` (the agent's commands), `check_live` (trusted
scripts that look at processes), `freeze` (everything is killed; files are read from outside),
`check` (trusted scripts over the files), then `reset` or `close`.
"""

import base64
import secrets
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from agentpeft.envs.core.errors import EnvFault, check_choice, check_count, check_duration

FileKind = Literal["file", "directory", "symlink", "other"]
Interpreter = Literal["bash", "python3"]
SandboxKind = Literal["auto", "bubblewrap", "docker"]
_COMMANDS: dict[Interpreter, str] = {"bash": "bash", "python3": "python3 -I -B"}
CHECK_ENVIRONMENT = (
    "PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"
    " PYTHONNOUSERSITE=1 PYTHONSAFEPATH=1 AWKPATH=/usr/share/awk"
)
"""The image's programs before those that an episode has added, and only the image's modules."""


@dataclass(frozen=True)
class SandboxLimits:
    """Limits of an episode. Beyond one, a command fails as it does on a full machine."""

    memory_mib: int = 512
    """Of all processes; what is written to files has `disk_mib` of its own."""
    num_processes: int = 128
    disk_mib: int = 128
    num_inodes: int = 20_000
    cpus: float = 1.0
    max_output_chars: int = 8_000
    """Of one command's output; more is cut in the middle."""

    def __post_init__(self) -> None:
        """Raises: SettingsError if a limit is not above 0."""
        for name in ("memory_mib", "num_processes", "disk_mib", "num_inodes", "max_output_chars"):
            check_count(name, self.__dict__[name])
        check_duration("cpus", self.cpus)


@dataclass(frozen=True)
class TrustedScript:
    """A program that runs as root for a task or a grader; a string stands for one of bash."""

    source: str
    interpreter: Interpreter = "bash"
    args: tuple[str, ...] = ()

    @classmethod
    def build(cls, script: "TrustedScript | str") -> "TrustedScript":
        """Returns the script that a string stands for, or the script itself."""
        return cls(script) if isinstance(script, str) else script


@dataclass(frozen=True)
class CommandResult:
    """A command's output (stdout and stderr in order) and how it ended."""

    output: str
    """Undecodable bytes are replaced; what is too long is cut in the middle, with a note."""
    exit_code: int | None
    """None: it ran out of time, or the shell ended without one."""
    is_timeout: bool = False
    is_new_shell: bool = False
    """The shell has ended with the command (`exit`, a kill): variables and jobs are gone."""

    @classmethod
    def read(cls, fields: dict[str, Any] | None) -> "CommandResult":
        """Returns the result of a sandbox's answer; None: the shell's process was killed."""
        note = "[everything was killed, since memory ran out]"
        return cls(**fields) if fields else cls(note, None, is_new_shell=True)


@dataclass(frozen=True)
class FileStat:
    """A file's `lstat`."""

    kind: FileKind
    mode: int
    """The permission bits, `07777`."""
    uid: int
    gid: int
    size: int
    """Bytes of a file; of other kinds no meaning."""
    target: str
    """Of a symlink; else empty."""
    mtime: float
    """Seconds since the epoch."""


class FrozenFiles:
    """The files that an episode has left, read from outside its reach; valid until `reset`.

    Paths are absolute inside the sandbox. Symlinks in the middle of a path lead to where they lead
    inside; the last part is never followed. Anything unreadable is as if it were not there.
    """

    def __init__(self, sandbox: "Sandbox") -> None:
        self._sandbox = sandbox

    def stat(self, path: str) -> FileStat | None:
        """Returns a path's `lstat`; None if nothing is there."""
        fields = self._sandbox.ask("stat", path)
        return FileStat(**fields) if fields else None

    def read(self, path: str, max_bytes: int) -> bytes | None:
        """Returns a file's first bytes; None if no regular file is there."""
        data = self._sandbox.ask("read", path, max_bytes)
        return None if data is None else base64.b64decode(data)

    def walk(self, path: str) -> Iterator[tuple[str, FileStat]]:
        """Yields all paths at and below a path, sorted by name, each directory before its files."""
        for path_below, fields in self._sandbox.ask("walk", path) or []:
            yield path_below, FileStat(**fields)


class Sandbox(ABC):
    """A throw-away machine for one episode at a time; not for two threads at once.

    All methods but `close` raise EnvFault if the machinery fails; nothing that the agent does may.
    """

    has_lost_files = False
    """True if the agent ended its machine and has a new one, with nothing of this episode in it."""
    _files: FrozenFiles | None = None
    _checker: "Sandbox | None" = None
    """The sandbox in which live checks run; None before the first."""

    def __init__(self, limits: SandboxLimits | None, *settings: Any) -> None:
        """`settings` are the other arguments of the subclass."""
        self.limits = limits or SandboxLimits()
        self._settings: tuple[Any, ...] = (self.limits, *settings)

    @abstractmethod
    def reset(self) -> None:
        """Starts an episode: the image's files, no process."""
        self._files = None

    @abstractmethod
    def close(self) -> None:
        """Ends the episode and leaves nothing behind. Idempotent."""
        if self._checker is not None:
            self._checker.close()
            self._checker = None

    @abstractmethod
    def ask(self, operation: str, *arguments: object, timeout_s: float = 0.0) -> Any:
        """Returns the answer of the process that serves the episode; None if it was killed."""

    @abstractmethod
    def _check(self, command: str, script: str, timeout_s: float) -> CommandResult:
        """Runs a command with `script` in it over the frozen files, by the image's programs."""

    def prepare(self, script: TrustedScript | str, timeout_s: float) -> CommandResult:
        """Runs a trusted script as root in a process of its own, before the agent's first command.

        Processes that it leaves in the background stay.
        """
        script = TrustedScript.build(script)
        if script.interpreter == "bash" and not script.args:  # a subshell costs less than a bash
            return self.run(f"(eval {shlex.quote(script.source)})", timeout_s)
        return self.run(_compose_command(script), timeout_s)

    def run(self, command: str, timeout_s: float) -> CommandResult:
        """Runs a command in the episode's one shell, where directory, variables and jobs persist.

        When its time is over, it is killed with all that it has started, and the shell continues.
        """
        if self._files:
            raise EnvFault("a frozen sandbox runs no command: reset it first")
        return CommandResult.read(self.ask("run", command, timeout_s, timeout_s=timeout_s))

    def freeze(self) -> FrozenFiles:
        """Kills every process of the episode and returns its files. Idempotent until `reset`."""
        if self._files is None:
            self.ask("freeze")
            self._files = FrozenFiles(self)
        return self._files

    def check(self, script: TrustedScript | str, timeout_s: float) -> CommandResult:
        """Runs a trusted script over the files of a frozen episode, with the image's own programs.

        Each check sees the files as they were frozen; what it writes is thrown away.
        """
        self.freeze()
        script = TrustedScript.build(script)
        command = f"{CHECK_ENVIRONMENT} {_compose_command(script)}"
        return self._check(command, script.source, timeout_s)

    def check_live(self, script: TrustedScript | str, timeout_s: float) -> CommandResult:
        """Runs a trusted script that sees the processes of an episode which is not frozen yet.

        They are stopped while it looks and run while it sleeps. It sees placeholders of them: it
        can do nothing to them, nor they to it. What it writes is thrown away.
        """
        from agentpeft.envs.os_interaction.sandboxes.live_checks import LiveCheck

        if self._files:
            raise EnvFault("a frozen sandbox has no process left to look at: reset it first")
        if self._checker is None:
            self._checker = type(self)(*self._settings)
        self._checker.reset()
        try:
            return LiveCheck(self, self._checker, TrustedScript.build(script), timeout_s).run()
        finally:
            self._checker.freeze()


def _compose_command(script: TrustedScript) -> str:
    end = f"END{secrets.token_hex(12)}"
    words = " ".join(map(shlex.quote, script.args))
    return f"{_COMMANDS[script.interpreter]} /dev/fd/9 {words} 9<<'{end}'\n{script.source}\n{end}"


def make_sandbox(
    kind: SandboxKind = "auto",
    limits: SandboxLimits | None = None,
    image: str | None = None,
    runtime: str | None = None,
) -> Sandbox:
    """Returns a sandbox; nothing heavy starts before its first `reset`.

    Args:
        kind: "auto" takes bubblewrap where it can work, else docker.
        limits: What an episode may use; None: the defaults.
        image: The name of an image that docker has, or, for bubblewrap, a tar's path too; None: the
            default one, which is made at need.
        runtime: Another OCI runtime that the docker daemon knows, such as "runsc".

    Raises: EnvFault with what to install or to start, SettingsError.
    """
    check_choice("kind of sandbox", kind, get_args(SandboxKind))
    if kind == "docker" or runtime:
        return _make_docker(limits, image, runtime)
    if kind == "bubblewrap":
        return _make_bubblewrap(limits, image)
    try:
        return _make_bubblewrap(limits, image)
    except EnvFault as no_bubblewrap:
        try:
            return _make_docker(limits, image, runtime)
        except EnvFault as no_docker:
            raise EnvFault(f"no sandbox: {no_bubblewrap}; or {no_docker}") from None


def _make_bubblewrap(limits: SandboxLimits | None, image: str | None) -> Sandbox:
    if not sys.platform.startswith("linux"):
        raise EnvFault(f"bubblewrap needs Linux, and this is {sys.platform}")
    from agentpeft.envs.os_interaction.sandboxes.bubblewrap import BubblewrapSandbox

    return BubblewrapSandbox(limits, image)


def _make_docker(limits: SandboxLimits | None, image: str | None, runtime: str | None) -> Sandbox:
    try:
        from agentpeft.envs.os_interaction.sandboxes.docker import DockerSandbox
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("docker", "requests"):
            raise
        raise EnvFault(f"no docker client ({error}): pip install agentpeft[os]") from None
    return DockerSandbox(limits, image, runtime)
