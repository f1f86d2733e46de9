"""The world of a generated OS task as a model: what is there, how it is made, what it becomes.

A file, user or group is as a state requires it; None is not known, and not asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from posixpath import dirname
from shlex import quote

from agentpeft.envs.os_interaction.grading.state import (
    AGING,
    FileState,
    GroupState,
    Interval,
    Kind,
    State,
    UserState,
)

_HASH = "$6$agentpeft$" + "x" * 86  # no password has this hash


@dataclass
class World:
    """Files by absolute path, users and groups by name, and waits between two files' making."""

    files: dict[str, FileState] = field(default_factory=dict)
    people: dict[str, UserState] = field(default_factory=dict)
    teams: dict[str, GroupState] = field(default_factory=dict)
    intervals: list[Interval] = field(default_factory=list)

    def text(self, path: str) -> str:
        """Returns a file's content."""
        return self.files[path].content or ""

    def lines(self, path: str) -> list[str]:
        """Returns a file's lines."""
        return self.text(path).splitlines()

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
        return [name for name in self.files_below(path) if not self.text(name)]


def render_setup(world: World) -> str:
    """Returns the bash script that makes a world on a fresh image."""
    return "\n".join(["set -e", "umask 022", *_account_lines(world), *_file_lines(world)])


def _account_lines(world: World) -> Iterator[str]:
    """Yields commands that write the files of /etc: ten times as fast as useradd and groupadd."""
    for name, team in world.teams.items():
        members = ",".join(team.members or ())
        administrators = ",".join(team.administrators or ())
        yield f"echo {name}:x:{team.gid}:{members} >> /etc/group"
        yield f"echo '{name}:!:{administrators}:{members}' >> /etc/gshadow"
    for name, person in world.people.items():
        gid = world.teams[person.group or ""].gid
        password = ("!" if person.is_locked else "") + _HASH
        numbers = [vars(person)[name] for name in AGING]
        aging = ":".join("" if days == -1 else str(days) for days in numbers)
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
            yield f"printf %s {quote(world.text(path))} > {path}"
    for path, node in sorted(world.files.items(), reverse=True):
        if node.kind == "symlink":
            continue
        if node.owner != "root" or node.group != "root":
            yield f"chown {node.owner}:{node.group} {path}"
        if node.mode != (0o755 if node.kind == "directory" else 0o644):
            yield f"chmod {node.mode:o} {path}"
        if node.mtime_s is not None:
            yield f"touch -d @{node.mtime_s} {path}"


def new_node(path: str, kind: Kind = "file", content: str | None = None) -> FileState:
    """Returns a file or directory as the setup makes it: root's, with the usual mode."""
    mode = 0o755 if kind == "directory" else 0o644
    return FileState(path, kind, content, mode=mode, owner="root", group="root")


def expected_state(initial: World, final: World) -> State:
    """Returns what must hold at the end: the final world, and nothing left of what it lacks.

    Modification times count only where they were changed.
    """
    files = []
    for path, node in sorted(final.files.items()):
        is_kept = path in initial.files and initial.files[path].mtime_s == node.mtime_s
        files.append(replace(node, mtime_s=None) if is_kept else node)
    gone = sorted(initial.files.keys() - final.files.keys())
    return State(
        files=(*files, *(FileState(path, "absent") for path in gone)),
        users=tuple(_user_state(person, final, initial) for person in final.people.values()),
        groups=tuple(final.teams.values()),
        intervals=tuple(final.intervals),
    )


def _user_state(person: UserState, final: World, initial: World) -> UserState:
    """Of a new user the task's own groups say who is in them: `adduser` adds it to another too."""
    if person.name not in initial.people:
        return person
    teams = sorted(t.name for t in final.teams.values() if person.name in (t.members or ()))
    return replace(person, groups=tuple(teams))
