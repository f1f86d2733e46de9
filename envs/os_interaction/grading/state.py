"""The state of files, users and groups that an episode must reach, and how a tree differs.

Everything is read from the frozen tree, from outside: no program of the episode has a say. What is
not named here is not looked at.
"""

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from agentpeft.envs.os_interaction.sandboxes.sandbox import FileStat, FrozenFiles

Kind = Literal["file", "directory", "symlink", "absent"]
Match = Literal["text", "lines", "script"]

_MTIME_SLACK_S = 1.0
_CLOCK_TICK_S = 0.02
_BLANKS = " \t"
"""What bash takes for space within a line: no-break spaces and `\r` belong to words."""
SHELL_LINE = (
    r"^#![ \t]*((/usr)?/bin/(ba|da)?sh([ \t]+(-[eux]*|--login|--))?"
    r"|/usr/bin/env[ \t]+((ba|da)?sh|-S[ \t]+(ba|da)?sh([ \t]+-[eux]+)?))[ \t]*$"
)
"""A first line that runs a script as bash does, as a pattern of Python and of `sed -E`."""
_SHELL_LINE = re.compile(SHELL_LINE)
_MAX_EXTRA_BYTES = 65_536
"""How much longer than eight bytes a character a file may be: room for comments and blank lines."""
_MAX_ACCOUNT_BYTES = 2**20
_NUMBER = re.compile(r"[0-9]{1,10}")
"""An id or a day as the C library reads it; Python also reads other alphabets' digits."""
AGING = ("min_days", "max_days", "warn_days", "inactive_days", "expiry_day")


@dataclass(frozen=True)
class FileState:
    """The required state of a path; None is not checked.

    `match` of the content: "text" is exact but for newlines at the end, "lines" is in any order,
    "script" leaves out comments, blank lines, indentation, quotes around words and `;` at a line's
    end. A file is read whole, up to 64 KiB and eight bytes for each character of `content`; a
    longer one differs. `mode` has the bits of 07777, `owner` and `group` are names, `mtime_s` is in
    seconds since 1970, within 1 s.
    """

    path: str
    kind: Kind = "file"
    content: str | None = None
    match: Match = "text"
    mode: int | None = None
    owner: str | None = None
    group: str | None = None
    target: str | None = None
    mtime_s: float | None = None


@dataclass(frozen=True)
class UserState:
    """The state of a user, as it must be or is; None is not checked, -1 of aging is "unset".

    `group` is the primary one's name, `groups` are all that list the user. Of a user who is there
    None is what no line says: the group, and from `is_locked` on what /etc/shadow has.
    """

    name: str
    uid: int | None = None
    group: str | None = None
    groups: tuple[str, ...] | None = None
    home: str | None = None
    shell: str | None = None
    comment: str | None = None
    is_locked: bool | None = None
    min_days: int | None = None
    max_days: int | None = None
    warn_days: int | None = None
    inactive_days: int | None = None
    expiry_day: int | None = None


@dataclass(frozen=True)
class GroupState:
    """The state of a group, as it must be or is; None is not checked.

    Of one that is there, `administrators` are None where /etc/gshadow has no line of it.
    """

    name: str
    gid: int | None = None
    members: tuple[str, ...] | None = None
    administrators: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Interval:
    """The file `later` was modified at least `min_s` after `earlier`."""

    earlier: str
    later: str
    min_s: float


@dataclass(frozen=True)
class State:
    """All that must hold."""

    files: tuple[FileState, ...] = ()
    users: tuple[UserState, ...] = ()
    groups: tuple[GroupState, ...] = ()
    intervals: tuple[Interval, ...] = ()

    def judge(self, files: FrozenFiles) -> Iterator[str | None]:
        """Yields for each user, group, file and interval what is not as it must be, or None."""
        accounts = read_accounts(files)
        for user in self.users:
            yield next(_user_differences(user, accounts), None)
        for group in self.groups:
            yield next(_group_differences(group, accounts), None)
        for file in self.files:
            yield next(_file_differences(file, files, accounts), None)
        for interval in self.intervals:
            earlier, later = files.stat(interval.earlier), files.stat(interval.later)
            least = interval.min_s - _CLOCK_TICK_S
            if earlier is None or later is None or later.mtime - earlier.mtime < least:
                yield f"{interval.later} is not {interval.min_s} s later than {interval.earlier}"
            else:
                yield None


