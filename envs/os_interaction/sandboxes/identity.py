"""Whose files a bubblewrap sandbox's uids are on the host: `Identity`, and how it is mapped."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from agentpeft.envs.core.errors import EnvFault
from agentpeft.envs.system import processes

_NUM_IDS = 65_536
_FIRST_ID_FOR_ROOT = 0x7000_0000
"""Above all that distributions, systemd and container engines give out."""
_FIRST_OWNER_FOR_ROOT = _FIRST_ID_FOR_ROOT + _NUM_IDS


@dataclass(frozen=True)
class Identity:
    """The first of the host's ids that stand for uid and gid 0 to 65,535 inside."""

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
