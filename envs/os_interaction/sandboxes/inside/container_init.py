"""Process 1 of a docker sandbox's container: it starts the shells, and reads the files afterwards.

It runs from the pristine image before the agent does, imports nothing later, and nobody inside may
look into it: it is not dumpable and no capability is there to change that. Standard library only.
"""

import os
import resource
import signal
import sys
import time
from typing import Any

from agentpeft.envs.os_interaction.sandboxes.inside import (
    kernel,
    left_pipes,
    live_processes,
    served_files,
    shell,
)
from agentpeft.envs.os_interaction.sandboxes.inside.children import Children

_CLOCK_STEP_S = 0.05
_SHELL_NUMBER = 24
"""The shell's process id: equal in all containers, so that later ids can be equal too."""
_LIMITS = sorted(number for name, number in vars(resource).items() if name.startswith("RLIMIT_"))


class _Container:
    """This container's processes (a `Host`)."""

    def __init__(self, children: Children) -> None:
        self._children = children

    def start(self, stdin: int, output: int) -> int:
        live_processes.skip_to(_SHELL_NUMBER)
        return shell.spawn(shell.BASH, stdin, output)

    def find_init(self, pid: int) -> int:  # noqa: ARG002 (the same for every shell)
        return os.getpid()

    def kill_all(self) -> None:
        self._children.kill(-1)


def main() -> None:
    """Serves until standard input ends."""
    kernel.rename_process("sandbox-init")
    kernel.set_dumpable(False)
    kernel.apply_filter()
    kernel.limit_descriptors()
    shell.name_localhost("/etc")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limits = [resource.getrlimit(number) for number in _LIMITS]
    children = Children()
    placeholders = live_processes.Placeholders(live_processes.call_here)
    processes = live_processes.EpisodeProcesses(
        os.getpid, live_processes.list_container, lambda: os.kill(-1, signal.SIGSTOP)
    )
    pipes = left_pipes.LeftPipes()
    session = shell.PersistentShell(_Container(children), children, pipes.attend)
    started_s = time.time() - _CLOCK_STEP_S
    max_chars = int(sys.argv[1])

    def run(command: str, timeout_s: float) -> dict[str, object]:
        try:
            return session.run(command, timeout_s, max_chars)
        except OSError as error:  # what a shell needs in here is the agent's to break
            session.end()
            return {"output": f"[no shell can be started: {error.strerror}]", "exit_code": None}

    def need_limits() -> None:
        if [resource.getrlimit(number) for number in _LIMITS] != limits:
            raise OSError("the limits of process 1 were changed from inside")

    def freeze() -> None:
        session.end()
        need_limits()

    def list_changes(max_bytes: int) -> dict[str, object]:
        need_limits()
        return served_files.list_changes(started_s, max_bytes)

    def apply_changes(before: served_files.Fields, *how: Any) -> str:
        pipes.watch("", [change[:2] for change in before["changes"]])
        return served_files.apply_changes(before, *how)

    shell.serve(
        {
            "run": run,
            "freeze": freeze,
            "stat": served_files.stat_path,
            "read": served_files.read_file,
            "walk": served_files.walk,
            "list_changes": list_changes,
            "apply_changes": apply_changes,
            "stop": processes.stop,
            "resume": processes.resume,
            "list_processes": processes.describe,
            "update_placeholders": placeholders.update,
        }
    )
