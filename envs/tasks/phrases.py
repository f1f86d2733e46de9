"""How generated tasks are said in English: names of clauses, and the ways to say each."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

Phrases = Mapping[str, tuple[str, ...]]


def read_phrases(path: Path) -> Phrases:
    """Returns a file's phrasings by name, plainest first, with blanks in braces.

    A line is `name: first phrasing | second | …`.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    return {
        name: tuple(phrases.split(" | "))
        for name, phrases in (line.split(": ", 1) for line in lines)
    }


class Speaker:
    """Picks among the first `max_phrasings` ways (None: all) to say something."""

    def __init__(self, phrases: Phrases, rng: Random, max_phrasings: int | None) -> None:
        """`rng` decides."""
        self.rng = rng
        self._phrases = phrases
        self._max = max_phrasings

    def say(self, what: str, **words: str) -> str:
        """Returns a phrase with its blanks filled in."""
        return self.rng.choice(self._phrases[what][: self._max]).format_map(words)

    def capital(self, what: str, **words: str) -> str:
        """Returns a phrase that begins a sentence."""
        text = self.say(what, **words)
        return text[0].upper() + text[1:]


def enumerate_words(words: Sequence[str]) -> str:
    """Returns "a", "a and b" or "a, b and c"."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
