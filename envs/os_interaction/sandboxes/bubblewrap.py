"""Episodes under bubblewrap, without a daemon: `BubblewrapSandbox`."""

import atexit
import base64
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

from agentpeft.envs.errors import EnvFault
from agentpeft.envs.os_interaction.sandboxes.cgroups import Cgroups
from agentpeft.envs.os_interaction.sandboxes.helper_process import HelperProcess
from agentpeft.envs.os_interaction.sandboxes.identity import find_identity
from agentpeft.envs.os_interaction.sandboxes.images import prepare_root
from agentpeft.envs.os_interaction.sandboxes.protocol import (
    CommandResult,
    FileStat,
    Interpreter,
    SandboxLimits,
)
from agentpeft.envs.os_interaction.sandboxes.scripts import compose_script

_KILLED = CommandResult("[the sandbox ran out of memory]", None, is_new_shell=True)


class BubblewrapSandbox:
    """A `Sandbox` by overlay, namespaces and bubblewrap; see docs/environments/os_sandboxes.md.

    One helper process and its cgroups are kept from episode to episode; `close` or the end of this
    process ends them.
    """

    def __init__(self, limits: SandboxLimits | None = None, image: str | None = None) -> None:
        """`image`: a tar's path, an image that docker has, or None for the default one.

        Raises: EnvFault with what to install.
        """
        self._limits = limits or SandboxLimits()
        self._image = image
        self._bwrap = find_bubblewrap()
        self._identity = find_identity()
        self._helper: HelperProcess | None = None
        self._cgroups: Cgroups | None = None

    def reset(self) -> None:
        """See `Sandbox.reset`."""
        if self._helper is None or not self._helper.is_alive():
            self.close()
            self._start()
        self._request("reset")

    def prepare(
        self,
        script: str,
        timeout_s: float,
        interpreter: Interpreter = "bash",
        args: Sequence[str] = (),
    ) -> CommandResult:
        """See `Sandbox.prepare`."""
        return self.run(compose_script(script, interpreter, args), timeout_s)

    def run(self, command: str, timeout_s: float) -> CommandResult:
        """See `Sandbox.run`."""
        return self._run("run", command, timeout_s)

    def freeze(self) -> "_Files":
        """See `Sandbox.freeze`."""
        self._request("freeze")
        return _Files(self)

    def check(
        self,
        script: str,
        timeout_s: float,
        interpreter: Interpreter = "bash",
        args: Sequence[str] = (),
    ) -> CommandResult:
        """See `Sandbox.check`."""
        return self._run("check", compose_script(script, interpreter, args), timeout_s)

    def close(self) -> None:
        """See `Sandbox.close`."""
        if self._helper:
            self._helper.close()
            self._helper = None
        if self._cgroups:
            self._cgroups.close()
            self._cgroups = None
            atexit.unregister(self.close)

    def ask(self, operation: str, *arguments: object) -> Any:
        """Returns what the helper says of a frozen episode's files. Raises: EnvFault."""
        return self._request(operation, *arguments)

    def _start(self) -> None:
        folder = prepare_root(self._image, self._identity)
        self._cgroups = Cgroups(self._limits)
        atexit.register(self.close)
        descriptors = self._cgroups.descriptors
        config: dict[str, object] = {
            **vars(self._limits),
            "folder": str(folder),
            "bwrap": self._bwrap,
            "cgroups": descriptors,
        }
        self._helper = HelperProcess(config, self._identity, descriptors)

    def _run(self, operation: str, command: str, timeout_s: float) -> CommandResult:
        fields = self._request(operation, command, timeout_s, timeout_s=timeout_s)
        return CommandResult(**fields) if fields else _KILLED

    def _request(self, operation: str, *arguments: object, timeout_s: float = 0.0) -> Any:
        if self._helper is None:
            raise EnvFault(f"a sandbox must be reset before {operation!r}")
        return self._helper.request(operation, *arguments, timeout_s=timeout_s)


class _Files:
    """The files of a frozen episode, read by the helper in a tree that nothing else can reach."""

    def __init__(self, sandbox: BubblewrapSandbox) -> None:
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
        for found, fields in self._sandbox.ask("walk", path) or []:
            yield found, FileStat(**fields)


def find_bubblewrap() -> str:
    """Returns where bubblewrap is. Raises: EnvFault with what to install."""
    path = shutil.which("bwrap", path=f"{os.environ.get('PATH', '')}:/usr/bin")
    if not path:
        raise EnvFault("no bubblewrap: apt-get install bubblewrap uidmap")
    return path
