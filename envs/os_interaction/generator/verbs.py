"""What the steps of a generated OS task do to its world, and what its questions ask of it.

`VERBS` change `scene.world` and settle what they change; `VALUES` read it. All take a scene and
words. Names are those that the families use.
"""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from posixpath import basename

from agentpeft.envs.os_interaction.generator.scene import Scene
from agentpeft.envs.os_interaction.generator.world import Node, Person, Team, World, new_node
from agentpeft.envs.os_interaction.grading.state import Interval
from agentpeft.envs.tasks.skill_generator import NoTaskHereError

_EPOCH = date(1970, 1, 1)
_AGES = ("min", "max", "warn", "inactive", "expiry")


def _make(scene: Scene, path: str, node: Node) -> None:
    scene.world.files[path] = node


def _directory(scene: Scene, path: str, mode: str = "") -> None:
    _make(scene, path, Node("directory", mode=int(mode, 8) if mode else None))


def _directories(scene: Scene, path: str, *words: str) -> None:
    for word in words:
        path = f"{path}/{word}"
        _directory(scene, path)


def _lines(scene: Scene, path: str, *lines: str) -> None:
    _make(scene, path, Node(content="".join(f"{line}\n" for line in lines)))


def _script(scene: Scene, path: str, *words: str) -> None:
    _make(scene, path, Node(content=f"{' '.join(words)}\n", match="script"))


def _joined(scene: Scene, path: str, *sources: str) -> None:
    content = "".join(scene.world.files[source].content for source in sources)
    _make(scene, path, Node(content=content))


def _found(scene: Scene, path: str, source: str, word: str) -> None:
    _lines(scene, path, *_having(scene.world, word, True, source))


def _link(scene: Scene, path: str, target: str) -> None:
    _make(scene, path, Node("symlink", target=target))
    scene.claims.add((target, "path"))


def _given_lines(scene: Scene, path: str, *lines: str) -> None:
    scene.add(path, new_node(content="".join(f"{line}\n" for line in lines)))


def _given_link(scene: Scene, path: str, target: str) -> None:
    scene.add(path, new_node("symlink", target=target))


def _given_directory(scene: Scene, path: str) -> None:
    scene.add(path, new_node("directory"))


def _given_empty(scene: Scene, *paths: str) -> None:
    for path in paths:
        scene.add(path, new_node())


def _given_date(scene: Scene, path: str, text: str) -> None:
    for world in (scene.initial, scene.world):
        world.files[path].mtime_s = _noon_of(text)


def _given_shell(scene: Scene, name: str, shell: str) -> None:
    for world in (scene.initial, scene.world):
        world.people[name].shell = shell


def _given_max_days(scene: Scene, name: str, days: str) -> None:
    for world in (scene.initial, scene.world):
        world.people[name].aging[1] = int(days)


def _remove(scene: Scene, path: str) -> None:
    for below in (*scene.world.below(path), path):
        del scene.world.files[below]


def _move(scene: Scene, path: str, new_path: str) -> None:
    scene.world.files[new_path] = scene.world.files.pop(path)
    scene.claims |= {(new_path, aspect) for name, aspect in scene.claims if name == path}


def _copy(scene: Scene, path: str, new_path: str) -> None:
    for source in (path, *scene.world.below(path)):
        node = scene.world.files[source]
        _make(scene, new_path + source.removeprefix(path), Node(node.kind, node.content))


def _into(act: Callable[[Scene, str, str], None]) -> Callable[[Scene, str, str], None]:
    return lambda scene, path, directory: act(scene, path, f"{directory}/{basename(path)}")


def _each(scene: Scene, where: str, directory: str, ending: str, *verb: str) -> None:
    """Does something to the files in a directory, below it, or to all there is and itself."""
    world = scene.world
    if where == "all":
        paths = [directory, *world.below(directory)]
    else:
        find = world.files_in if where == "in" else world.files_below
        paths = find(directory, ending)
    name, *words = verb
    for path in paths:
        VERBS[name](scene, path, *words)


def _set(scene: Scene, path: str, aspect: str, value: str) -> None:
    node = scene.world.files[path]
    known = {"mode": node.mode, "owner": node.owner, "group": node.group, "target": node.target}
    new = int(value, 8) if aspect == "mode" else value
    scene.world.files[path] = Node(**{**vars(node), aspect: new})
    if known[aspect] == new:
        raise NoTaskHereError
    scene.claims.add((path, aspect))


def _date(scene: Scene, path: str, text: str) -> None:
    scene.world.files[path].mtime_s = _noon_of(text)
    scene.claims |= {(path, "content"), (path, "mtime")}


def _noon_of(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(hour=12, tzinfo=UTC).timestamp())


def _edit(scene: Scene, path: str, lines: list[str]) -> None:
    node = scene.world.files[path]
    if not lines or lines == node.lines:
        raise NoTaskHereError
    node.content = "".join(f"{line}\n" for line in lines)
    scene.claims.add((path, "content"))


def _append(scene: Scene, path: str, line: str) -> None:
    _edit(scene, path, [*scene.world.files[path].lines, line])


def _append_file(scene: Scene, path: str, source: str) -> None:
    _edit(scene, path, scene.world.files[path].lines + scene.world.files[source].lines)


def _replace(scene: Scene, path: str, old: str, new: str) -> None:
    lines = scene.world.files[path].lines
    _edit(scene, path, [re.sub(rf"\b{re.escape(old)}\b", new, line) for line in lines])


