"""The world of a generated OS task as a model: what is there, how it is made, what it becomes."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from posixpath import dirname
from shlex import quote

from agentpeft.envs.os_interaction.grading.state import (
    AGING,
    FileState,
    GroupState,
    Interval,
    Kind,
    Match,
    State,
    UserState,
)

_HASH = "$6$agentpeft$" + "x" * 86  # no password has this hash


@dataclass
class Node:
    """A file, directory or symbolic link; None is not known, and not asked for."""

    kind: Kind = "file"
    content: str = ""
    match: Match = "text"
    mode: int | None = None
    owner: str | None = None
    group: str | None = None
    target: str | None = None
    mtime_s: int | None = None

    @property
    def lines(self) -> list[str]:
        """The content's lines."""
        return self.content.splitlines()


@dataclass
class Person:
    """A user's account; None is not known, and not asked for. `aging` as in `accounts.User`."""

    uid: int | None = None
    group: str | None = None
    home: str | None = None
    shell: str | None = None
    comment: str | None = None
    is_locked: bool | None = None
    aging: list[int | None] = field(default_factory=lambda: [None] * 5)


@dataclass
class Team:
    """A group; `gid` None is not asked for."""

    gid: int | None = None
    members: set[str] = field(default_factory=set)
    administrators: set[str] = field(default_factory=set)


@dataclass
class World:
    """Files by absolute path, users and groups by name, and waits between two files' making."""

    files: dict[str, Node] = field(default_factory=dict)
    people: dict[str, Person] = field(default_factory=dict)
    teams: dict[str, Team] = field(default_factory=dict)
    intervals: list[Interval] = field(default_factory=list)

    @property
    def directories(self) -> list[str]:
        """The directories' paths, the latest last."""
        return [path for path, node in self.files.items() if node.kind == "directory"]

    def below(self, path: str) -> list[str]:
        """Returns the paths below a directory, in order."""
        return sorted(name for name in self.files if name.startswith(f"{path}/"))

    def in_directory(self, path: str) -> list[str]:
        """Returns the paths directly in a directory, in order."""
        return [name for name in self.below(path) if dirname(name) == path]

    def files_below(self, path: str, suffix: str = "") -> list[str]:
        """Returns the regular files anywhere below a directory whose names end so, in order."""
        names = self.below(path)
        return [n for n in names if self.files[n].kind == "file" and n.endswith(suffix)]

    def empty_files_below(self, path: str) -> list[str]:
        """Returns the empty files anywhere below a directory, in order."""
        return [name for name in self.files_below(path) if not self.files[name].content]


def render_setup(world: World) -> str:
    """Returns the bash script that makes a world on a fresh image."""
    return "\n".join(["set -e", "umask 022", *_account_lines(world), *_file_lines(world)])


def _account_lines(world: World) -> Iterator[str]:
    """Yields commands that write the files of /etc: ten times as fast as useradd and groupadd."""
    for name, team in world.teams.items():
        members = ",".join(sorted(team.members))
        administrators = ",".join(sorted(team.administrators))
        yield f"echo {name}:x:{team.gid}:{members} >> /etc/group"
        yield f"echo '{name}:!:{administrators}:{members}' >> /etc/gshadow"
    for name, person in world.people.items():
        gid = world.teams[person.group or ""].gid
        password = ("!" if person.is_locked else "") + _HASH
        aging = ":".join("" if days == -1 else str(days) for days in person.aging)
        entry = f"{name}:x:{person.uid}:{gid}:{person.comment}:{person.home}:{person.shell}"
        yield f"echo {quote(entry)} >> /etc/passwd"
        yield f"echo {quote(f'{name}:{password}:19000:{aging}:')} >> /etc/shadow"


def _file_lines(world: World) -> Iterator[str]:
    if world.directories:
        yield " ".join(["mkdir -p", *world.directories])
    for path, node in sorted(world.files.items()):
        if node.kind == "symlink":
            yield f"ln -s {node.target} {path}"
        elif node.kind == "file":
            yield f"printf %s {quote(node.content)} > {path}"
    for path, node in sorted(world.files.items(), reverse=True):
        if node.kind == "symlink":
            continue
        if node.owner != "root" or node.group != "root":
            yield f"chown {node.owner}:{node.group} {path}"
        if node.mode != (0o755 if node.kind == "directory" else 0o644):
            yield f"chmod {node.mode:o} {path}"
        if node.mtime_s is not None:
            yield f"touch -d @{node.mtime_s} {path}"


def new_node(kind: Kind = "file", content: str = "") -> Node:
    """Returns a file or directory as the setup makes it: root's, with the usual mode."""
    mode = 0o755 if kind == "directory" else 0o644
    return Node(kind, content, mode=mode, owner="root", group="root")


def expected_state(initial: World, final: World) -> State:
    """Returns what must hold at the end: the final world, and nothing left of what it lacks."""
    files = [_file_state(path, node, initial) for path, node in sorted(final.files.items())]
    gone = sorted(initial.files.keys() - final.files.keys())
    return State(
        files=(*files, *(FileState(path, "absent") for path in gone)),
        users=tuple(_user_state(name, final, name not in initial.people) for name in final.people),
        groups=tuple(
            GroupState(
                name, team.gid, tuple(sorted(team.members)), tuple(sorted(team.administrators))
            )
            for name, team in final.teams.items()
        ),
        intervals=tuple(final.intervals),
    )


def _file_state(path: str, node: Node, initial: World) -> FileState:
    """Only files have contents; modification times count only where they were changed."""
    seen = dict(vars(node))
    if node.kind != "file":
        seen["content"] = None
    if path in initial.files and initial.files[path].mtime_s == node.mtime_s:
        seen["mtime_s"] = None
    return FileState(path, **seen)


def _user_state(name: str, world: World, is_new: bool) -> UserState:
    """Of a new user the task's own groups say who is in them: `adduser` adds it to another too."""
    known = dict(vars(world.people[name]))
    days = dict(zip(AGING, known.pop("aging"), strict=True))
    teams = tuple(sorted(t for t in world.teams if name in world.teams[t].members))
    return UserState(name, groups=None if is_new else teams, **known, **days)