@dataclass(frozen=True)
class Accounts:
    """All users and groups by name; of a name that comes twice the first line counts."""

    users: dict[str, UserState]
    groups: dict[str, GroupState]


def read_accounts(files: FrozenFiles) -> Accounts:
    """Returns the users and groups of the four files of /etc; lines that are none are left out."""
    shadow = {fields[0]: fields for fields in reversed(_read_lines(files, "shadow", 9))}
    gshadow = {fields[0]: fields for fields in reversed(_read_lines(files, "gshadow", 4))}
    users, groups = {}, {}
    listing: dict[str, list[str]] = {}
    for name, _, gid, members in reversed(_read_lines(files, "group", 4)):
        if _NUMBER.fullmatch(gid):
            administrators = _split(gshadow[name][2]) if name in gshadow else None
            groups[name] = GroupState(name, int(gid), _split(members), administrators)
    for name, group in groups.items():
        for member in group.members or ():
            listing.setdefault(member, []).append(name)
    primary = {group.gid: name for name, group in reversed(groups.items())}
    for name, _, uid, gid, comment, home, shell in reversed(_read_lines(files, "passwd", 7)):
        if not (_NUMBER.fullmatch(uid) and _NUMBER.fullmatch(gid)):
            continue
        teams = primary.get(int(gid)), tuple(listing.get(name, ()))
        about = comment.rstrip(",")  # adduser ends it with commas
        users[name] = UserState(name, int(uid), *teams, home, shell, about)
        if name in shadow:
            _, password, _, *aging, _ = shadow[name]
            days = [int(day) if _NUMBER.fullmatch(day) else -1 for day in aging]
            secrets: dict[str, Any] = dict(zip(AGING, days, strict=True))
            users[name] = replace(users[name], is_locked=password.startswith("!"), **secrets)
    return Accounts(users, groups)


def _read_lines(files: FrozenFiles, name: str, width: int) -> list[list[str]]:
    data = files.read(f"/etc/{name}", _MAX_ACCOUNT_BYTES + 1) or b""
    if len(data) > _MAX_ACCOUNT_BYTES:  # a line that is cut there may look right
        return []
    rows = (line.split(":") for line in data.decode("utf-8", "surrogateescape").split("\n"))
    return [row for row in rows if len(row) == width]


def _split(names: str) -> tuple[str, ...]:
    return tuple(filter(None, names.split(",")))


def _differ(name: str, wanted: object, got: object) -> Iterator[str]:
    if wanted is not None and wanted != got:
        yield f"{name} must be {wanted!r}, is {got!r:.200}"


def _user_differences(wanted: UserState, accounts: Accounts) -> Iterator[str]:
    user = accounts.users.get(wanted.name)
    if user is None:
        yield f"user {wanted.name} is missing"
        return
    name = f"user {wanted.name}'s"
    for field in ("uid", "group"):
        yield from _differ(f"{name} {field}", vars(wanted)[field], vars(user)[field])
    if wanted.groups is not None:
        yield from _differ(f"{name} groups", set(wanted.groups), frozenset(user.groups or ()))
    secrets = ("is_locked", *AGING)
    if user.is_locked is None and any(vars(wanted)[field] is not None for field in secrets):
        yield f"{name} line in /etc/shadow is missing"
    for field in ("home", "shell", "comment", *secrets):
        yield from _differ(f"{name} {field}", vars(wanted)[field], vars(user)[field])


