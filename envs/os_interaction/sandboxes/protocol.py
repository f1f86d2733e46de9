"""The protocol of sandboxes: `Sandbox`, its limits, its results, and the files that it leaves.

Its life: `reset`, `prepare` (trusted scripts), `run` (the agent's commands), `check_live` (trusted
scripts that look at processes), `freeze` (everything is killed; files are read from outside),
`check` (trusted scripts over the files), then `reset` or `close`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from agentpeft.envs.core.errors import check_count, check_duration

FileKind = Literal["file", "directory", "symlink", "other"]
Interpreter = Literal["bash", "python3"]


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


class FrozenFiles(Protocol):
    """The files that an episode has left, read from outside its reach; valid until `reset`.

    Paths are absolute inside the sandbox. Symlinks in the middle of a path lead to where they lead
    inside; the last part is never followed. Anything unreadable is as if it were not there.
    """

    def stat(self, path: str) -> FileStat | None:
        """Returns a path's `lstat`; None if nothing is there."""

    def read(self, path: str, max_bytes: int) -> bytes | None:
        """Returns a file's first bytes; None if no regular file is there."""

    def walk(self, path: str) -> Iterator[tuple[str, FileStat]]:
        """Yields all paths at and below a path, sorted by name, each directory before its files."""


class Sandbox(Protocol):
    """A throw-away machine for one episode at a time; not for two threads at once.

    All methods but `close` raise EnvFault if the machinery fails; nothing that the agent does may.
    """

    has_lost_files: bool
    """True if the agent ended its machine and has a new one, with nothing of this episode in it."""

    def reset(self) -> None:
        """Starts an episode: the image's files, no process."""

    def prepare(self, script: TrustedScript | str, timeout_s: float) -> CommandResult:
        """Runs a trusted script as root in a process of its own, before the agent's first command.

        Processes that it leaves in the background stay.
        """

    def run(self, command: str, timeout_s: float) -> CommandResult:
        """Runs a command in the episode's one shell, where directory, variables and jobs persist.

        When its time is over, it is killed with all that it has started, and the shell continues.
        """

    def freeze(self) -> FrozenFiles:
        """Kills every process of the episode and returns its files. Idempotent until `reset`."""

    def check(self, script: TrustedScript | str, timeout_s: float) -> CommandResult:
        """Runs a trusted script over the files of a frozen episode, with the image's own programs.

        Each check sees the files as they were frozen; what it writes is thrown away.
        """

    def check_live(self, script: TrustedScript | str, timeout_s: float) -> CommandResult:
        """Runs a trusted script that sees the processes of an episode which is not frozen yet.

        They are stopped while it looks and run while it sleeps. It sees placeholders of them: it
        can do nothing to them, nor they to it. What it writes is thrown away.
        """

    def close(self) -> None:
        """Ends the episode and leaves nothing behind. Idempotent."""
