"""The state of one attempt at a generated OS task: names, files, people, and the two worlds."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from posixpath import basename
from random import Random
from typing import Any

from agentpeft.envs.os_interaction.generator.world import World, new_node
from agentpeft.envs.os_interaction.grading.state import (
    FileState,
    GroupState,
    Interval,
    Kind,
    UserState,
)
from agentpeft.envs.tasks.phrases import Speaker, invent_word, read_toml
from agentpeft.envs.tasks.skill_generator import GeneratorOptions, NoTaskHereError
from agentpeft.envs.tasks.task import compute_split

PHRASES: dict[str, list[str]] = read_toml(__file__, "data/phrases.toml")
_POOLS: dict[str, list[str]] = read_toml(__file__, "data/words.toml")
_TOPS = ("/srv", "/opt", "/data")
_EXTENSIONS = (".txt", ".log", ".md", ".cfg")
_MODES = ("600", "640", "660", "664", "400", "440", "444", "700", "750", "755", "770")
_TAKEN = ("games",)
"""The image's groups that an invented word could name."""
_FIRST_ID = 2001
_NEW_IDS = range(3000, 5000, 10)
"""With room between them for the ids that useradd and groupadd choose themselves."""
_FIRST_TIME_S, _HOUR_S = 1_600_000_000, 3600
_REUSE = 0.7