def _group_differences(wanted: GroupState, accounts: Accounts) -> Iterator[str]:
    group = accounts.groups.get(wanted.name)
    if group is None:
        yield f"group {wanted.name} is missing"
        return
    name = f"group {wanted.name}'s"
    yield from _differ(f"{name} gid", wanted.gid, group.gid)
    if group.administrators is None and wanted.administrators is not None:
        yield f"{name} line in /etc/gshadow is missing"
    for field in ("members", "administrators"):
        names = vars(wanted)[field]
        got = frozenset(vars(group)[field] or ())
        yield from _differ(f"{name} {field}", None if names is None else set(names), got)


def _file_differences(wanted: FileState, files: FrozenFiles, accounts: Accounts) -> Iterator[str]:
    stat = files.stat(wanted.path)
    kind = "absent" if stat is None else stat.kind
    yield from _differ(f"{wanted.path}", wanted.kind, kind)
    if stat is None or kind != wanted.kind:
        return
    if wanted.mode is not None:
        yield from _differ(f"mode of {wanted.path}", oct(wanted.mode), oct(stat.mode))
    yield from _differ(f"target of {wanted.path}", wanted.target, stat.target)
    yield from _owner_differences(wanted, stat, accounts)
    if wanted.mtime_s is not None and abs(stat.mtime - wanted.mtime_s) > _MTIME_SLACK_S:
        yield f"modification time of {wanted.path} must be {wanted.mtime_s}, is {stat.mtime}"
    if wanted.content is not None:
        yield from _content_differences(wanted.path, wanted.content, wanted.match, files)


def _content_differences(path: str, wanted: str, match: Match, files: FrozenFiles) -> Iterator[str]:
    max_bytes = 8 * len(wanted) + _MAX_EXTRA_BYTES
    data = files.read(path, max_bytes + 1) or b""
    if len(data) > max_bytes:
        yield f"content of {path} must be {wanted!r:.200}, is over {max_bytes} bytes long"
        return
    content = data.decode("utf-8", "surrogateescape")  # what is no UTF-8 equals no character
    normal = _NORMAL_FORMS[match]
    if normal(content) != normal(wanted):
        yield f"content of {path} must be {wanted!r:.200}, is {content!r:.200}"


def _owner_differences(wanted: FileState, stat: FileStat, accounts: Accounts) -> Iterator[str]:
    uids: dict[str, int | None] = {n: user.uid for n, user in accounts.users.items()} | {"root": 0}
    gids: dict[str, int | None] = {n: g.gid for n, g in accounts.groups.items()} | {"root": 0}
    if wanted.owner is not None and uids.get(wanted.owner) != stat.uid:
        yield f"owner of {wanted.path} must be {wanted.owner}, is number {stat.uid}"
    if wanted.group is not None and gids.get(wanted.group) != stat.gid:
        yield f"group of {wanted.path} must be {wanted.group}, is number {stat.gid}"


def _script_lines(text: str) -> list[list[str]]:
    """Returns the words of each command, however they are quoted."""
    commands = []
    for number, line in enumerate(text.split("\n")):
        command = line.strip(_BLANKS)
        if len(command) > 1 and command.endswith(";") and not command.endswith((";;", "\\;")):
            command = command[:-1].rstrip(_BLANKS)
        is_other_shell = not number and line.startswith("#!") and not _SHELL_LINE.fullmatch(line)
        if command and (is_other_shell or not command.startswith("#")):
            commands.append(_split_words(command))
    return commands


def _split_words(command: str) -> list[str]:
    lexer = shlex.shlex(command, posix=True)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = _BLANKS, True, ""
    try:
        return list(lexer)
    except ValueError:  # an open quote
        return [command]


_NORMAL_FORMS: dict[Match, Callable[[str], object]] = {
    "text": lambda text: text.rstrip("\n"),
    "lines": lambda text: sorted(filter(None, (line.strip(_BLANKS) for line in text.split("\n")))),
    "script": _script_lines,
}