def _delete_with(scene: Scene, path: str, word: str) -> None:
    _edit(scene, path, [line for line in scene.world.files[path].lines if word not in line.split()])


def _delete_line(scene: Scene, path: str, number: str) -> None:
    lines = scene.world.files[path].lines
    _edit(scene, path, lines[: int(number) - 1] + lines[int(number) :])


def _wait(scene: Scene, earlier: str, later: str, seconds: str) -> None:
    scene.world.intervals.append(Interval(earlier, later, float(seconds)))
    scene.claims |= {(path, what) for path in (earlier, later) for what in ("content", "path")}


def _team(scene: Scene, name: str, gid: str = "") -> None:
    scene.world.teams[name] = Team(int(gid) if gid else None)


def _join(scene: Scene, person: str, team: str) -> None:
    members = scene.world.teams[team].members
    if person in members or (person, team) in scene.claims:
        raise NoTaskHereError
    members.add(person)
    scene.claims.add((person, team))


def _leave(scene: Scene, person: str, team: str) -> None:
    scene.world.teams[team].members.remove(person)
    scene.claims.add((person, team))


def _members(scene: Scene, team: str, *people: str) -> None:
    scene.claims |= {(person, team) for person in (*scene.world.teams[team].members, *people)}
    scene.world.teams[team].members = set(people)


def _administrator(scene: Scene, team: str, person: str) -> None:
    scene.world.teams[team].administrators = {person}


def _user(scene: Scene, name: str) -> None:
    scene.world.people[name] = Person()


def _account(scene: Scene, name: str, aspect: str, value: str) -> None:
    person = scene.world.people[name]
    new = int(value) if aspect == "uid" else value
    if vars(person)[aspect] == new:
        raise NoTaskHereError
    scene.world.people[name] = Person(**{**vars(person), aspect: new})
    scene.claims.add((name, aspect))


def _lock(scene: Scene, name: str) -> None:
    scene.world.people[name].is_locked = True


def _age(scene: Scene, name: str, what: str, days: str) -> None:
    number = (date.fromisoformat(days) - _EPOCH) // timedelta(1) if "-" in days else int(days)
    scene.world.people[name].aging[_AGES.index(what)] = number


VERBS: dict[str, Callable[..., None]] = {
    "directory": _directory, "directories": _directories, "lines": _lines, "script": _script,
    "joined": _joined, "found": _found, "link": _link,
    "given_lines": _given_lines, "given_link": _given_link,
    "given_directory": _given_directory, "given_empty": _given_empty, "given_date": _given_date,
    "given_shell": _given_shell, "given_max_days": _given_max_days, "remove": _remove,
    "move": _move, "copy": _copy, "move_into": _into(_move), "copy_into": _into(_copy),
    "each": _each, "set": _set, "date": _date, "append": _append, "append_file": _append_file,
    "replace": _replace, "delete_with": _delete_with, "delete_line": _delete_line, "wait": _wait,
    "team": _team, "join": _join, "leave": _leave, "members": _members,
    "administrator": _administrator, "user": _user, "account": _account, "lock": _lock,
    "age": _age,
}  # fmt: skip


def _having(world: World, word: str, has: bool, *paths: str) -> list[str]:
    lines = [line for path in paths for line in world.files[path].lines]
    return [line for line in lines if (word in line.split()) == has]


def _paths_with(world: World, paths: list[str], word: str) -> list[str]:
    return [path for path in paths if word in world.files[path].content.split()]


def _by_time(world: World, directory: str) -> list[str]:
    paths = world.files_in(directory)
    return sorted(paths, key=lambda path: -(world.files[path].mtime_s or 0))


def _column(world: World, path: str, number: str) -> list[str]:
    rows = [line.split() for line in world.files[path].lines]
    if min(map(len, rows)) < int(number):
        raise NoTaskHereError
    return [row[int(number) - 1] for row in rows]


def _names_from(world: World, path: str, least: str) -> list[str]:
    rows = [line.split() for line in world.files[path].lines]
    return [name for name, number in rows if int(number) >= int(least)]


VALUES: dict[str, Callable[..., str | int | list[str]]] = {
    "text": lambda _, text: text,
    "content": lambda world, path: world.files[path].lines,
    "lines_with": lambda world, word, *paths: _having(world, word, True, *paths),
    "lines_without": lambda world, word, *paths: _having(world, word, False, *paths),
    "number_with": lambda world, word, path: len(_having(world, word, True, path)),
    "number_of_lines": lambda world, path: len(world.files[path].lines),
    "number_of_words": lambda world, path: len(world.files[path].content.split()),
    "number_of_bytes": lambda world, path: len(world.files[path].content),
    "files_with": lambda world, d, word: _paths_with(world, world.files_in(d), word),
    "paths_with": lambda world, d, word: _paths_with(world, world.files_below(d), word),
    "paths_below": lambda world, d, ending: world.files_below(d, ending),
    "number_below": lambda world, d, ending: len(world.files_below(d, ending)),
    "empty_below": lambda world, d: [p for p in world.files_below(d) if not world.files[p].content],
    "names_in": lambda world, d: [*map(basename, world.in_directory(d))],
    "number_in": lambda world, d: len(world.in_directory(d)),
    "names_by_time": lambda world, d: [*map(basename, _by_time(world, d))],
    "column": _column,
    "sum": lambda world, path: sum(map(int, _column(world, path, "2"))),
    "names_from": _names_from,
}
