"""A bubblewrap helper, started and mapped: `HelperProcess`; whose its files are: `Identity`."""

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from agentpeft.envs.core.errors import EnvFault
from agentpeft.envs.os_interaction.sandboxes.channel import (
    Channel,
    compose_program,
    is_readable,
)
from agentpeft.envs.system import processes

_START_TIMEOUT_S = 60.0
_NUM_IDS = 65_536
_FIRST_ID_FOR_ROOT = 0x7000_0000
"""Above all that distributions, systemd and container engines give out."""
_FIRST_OWNER_FOR_ROOT = _FIRST_ID_FOR_ROOT + _NUM_IDS


@dataclass(frozen=True)
class Identity:
    """The first of the host's ids that stand for a sandbox's uid and gid 0 to 65,535."""

    first_uid: int
    first_gid: int
    first_owner: int | None = None
    """To which a helper adds its pid, for the user that its namespaces belong to; None: its own.

    The kernel counts some things for each user (inotify instances, pending signals …), and those of
    a namespace for its owner too: so that no sandbox takes them from root, nor from another one.
    """

    def map(self, pid: int) -> None:
        """Gives a process's new user namespace its ids. Raises: EnvFault."""
        if os.geteuid() == 0:
            for name, first in (("uid_map", self.first_uid), ("gid_map", self.first_gid)):
                Path(f"/proc/{pid}/{name}").write_text(f"0 {first} {_NUM_IDS}")
            return
        for program, first, own_id in (
            ("newuidmap", self.first_uid, os.getuid()),
            ("newgidmap", self.first_gid, os.getgid()),
        ):
            ids = (0, first, _NUM_IDS, _NUM_IDS, own_id, 1)  # one's own too, to give a folder away
            code, output = processes.run([program, str(pid), *map(str, ids)])
            if code:
                raise EnvFault(
                    f"{program} failed ({output}): are /etc/subuid and /etc/subgid right?"
                )


def find_identity() -> Identity:
    """Returns the ids that this user may give away. Raises: EnvFault with what is missing."""
    if os.geteuid() == 0:
        return Identity(_FIRST_ID_FOR_ROOT, _FIRST_ID_FOR_ROOT, _FIRST_OWNER_FOR_ROOT)
    if not (shutil.which("newuidmap") and shutil.which("newgidmap")):
        raise EnvFault(
            "bubblewrap sandboxes need newuidmap, except for root: apt-get install uidmap"
        )
    return Identity(_find_range("/etc/subuid"), _find_range("/etc/subgid"))


def _find_range(path: str) -> int:
    import pwd  # not on Windows, where docker needs other things of this folder

    names = {str(os.getuid()), pwd.getpwuid(os.getuid()).pw_name}
    for line in Path(path).read_text().splitlines() if Path(path).exists() else []:
        fields = line.split(":")
        if len(fields) == 3 and fields[0] in names and int(fields[2]) >= _NUM_IDS:
            return int(fields[1])
    raise EnvFault(
        f"bubblewrap sandboxes need {_NUM_IDS} ids of this user in {path}: as root, "
        "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 NAME"
    )


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
