"""Families of generated OS tasks, and the decorators that make them of functions.

In the functions, a variable of one letter is the word for the blank of that name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from agentpeft.envs.os_interaction.generator.scene import Scene
from agentpeft.envs.os_interaction.grading.answers import AnswerKind, ExpectedAnswer
from agentpeft.envs.os_interaction.grading.state import Match
from agentpeft.envs.os_interaction.skills import check_skills, detect_skills
from agentpeft.envs.tasks.skill_generator import NoTaskHereError

Blanks: TypeAlias = Mapping[str, str]
"""The words for the blanks in a family's phrasings and gold commands."""
Value: TypeAlias = str | int | list[str]
"""The answer to a question; a list has a line for each element."""
Draw: TypeAlias = Callable[[Scene], str]
"""Draws the word for a blank."""

ChangeT = TypeVar("ChangeT", bound=Callable[[Scene], Blanks])
QuestionT = TypeVar("QuestionT", bound=Callable[[Scene], tuple[Blanks, Value]])


@dataclass(frozen=True)
class Step:
    """A part of a task: its sentence, its gold commands, and the answer if it asks for one."""

    words: str
    gold: str
    answer: ExpectedAnswer | None = None


@dataclass(frozen=True)
class StepFamily:
    """One kind of step, see `family` and `question`.

    `say` names its phrasings in `data/phrases.toml`. `act` returns a value if it is a question.
    """

    say: str
    gold: str
    skills: tuple[str, ...]
    act: Callable[[Scene], tuple[Blanks, Value | None]]
    kind: AnswerKind | None = None

    def make(self, scene: Scene, may_ask: bool) -> Step:
        """Returns a step, with the scene changed as it does. Raises: NoTaskHereError."""
        blanks, value = self.act(scene)
        if value is None:
            words = scene.speaker.capital(self.say, **blanks)
            return Step(words, self.gold.format_map(blanks))
        text = "\n".join(value) if isinstance(value, list) else str(value)
        if not text:
            raise NoTaskHereError
        noun = scene.speaker.say(self.say, **blanks)
        gold = self.gold.format(out="{out}", **blanks)
        may_save = "{out}" in gold
        if self.kind and may_ask and (scene.rng.random() < 0.5 or not may_save):
            words = scene.speaker.capital("ask", noun=noun)
            return Step(words, gold.replace(" > {out}", ""), ExpectedAnswer(text, self.kind))
        if not may_save:
            raise NoTaskHereError
        out = scene.aside(".txt")
        match: Match = "lines" if self.kind == "names" else "text"
        scene.make(out, content=f"{text}\n", match=match)
        return Step(scene.speaker.capital("save", noun=noun, out=out), gold.replace("{out}", out))


FAMILIES: list[StepFamily] = []
"""All families, in the order of their definitions."""


def family(*golds: str, skills: Sequence[str] = (), say: str = "") -> Callable[[ChangeT], ChangeT]:
    """Makes a family of a function for each of several gold commands that do the same.

    The function chooses what the step works with, does it in the scene's model, and returns the
    words for the blanks. `skills` are those that the commands show without running them. `say`
    names the phrasings; without it they have the function's name.
    """

    def define(function: ChangeT) -> ChangeT:
        name = say or function.__name__.removeprefix("_")
        _define(name, golds, skills, lambda scene: (function(scene), None))
        return function

    return define


def question(
    *golds: str, kind: AnswerKind | None = None, skills: Sequence[str] = (), say: str = ""
) -> Callable[[QuestionT], QuestionT]:
    """Makes a family of a function that also returns the value that the gold commands print.

    The value is to be answered, as that `kind` of answer, or to be saved in a file, `{out}` in the
    commands. Without a `kind` it is always saved. See `family` for the other arguments.
    """

    def define(function: QuestionT) -> QuestionT:
        _define(say or function.__name__.removeprefix("_"), golds, skills, function, kind)
        return function

    return define


def add_family(say: str, gold: str, do: Callable[..., object], **draws: Draw) -> None:
    """Defines a family whose words are drawn one by one; `do` gets the scene and these words."""

    def act(scene: Scene) -> tuple[Blanks, None]:
        words = {name: draw(scene) for name, draw in draws.items()}
        do(scene, *words.values())
        return words, None

    _define(say, [gold], (), act)


def _define(
    say: str,
    golds: Sequence[str],
    skills: Sequence[str],
    act: Callable[[Scene], tuple[Blanks, Value | None]],
    kind: AnswerKind | None = None,
) -> None:
    for gold in golds:
        shown = check_skills([*detect_skills(gold), *skills])
        FAMILIES.append(StepFamily(say, gold, shown, act, kind))
