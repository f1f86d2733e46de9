"""The families of generated OS tasks; they are told in `data/families.toml`.

Each is a table. `with` names what it works with, in order: a noun of `NOUNS` and its words.
`do` changes the world by `VERBS`; `gold` are the commands that do it. A family with `value` (one of
`VALUES`) asks for it, by `kind` of answer or, without one, in a file. `skills` are those that the
gold commands show; given where they are not seen in them. Words may have blanks: `{f}`.
How a family is said is in `data/phrases.toml`, under its name or what `say` gives.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentpeft.envs.os_interaction.generator.scene import NOUNS, Scene
from agentpeft.envs.os_interaction.generator.verbs import VALUES, VERBS
from agentpeft.envs.os_interaction.generator.world import Node
from agentpeft.envs.os_interaction.grading.answers import AnswerKind, ExpectedAnswer
from agentpeft.envs.os_interaction.grading.state import Match
from agentpeft.envs.os_interaction.skills import check_skills, detect_skills
from agentpeft.envs.tasks.phrases import Speaker, read_toml
from agentpeft.envs.tasks.skill_generator import NoTaskHereError

PHRASES = read_toml(__file__, "data/phrases.toml")


@dataclass(frozen=True)
class Step:
    """A part of a task: its sentence, its gold commands, and the answer if it asks for one."""

    words: str
    gold: str
    answer: ExpectedAnswer | None = None


@dataclass(frozen=True, kw_only=True)
class Family:
    """One table of the file; `nouns` is its `with`."""

    name: str
    gold: str
    skills: tuple[str, ...]
    nouns: Mapping[str, str] = field(default_factory=dict)
    do: tuple[str, ...] = ()
    say: str = ""
    value: str = ""
    kind: AnswerKind | None = None

    def make(self, scene: Scene, speaker: Speaker, may_ask: bool) -> Step:
        """Returns a step, with the scene changed as it does. Raises: NoTaskHereError."""
        blanks = {"out": "{out}"}
        for name, spec in self.nouns.items():
            noun, *words = _fill(spec, blanks)
            is_phrase = noun == "phrase"
            blanks[name] = _phrase(speaker, *words) if is_phrase else NOUNS[noun](scene, *words)
        for spec in self.do:
            verb, *words = _fill(spec, blanks)
            VERBS[verb](scene, *words)
        if self.value:
            return self._report(scene, speaker, may_ask, blanks)
        return Step(speaker.capital(self.say, **blanks), self.gold.format_map(blanks))

    def _report(
        self, scene: Scene, speaker: Speaker, may_ask: bool, blanks: Mapping[str, str]
    ) -> Step:
        """Returns a step that asks for the value, or wants it in a file."""
        reader, *words = _fill(self.value, blanks)
        value = VALUES[reader](scene.world, *words)
        text = "\n".join(value) if isinstance(value, list) else str(value)
        if not text:
            raise NoTaskHereError
        noun, gold = speaker.say(self.say, **blanks), self.gold.format_map(blanks)
        may_save = "{out}" in gold
        if self.kind and may_ask and (scene.rng.random() < 0.5 or not may_save):
            command = gold.replace(" > {out}", "")
            return Step(speaker.capital("ask", noun=noun), command, ExpectedAnswer(text, self.kind))
        if not may_save:
            raise NoTaskHereError
        out = scene.aside(".txt")
        match: Match = "lines" if self.kind == "names" else "text"
        scene.world.files[out] = Node(content=f"{text}\n", match=match)
        return Step(speaker.capital("save", noun=noun, out=out), gold.replace("{out}", out))


def _fill(spec: str, blanks: Mapping[str, str]) -> list[str]:
    return [word.format_map(blanks) for word in shlex.split(spec)]


def _phrase(speaker: Speaker, name: str, value: str) -> str:
    return speaker.say(name, v=value, n=value)


def _read_families() -> tuple[Family, ...]:
    families = []
    for name, fields in read_toml(__file__, "data/families.toml").items():
        skills = check_skills(fields.pop("skills", None) or detect_skills(fields["gold"]))
        nouns, do = fields.pop("with"), tuple(fields.pop("do", ()))
        families.append(
            Family(
                **{"say": name, "name": name, "nouns": nouns, "do": do, "skills": skills, **fields}
            )
        )
    return tuple(families)


FAMILIES = _read_families()
