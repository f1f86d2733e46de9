"""The only user of subprocesses, and a name for each process of this machine."""

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

PIPE = subprocess.PIPE
DEVNULL = subprocess.DEVNULL
Process = subprocess.Popen[bytes]


def start(
    command: Sequence[str],
    *,
    pipes: int = DEVNULL,
    pass_fds: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
) -> Process:
    """Starts a program with standard input and output both piped or both nothing.

    Raises: OSError if there is no such program.
    """
    return subprocess.Popen(  # noqa: S603 (no shell, and never a command of an agent)
        list(command),
        stdin=pipes,
        stdout=pipes,
        stderr=subprocess.DEVNULL,
        pass_fds=tuple(pass_fds),
        env=env,
    )


def run(command: Sequence[str], timeout_s: float = 3600.0) -> tuple[int, str]:
    """Runs a program to its end and returns its exit code and the last of what it has printed.

    Raises: OSError if there is no such program.
    """
    done = subprocess.run(  # noqa: S603 (no shell, and never a command of an agent)
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout_s,
        check=False,
    )
    return done.returncode, done.stdout.decode("utf-8", "replace")[-1000:].strip()


def identify_process(pid: int) -> str:
    """Returns "host/pid/start", unlike that of any other process, or "…/gone"."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    host = f"{socket.gethostname()}-{boot.read_text().strip() if boot.exists() else ''}"
    try:
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        start = "gone"
    return f"{host}/{pid}/{start}"


def is_alive(identity: str) -> bool:
    """Returns whether a process still runs; True for one of another machine, which may."""
    host, pid, _ = identity.split("/")
    here = identify_process(os.getpid()).split("/")[0]
    return host != here or identify_process(int(pid)) == identity