@dataclass
class Scene:
    """Builds up a task: the setup makes `initial`, and the steps turn it into `world`.

    The first methods choose names, and add to both worlds what a step needs to be there; "fresh"
    things are new, in a directory that no earlier step has seen. The last ones change `world`.
    `claims` holds what steps have settled of files, users and groups, so that no later step undoes
    it.
    """

    rng: Random
    options: GeneratorOptions
    initial: World = field(default_factory=World)
    world: World = field(default_factory=World)
    claims: set[tuple[str, str]] = field(default_factory=set)
    _words: set[str] = field(default_factory=set)
    _base: str = ""

    def __post_init__(self) -> None:
        """Prepares the phrasings."""
        self.speaker = Speaker(PHRASES, self.rng, self.options.max_phrasings)

    @property
    def worlds(self) -> tuple[World, World]:
        """Both worlds, for what is there from the beginning."""
        return self.initial, self.world

    def word(self, pool: str = "WORD") -> str:
        """Returns a word of the split that the scene has not had. Raises: NoTaskHereError."""
        for _ in range(100):
            word = _invent_word(self.rng) if self.options.invent else self.rng.choice(_POOLS[pool])
            is_ours = self.options.split in (None, compute_split(word))
            if is_ours and word not in self._words:
                self._words.add(word)
                return word
        raise NoTaskHereError

    def number(self, low: int, high: int) -> str:
        """Returns a number within bounds, both included."""
        return str(self.rng.randint(low, high))

    def choice(self, *options: str) -> str:
        """Returns one of some words."""
        return self.rng.choice(options)

    def line(self) -> str:
        """Returns one to three words."""
        return " ".join(self.word() for _ in range(self.rng.randint(1, 3)))

    def id(self) -> str:
        """Returns a number for a new user or group."""
        number = str(self.rng.choice(_NEW_IDS))
        if (number, "id") in self.claims:
            raise NoTaskHereError
        self.claims.add((number, "id"))
        return number

    def extension(self) -> str:
        """Returns an ending of a file's name, with its dot."""
        return self.rng.choice(_EXTENSIONS)

    def mode(self, path: str) -> str:
        """Returns permissions that a file does not have yet."""
        present = self.world.files[path].mode
        return self.rng.choice([mode for mode in _MODES if int(mode, 8) != present])

    def text(self, num_lines: int) -> str:
        """Returns lines of three words each."""
        vocabulary = sorted(self.word() for _ in range(4))
        lines = (" ".join(self.rng.choices(vocabulary, k=3)) for _ in range(num_lines))
        return "".join(f"{line}\n" for line in lines)

    def add(self, node: FileState) -> str:
        """Puts something there before the task begins; returns its path."""
        for world in self.worlds:
            world.files[node.path] = node
        return node.path

    def add_lines(self, path: str, *lines: str) -> str:
        """Puts a text file there before the task begins; returns its path."""
        return self.add(new_node(path, content=_to_text(lines)))

    def fresh_directory(self) -> str:
        """Returns a new directory that is there from the beginning."""
        return self.add(new_node(f"{self.rng.choice(_TOPS)}/{self.word()}", "directory"))

    def directory(self) -> str:
        """Returns a directory that is there by now, of an earlier step if possible."""
        return self._pick(self.world.directories, self.fresh_directory)

    def new(self, extension: str | None = None) -> str:
        """Returns a path where nothing is yet, in a directory that is there."""
        ending = self.extension() if extension is None else extension
        return f"{self.directory()}/{self.word()}{ending}"

    def new_directory(self) -> str:
        """Returns a path where nothing is yet, without an ending."""
        return self.new("")

    def fresh_file(self) -> str:
        """Returns a new file of some lines, in a directory that no step lists."""
        ending = self.extension()
        content = self.text(self.rng.randint(4, 9))
        return self.add(new_node(self.aside(ending), content=content))

    def aside(self, extension: str) -> str:
        """Returns a path where nothing is yet, in a directory that no step lists."""
        self._base = self._base or self.fresh_directory()
        return f"{self._base}/{self.word()}{extension}"

    def file(self, aspect: str) -> str:
        """Returns a file to settle an aspect of, an earlier step's if possible."""
        files = [path for path, node in self.world.files.items() if node.kind == "file"]
        return self._pick(files, self.fresh_file, aspect)

    def text_file(self, aspect: str = "") -> str:
        """Returns a text file of some lines (to settle an aspect of), an earlier step's if any."""
        texts = [node.path for node in self.world.files.values() if node.match == "text"]
        long = [path for path in texts if len(self.world.lines(path)) >= 4]
        return self._pick(long, self.fresh_file, aspect)

    def tree(self, ending: str = "") -> str:
        """Returns a new directory with a few files of that (or any) ending and some of another."""
        ending = ending or self.extension()
        top = self.fresh_directory()
        self._fill([top], ending)
        return top

    def deep_tree(self, ending: str = "") -> str:
        """Returns a tree whose files are spread over two levels of directories below it too."""
        ending = ending or self.extension()
        directories = [self.fresh_directory()]
        for _ in range(2):
            directories.append(self.add(new_node(f"{directories[-1]}/{self.word()}", "directory")))
        self._fill(directories, ending)
        return directories[0]

    def tree_with_empty_files(self) -> str:
        """Returns a deep tree with two empty files, one of them in a directory of its own."""
        top = self.deep_tree()
        first, second, below = self.word(), self.word(), self.word()
        self.add(new_node(f"{top}/{below}", "directory"))
        self.add_lines(f"{top}/{first}.log")
        self.add_lines(f"{top}/{below}/{second}.txt")
        return top

    def dated_tree(self) -> str:
        """Returns a tree whose files have modification times far apart."""
        top = self.tree()
        paths = self.world.files_below(top)
        self.rng.shuffle(paths)
        for index, path in enumerate(paths):
            hours = index * 30 + self.rng.randint(0, 20)
            self.add(replace(self.world.files[path], mtime_s=_FIRST_TIME_S - hours * _HOUR_S))
        return top

    def table(self) -> str:
        """Returns a new file with a name and a number on each line."""
        rows = [f"{self.word()} {self.rng.randint(1, 99)}" for _ in range(self.rng.randint(4, 6))]
        return self.add_lines(f"{self.fresh_directory()}/{self.word()}.txt", *rows)

    def file_in(self, directory: str) -> str:
        """Returns the name of a file directly in a directory."""
        return self.rng.choice(self.world.files_below(directory)).removeprefix(f"{directory}/")

    def file_below(self, directory: str) -> str:
        """Returns the path of a file anywhere below a directory."""
        return self.rng.choice(self.world.files_below(directory))

    def word_in(self, path: str) -> str:
        """Returns a word that some lines of a file have, and some lack. Raises: NoTaskHereError."""
        lines = self.rows(path)
        words = sorted({word for line in lines for word in line if word.isalnum()})
        options = [word for word in words if not all(word in line for line in lines)]
        if not options:
            raise NoTaskHereError
        return self.rng.choice(options)

    def team(self, aspect: str = "") -> str:
        """Returns a group that is there by now, an earlier step's if there is one."""
        shared = [name for name in self.world.teams if name not in self.world.people]
        return self._pick(shared, self.fresh_team, aspect)

    def fresh_team(self, *members: str, pool: str = "TEAM") -> str:
        """Returns a new group that is there from the beginning."""
        name, gid = self.word(pool), _FIRST_ID + len(self.initial.teams)
        for world in self.worlds:
            world.teams[name] = GroupState(name, gid, tuple(sorted(members)), ())
        return name

    def person(self, aspect: str = "") -> str:
        """Returns a user that is there by now, an earlier step's if there is one."""
        return self._pick(list(self.world.people), self.fresh_person, aspect)

    def fresh_person(self) -> str:
        """Returns a new user that is there from the beginning, in a group of that name."""
        name = self.fresh_team(pool="NAME")
        for world in self.worlds:
            gid = self.initial.teams[name].gid or _FIRST_ID
            world.people[name] = UserState(
                name, gid, name, None, f"/home/{name}", "/bin/sh", "", False, 0, 99999, 7, -1, -1
            )
        return name

    def lines(self, *paths: str) -> list[str]:
        """Returns the lines of files as they are by now."""
        return [line for path in paths for line in self.world.lines(path)]

    def rows(self, path: str) -> list[list[str]]:
        """Returns the words of each line of a file."""
        return [line.split() for line in self.lines(path)]

    def lines_with(self, word: str, *paths: str) -> list[str]:
        """Returns the lines of files that have a word."""
        return [line for line in self.lines(*paths) if word in line.split()]

    def make(self, path: str, kind: Kind = "file", **aspects: Any) -> None:
        """Makes a file or directory; of what is not said of it, it may have any."""
        self.world.files[path] = FileState(path, kind, **aspects)

    def make_directory(self, path: str, mode: str = "") -> None:
        """Makes a directory; without a mode it may have any."""
        self.make(path, "directory", mode=int(mode, 8) if mode else None)

    def make_lines(self, path: str, *lines: str) -> None:
        """Makes a text file."""
        self.make(path, content=_to_text(lines))

    def make_script(self, path: str, command: str) -> None:
        """Makes a shell script of one command."""
        self.make(path, content=_to_text([command]), match="script")

    def make_link(self, target: str, path: str) -> None:
        """Makes a symbolic link, whose target is to stay where it is."""
        self.make(path, "symlink", target=target)
        self.claims.add((target, "path"))

    def remove(self, path: str) -> None:
        """Removes a file, or a directory with all below it."""
        for below in (*self.world.below(path), path):
            del self.world.files[below]

    def move(self, path: str, new_path: str) -> None:
        """Moves a file; what is settled of it stays so."""
        self.world.files[new_path] = replace(self.world.files.pop(path), path=new_path)
        self.claims |= {(new_path, aspect) for name, aspect in self.claims if name == path}

    def move_into(self, path: str, directory: str) -> None:
        """Moves a file into a directory."""
        self.move(path, f"{directory}/{basename(path)}")

    def copy(self, path: str, new_path: str) -> None:
        """Copies a file, or a directory with all below it."""
        for source in (path, *self.world.below(path)):
            node = self.world.files[source]
            self.make(new_path + source.removeprefix(path), node.kind, content=node.content)

    def copy_into(self, path: str, directory: str) -> None:
        """Copies a file into a directory."""
        self.copy(path, f"{directory}/{basename(path)}")

    def set_file(self, path: str, **aspects: Any) -> None:
        """Changes aspects of a file."""
        self.world.files[path] = replace(self.world.files[path], **aspects)

    def change(self, path: str, aspect: str, value: str) -> None:
        """Changes and settles an aspect of a file. Raises: NoTaskHereError if it was so already."""
        node, new = self.world.files[path], int(value, 8) if aspect == "mode" else value
        if vars(node)[aspect] == new:
            raise NoTaskHereError
        self.set_file(path, **{aspect: new})
        self.claims.add((path, aspect))

    def change_date(self, path: str, day: str) -> None:
        """Changes and settles when a file was modified: at noon of a day, "2001-10-15"."""
        self.set_file(path, mtime_s=compute_noon(day))
        self.claims |= {(path, "content"), (path, "mtime")}

    def edit(self, path: str, lines: list[str]) -> None:
        """Changes and settles a file's lines. Raises: NoTaskHereError on none or the same ones."""
        if not lines or lines == self.world.lines(path):
            raise NoTaskHereError
        self.set_file(path, content=_to_text(lines))
        self.claims.add((path, "content"))

    def append(self, path: str, *lines: str) -> None:
        """Adds lines at the end of a file."""
        self.edit(path, [*self.lines(path), *lines])

    def replace(self, path: str, old: str, new: str) -> None:
        """Replaces words of a file wherever they stand."""
        pattern = rf"\b{re.escape(old)}\b"
        self.edit(path, [re.sub(pattern, new, line) for line in self.lines(path)])

    def wait(self, earlier: str, later: str, seconds: str) -> None:
        """Lets at least that time pass between the making of two files."""
        self.world.intervals.append(Interval(earlier, later, float(seconds)))
        self.claims |= {(path, what) for path in (earlier, later) for what in ("content", "path")}

    def make_team(self, name: str, gid: str = "") -> None:
        """Makes a group without members; without a number it may have any."""
        self.world.teams[name] = GroupState(name, int(gid) if gid else None, (), ())

    def set_team(self, name: str, **aspects: Any) -> None:
        """Changes aspects of a group."""
        self.world.teams[name] = replace(self.world.teams[name], **aspects)

    def join(self, person: str, team: str) -> None:
        """Makes a user a member of a group. Raises: NoTaskHereError if that is settled."""
        members = self.world.teams[team].members or ()
        if person in members or (person, team) in self.claims:
            raise NoTaskHereError
        self.set_team(team, members=tuple(sorted((*members, person))))
        self.claims.add((person, team))

    def make_user(self, name: str, **settings: str) -> None:
        """Makes a user, and settles those aspects of it."""
        self.world.people[name] = UserState(name)
        for aspect, value in settings.items():
            self.change_account(name, aspect, value)

    def set_account(self, name: str, **aspects: Any) -> None:
        """Changes aspects of a user."""
        self.world.people[name] = replace(self.world.people[name], **aspects)

    def change_account(self, name: str, aspect: str, value: str) -> None:
        """Changes and settles an aspect of a user. Raises: NoTaskHereError if it was so already."""
        person, new = self.world.people[name], int(value) if aspect == "uid" else value
        if vars(person)[aspect] == new:
            raise NoTaskHereError
        self.set_account(name, **{aspect: new})
        self.claims.add((name, aspect))

    def _pick(self, options: list[str], make: Callable[[], str], aspect: str = "") -> str:
        """Settles an aspect (if any) of one that is there, or of a new one; returns its name.

        More often than not it is one of the latest of which the aspect is not settled.
        """
        free = [name for name in options if (name, aspect) not in self.claims]
        name = self.rng.choice(free[-2:]) if free and self.rng.random() < _REUSE else make()
        if aspect:
            self.claims.add((name, aspect))
        return name

    def _fill(self, directories: list[str], ending: str) -> None:
        other = self.rng.choice([extension for extension in _EXTENSIONS if extension != ending])
        endings = [ending] * self.rng.randint(2, 4) + [other] * self.rng.randint(2, 3)
        words = self.text(3).split()
        for index, extension in enumerate(endings):
            directory = directories[index % len(directories)]
            text = f"{' '.join(self.rng.choices(words, k=3))}\n"
            self.add(new_node(f"{directory}/{self.word()}{extension}", content=text))


def compute_noon(day: str) -> int:
    """Returns the time of a day's noon, UTC, in seconds."""
    return int(datetime.fromisoformat(day).replace(hour=12, tzinfo=UTC).timestamp())


def _to_text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _invent_word(rng: Random) -> str:
    """Returns a word of 5 to 9 letters that names no group of the image."""
    word = invent_word(rng, 5)
    return _invent_word(rng) if word in _TAKEN else word
