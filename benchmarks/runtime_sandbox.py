"""A sandbox of OS-interaction by an OCI runtime, to measure it against ours: `RuntimeSandbox`.

`crun` or `runc` does all that it can do: user, mount, process, network, IPC and host name
namespaces, control groups, capabilities, rlimits, the seccomp filter, masked paths. Left to us are
the overlay over the prepared root file system, the shell and the reading of files, and these are
the same code and options that the bubblewrap sandbox has, with the next episode's container also
started while the last one is graded. `container_runtimes.py` measures it.

`way` "shell" keeps one bash in the container, as ours does; "exec" starts the container with
`sleep` and each command by an `exec`, so that directory, variables and jobs do not persist; "bare"
is "shell" without control groups, filter and masked paths, to see what these cost (crun only).
Live checks are left out. Needs root, and reads the files as root of the host, where ours does so as
nobody.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, Literal

from agentpeft.envs.core.errors import EnvFault
from agentpeft.envs.os_interaction.env import OSInteractionEnv
from agentpeft.envs.os_interaction.sandboxes.channel import Channel, ChannelClosedError, is_readable
from agentpeft.envs.os_interaction.sandboxes.helper_process import find_identity
from agentpeft.envs.os_interaction.sandboxes.images import prepare_root
from agentpeft.envs.os_interaction.sandboxes.sandbox import (
    CommandResult,
    Sandbox,
    SandboxLimits,
    TrustedScript,
)
from agentpeft.envs.system import processes

Runtime = Literal["crun", "runc"]
Way = Literal["shell", "exec", "bare"]

_SERVER = str(Path(__file__).with_name("runtime_server.py"))
_READY_TIMEOUT_S = 30.0


class RuntimeSandbox(Sandbox):
    """A `Sandbox` by an OCI runtime and an overlay in memory; without live checks."""

    def __init__(self, runtime: Runtime, way: Way, limits: SandboxLimits) -> None:
        """Raises: EnvFault where the runtime is not installed."""
        path = shutil.which(runtime)
        if path is None:
            raise EnvFault(f"no {runtime}: apt-get install {runtime}")
        self._limits = limits
        self._settings = {"runtime": path, "way": way, **vars(limits)}
        self._process: processes.Process | None = None

    @property
    def limits(self) -> SandboxLimits:
        """What an episode may use."""
        return self._limits

    def reset(self) -> None:
        """See `Sandbox.reset`."""
        self._files = None
        if self._process is None:
            self._start()
        self.ask("reset")

    def close(self) -> None:
        """See `Sandbox.close`."""
        if self._process is not None:
            assert self._process.stdin and self._process.stdout
            self._process.stdin.close()  # at which it ends its containers, and itself
            self._process.stdout.close()
            self._process.wait()
            self._process = None

    def ask(self, operation: str, *arguments: object, timeout_s: float = 0.0) -> Any:
        """Returns the server's answer. Raises: EnvFault."""
        if self._process is None:
            raise EnvFault(f"a sandbox must be reset before {operation!r}")
        try:
            return self._channel.request(operation, *arguments, timeout_s=timeout_s)
        except ChannelClosedError:
            self.close()
            raise

    def check_live(self, script: TrustedScript | str, timeout_s: float) -> CommandResult:  # noqa: ARG002
        """Raises: EnvFault."""
        raise EnvFault("live checks are left out here")

    def _check(self, command: str, script: str, timeout_s: float) -> CommandResult:  # noqa: ARG002
        return CommandResult.read(self.ask("check", command, timeout_s, timeout_s=timeout_s))

    def _start(self) -> None:
        identity = find_identity()
        folder = prepare_root(None, identity)
        config = {**self._settings, "folder": str(folder), "first_id": identity.first_uid}
        process = processes.start([sys.executable, _SERVER], pipes=processes.PIPE)
        assert process.stdin and process.stdout
        stdin, descriptor = process.stdin, process.stdout.fileno()

        def send(data: bytes) -> None:
            stdin.write(data)
            stdin.flush()

        def receive(timeout_s: float) -> bytes:
            return os.read(descriptor, 1 << 20) if is_readable(descriptor, timeout_s) else b""

        self._process, self._channel = process, Channel(send, receive)
        self._channel.write_line(json.dumps(config))
        if (line := self._channel.read_line(_READY_TIMEOUT_S)) != "ready":
            raise ChannelClosedError(line)


class RuntimeEnv(OSInteractionEnv):
    """OS-interaction in a `RuntimeSandbox`."""

    def __init__(self, *, runtime_and_way: tuple[Runtime, Way], **settings: Any) -> None:
        super().__init__(**settings)
        self._runtime_and_way = runtime_and_way

    @property
    def sandbox(self) -> RuntimeSandbox:
        """The episode's sandbox."""
        if self._sandbox is None:
            limits = self._sandbox_settings[1]
            self._sandbox = RuntimeSandbox(*self._runtime_and_way, limits)
        assert isinstance(self._sandbox, RuntimeSandbox)
        return self._sandbox
