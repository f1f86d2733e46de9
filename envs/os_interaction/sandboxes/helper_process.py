"""A bubblewrap helper, started and mapped: `HelperProcess`."""

import json
import os
import sys

from agentpeft.envs.core.errors import EnvFault
from agentpeft.envs.os_interaction.sandboxes.channel import (
    Channel,
    compose_program,
    is_readable,
)
from agentpeft.envs.os_interaction.sandboxes.identity import Identity
from agentpeft.envs.system import processes

_START_TIMEOUT_S = 60.0


class HelperProcess:
    """A process in namespaces of its own, which end with it; it ends with this one."""

    def __init__(self, config: dict[str, object], identity: Identity, pass_fds: list[int]) -> None:
        """Raises: EnvFault with what the kernel refuses."""
        command = [sys.executable, "-I", "-S", "-c", compose_program("bubblewrap_helper")]
        self._process = processes.start(command, pipes=processes.PIPE, pass_fds=pass_fds)
        assert self._process.stdin  # noqa: S101 (for the type checker)
        assert self._process.stdout  # noqa: S101
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.channel = Channel(self._send, self._receive)
        try:
            self.channel.write_line(json.dumps({**config, "first_owner": identity.first_owner}))
            self._expect("unshared", _START_TIMEOUT_S)
            identity.map(self._process.pid)
            self.channel.write_line("mapped")
            self._expect("ready", _START_TIMEOUT_S if "bwrap" in config else 10 * _START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the process and all that it holds. Idempotent."""
        self._process.kill()
        self._stdin.close()
        self._stdout.close()
        self._process.wait()

    def _expect(self, line: str, timeout_s: float) -> None:
        if (got := self.channel.read_line(timeout_s)) != line:
            raise EnvFault(
                f"this kernel gives no bubblewrap sandbox ({got}): it needs Linux 6.6, user "
                "namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1, "
                "kernel.apparmor_restrict_unprivileged_userns=0) and overlays in them"
            )

    def _send(self, data: bytes) -> None:
        self._stdin.write(data)
        self._stdin.flush()

    def _receive(self, timeout_s: float) -> bytes:
        descriptor = self._stdout.fileno()
        return os.read(descriptor, 1 << 20) if is_readable(descriptor, timeout_s) else b""
