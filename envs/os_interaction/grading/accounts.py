"""Users and groups of a frozen file tree, read from the four files of /etc that hold them."""

import re
from dataclasses import dataclass

from agentpeft.envs.os_interaction.sandboxes.sandbox import FrozenFiles

_MAX_BYTES = 2**20
_NUMBER = re.compile(r"[0-9]{1,10}")
"""An id or a day as the C library reads it; Python also reads other alphabets' digits."""


@dataclass(frozen=True)
class User:
    """A line of /etc/passwd with its line of /etc/shadow, if `is_in_shadow`.

    `aging` holds min, max, warn and inactive days and the day of expiry since 1970; None is unset.
    """

    name: str
    uid: int
    gid: int
    comment: str
    home: str
    shell: str
    password: str = ""
    aging: tuple[int | None, ...] = (None,) * 5
    is_in_shadow: bool = True

    @property
    def is_locked(self) -> bool:
        """True if the password is locked."""
        return self.password.startswith("!")


@dataclass(frozen=True)
class Group:
    """A line of /etc/group with its line of /etc/gshadow, if `is_in_shadow`."""

    name: str
    gid: int
    members: frozenset[str]
    administrators: frozenset[str] = frozenset()
    is_in_shadow: bool = True


@dataclass(frozen=True)
class Accounts:
    """All users and groups by name; of a name that comes twice the first line counts."""

    users: dict[str, User]
    groups: dict[str, Group]

    def get_groups(self, user: str) -> frozenset[str]:
        """Returns the names of the groups that list a user."""
        return frozenset(group.name for group in self.groups.values() if user in group.members)


def read_accounts(files: FrozenFiles) -> Accounts:
    """Returns the users and groups; lines that are none are left out."""
    shadow = {fields[0]: fields for fields in reversed(_lines(files, "shadow", 9))}
    gshadow = {fields[0]: fields for fields in reversed(_lines(files, "gshadow", 4))}
    users, groups = {}, {}
    for name, _, uid, gid, comment, home, shell in reversed(_lines(files, "passwd", 7)):
        if _NUMBER.fullmatch(uid) and _NUMBER.fullmatch(gid):
            _, password, _, *aging, _ = shadow.get(name, [""] * 9)
            days = tuple(int(day) if _NUMBER.fullmatch(day) else None for day in aging)
            users[name] = User(
                name, int(uid), int(gid), comment, home, shell, password, days, name in shadow
            )
    for name, _, gid, members in reversed(_lines(files, "group", 4)):
        if _NUMBER.fullmatch(gid):
            administrators = gshadow.get(name, [""] * 4)[2]
            groups[name] = Group(
                name, int(gid), _names(members), _names(administrators), name in gshadow
            )
    return Accounts(users, groups)


def _lines(files: FrozenFiles, name: str, width: int) -> list[list[str]]:
    data = files.read(f"/etc/{name}", _MAX_BYTES + 1) or b""
    if len(data) > _MAX_BYTES:  # a line that is cut there may look right
        return []
    rows = (line.split(":") for line in data.decode("utf-8", "surrogateescape").split("\n"))
    return [row for row in rows if len(row) == width]


def _names(text: str) -> frozenset[str]:
    return frozenset(filter(None, text.split(",")))
