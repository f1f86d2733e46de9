"""A bubblewrap helper and the way to speak to it: `HelperProcess`."""

import json
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

from agentpeft.envs import processes
from agentpeft.envs.errors import EnvFault
from agentpeft.envs.os_interaction.sandboxes.identity import Identity

_NAME = "agentpeft.envs.os_interaction.sandboxes"
_SOURCE = f"""
import sys, types
names = {_NAME!r}.split(".")
for i in range(len(names)):
    module = sys.modules[".".join(names[: i + 1])] = types.ModuleType(".".join(names[: i + 1]))
    module.__path__ = [sys.argv[1]] if i == len(names) - 1 else []
from {_NAME}.bubblewrap_helper import main
main()
"""
"""Imports the helper's modules and none of the packages around them: it starts in 30 ms."""
_START_TIMEOUT_S = 60.0
_ANSWER_TIMEOUT_S = 120.0


class HelperProcess:
    """A process in namespaces of its own, which end with it; it ends with this one."""

    def __init__(self, config: dict[str, object], identity: Identity, pass_fds: list[int]) -> None:
        """Raises: EnvFault with what the kernel refuses."""
        command = [sys.executable, "-I", "-S", "-c", _SOURCE, str(Path(__file__).parent)]
        self._process = processes.start(command, pipes=processes.PIPE, pass_fds=pass_fds)
        self._buffer = b""
        self._num_requests = 0
        try:
            self._send(json.dumps(config))
            if (line := self.read_line(_START_TIMEOUT_S)) != "unshared":
                raise EnvFault(_explain(line))
            identity.map(self._process.pid)
            self._send("mapped")
        except BaseException:
            self.close()
            raise

    def is_alive(self) -> bool:
        """Returns whether it still runs."""
        return self._process.poll() is None

    def request(self, operation: str, *arguments: object, timeout_s: float = 0.0) -> Any:
        """Returns what an operation gives; None if the worker was killed under it.

        Raises: EnvFault if the kernel refuses, or if no answer comes.
        """
        self._num_requests += 1
        request = {"id": self._num_requests, "operation": operation, "arguments": arguments}
        self._send(json.dumps(request))
        reply: dict[str, Any] = {"id": 0}
        while reply["id"] not in (self._num_requests, None):
            line = self.read_line(timeout_s + _ANSWER_TIMEOUT_S)
            if not line.startswith("{"):
                raise EnvFault(_explain(line))
            reply = json.loads(line)
        if "error" in reply:
            raise EnvFault(f"the sandbox cannot {operation}: {reply['error']}")
        return reply.get("value")

    def read_line(self, timeout_s: float) -> str:
        """Returns what the helper says next. Raises: EnvFault if it says nothing in time."""
        assert self._process.stdout  # noqa: S101 (for the type checker)
        descriptor = self._process.stdout.fileno()
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left_s = max(0.0, deadline_s - time.monotonic())
            readable = select.select([descriptor], [], [], left_s)[0]
            data = os.read(descriptor, 1 << 20) if readable else b""
            if not data:
                self.close()
                raise EnvFault("a sandbox's helper process has died or hangs")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode("utf-8", "surrogateescape")

    def close(self) -> None:
        """Ends the process and all that it holds. Idempotent."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
        self._process.wait()

    def _send(self, line: str) -> None:
        assert self._process.stdin  # noqa: S101 (for the type checker)
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise EnvFault(f"a sandbox's helper process has died: {error}") from None


def _explain(line: str) -> str:
    return (
        f"this kernel gives no bubblewrap sandbox ({line}): it needs Linux 6.6, user namespaces "
        "(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1, "
        "kernel.apparmor_restrict_unprivileged_userns=0) and overlays in them"
    )
