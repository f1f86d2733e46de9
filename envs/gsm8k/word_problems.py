"""Word problems made from the templates in `word_problems.toml`.

A template has ranges of numbers, sums that the question needs (`let`), a question, and steps. A
step is a sentence with the sum that it makes known: `["total = a * b", "That is {total} eggs."]`
becomes "That is 3 * 4 = <<3*4=12>>12 eggs.", as GSM8K writes it. The last step's sum is the answer.
"""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import TypeAlias, TypedDict, cast

import numpy as np

from agentpeft.envs.core.errors import UnknownTaskError, did_you_mean
from agentpeft.envs.gsm8k.tasks import GSM8KTask, make_task
from agentpeft.envs.tasks.phrases import read_toml
from agentpeft.envs.tasks.task import Split, check_split, compute_split

_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
}
_SYMBOL = re.compile("[-+*/]")
_NUM_SEEDS = 2**32
_Words: TypeAlias = dict[str, str | int]


class Template(TypedDict):
    """One kind of problem; `numbers` are inclusive ranges."""

    numbers: dict[str, tuple[int, int]]
    let: list[str]
    question: str
    steps: list[tuple[str, str]]


class _Library(TypedDict):
    names: list[str]
    items: list[str]
    templates: dict[str, Template]


@cache
def load_templates() -> _Library:
    """Returns names, items and templates."""
    return cast(_Library, read_toml(__file__, "word_problems.toml"))


@dataclass(frozen=True)
class WordProblems:
    """A task source: a random template with random names, items and numbers.

    A task's id is `template:seed` with a seed below 2^32, from which `get` makes it again, also one
    of the other `split`. What a template's numbers are is only ever in one split, whatever names
    and items go with them; one in four is "test".
    """

    split: str | None = None

    def __post_init__(self) -> None:
        """Raises: SettingsError."""
        check_split(self.split)

    def draw(self, rng: np.random.Generator) -> GSM8KTask:
        """Returns one random task of the split."""
        templates = list(load_templates()["templates"])
        while True:  # each template has numbers of both splits
            name = templates[rng.integers(len(templates))]
            seed = int(rng.integers(_NUM_SEEDS))
            words = _pick_words(name, seed)
            if self.split is None or _compute_split(name, words) == self.split:
                return _make(name, seed, words)

    def get(self, task_id: str) -> GSM8KTask:
        """Returns the task of an id. Raises: UnknownTaskError."""
        name, _, seed = task_id.partition(":")
        templates = load_templates()["templates"]
        if name not in templates:
            raise UnknownTaskError(f"no word problem {name!r:.60}{did_you_mean(name, templates)}")
        if not re.fullmatch(r"0|[1-9][0-9]{0,9}", seed) or int(seed) >= _NUM_SEEDS:
            raise UnknownTaskError(f"a word problem's id is {name}:0 to 2^32 - 1, got {task_id!r}")
        return _make(name, int(seed), _pick_words(name, int(seed)))


def write_with_lapses(task: GSM8KTask, share: float) -> str:
    """Returns the solution of a task of `WordProblems`, in which a step lapses with that share.

    A step that lapses adds its numbers, as most steps do, whatever the question asks for, and the
    steps after it continue with its result. A model that imitates such solutions learns to
    calculate, and with which numbers; what the words mean it knows only weakly.
    """
    rng = Random(f"lapses/{task.task_id}")
    name, _, seed = task.task_id.partition(":")
    steps = [
        (_SYMBOL.sub("+", assignment) if rng.random() < share else assignment, sentence)
        for assignment, sentence in load_templates()["templates"][name]["steps"]
    ]
    return _make(name, int(seed), _pick_words(name, int(seed)), steps).solution


def _pick_words(name: str, seed: int) -> _Words:
    """Returns a template's random names, item and numbers."""
    library = load_templates()
    rng = np.random.default_rng(seed)
    names = rng.permutation(library["names"])
    words: _Words = {
        "name": str(names[0]),
        "friend": str(names[1]),
        "item": str(rng.choice(library["items"])),
    }
    for key, (low, high) in library["templates"][name]["numbers"].items():
        words[key] = int(rng.integers(low, high + 1))
    return words


def _compute_split(name: str, words: _Words) -> Split:
    numbers = (str(words[key]) for key in load_templates()["templates"][name]["numbers"])
    return compute_split(f"{name}:{','.join(numbers)}")


def _make(
    name: str, seed: int, words: _Words, steps: Sequence[tuple[str, str]] | None = None
) -> GSM8KTask:
    """Returns a task; its solution has other steps than the template's own where some are given."""
    template = load_templates()["templates"][name]
    for assignment in template["let"]:
        _compute(assignment, words)
    question = template["question"].format(**words)
    lines, value = [], 0
    for assignment, sentence in steps or template["steps"]:
        key, sum_text, value = _compute(assignment, words)
        shown = f"{sum_text} = <<{sum_text.replace(' ', '')}={value}>>{value}"
        lines.append(sentence.format(**{**words, key: shown}))
    return make_task(f"{name}:{seed}", question, "\n".join(lines), str(value))


def _compute(assignment: str, words: _Words) -> tuple[str, str, int]:
    """Carries out "c = a * b" on `words`; returns ("c", "3 * 4", 12)."""
    key, _, left_name, symbol, right_name = assignment.split()
    left, right = (
        int(name) if name.isdigit() else int(words[name]) for name in (left_name, right_name)
    )
    value = words[key] = _OPERATORS[symbol](left, right)
    return key, f"{left} {symbol} {right}", value
