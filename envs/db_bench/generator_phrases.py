"""How generated DB-bench tasks are said in English; the words are in `generator_phrases.txt`.

A line there is a clause's name and its phrasings, plainest first, with blanks in braces.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random

_TEXT = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
_PHRASES = {
    name: tuple(phrases.split(" | "))
    for name, phrases in (line.split(": ", 1) for line in _TEXT.splitlines())
}


class Speaker:
    """Picks among the first `max_phrasings` ways (None: all) to say something."""

    def __init__(self, rng: Random, max_phrasings: int | None) -> None:
        """`rng` decides."""
        self.rng = rng
        self._max = max_phrasings

    def say(self, what: str, **words: str) -> str:
        """Returns a phrase with its blanks filled in."""
        return self.rng.choice(_PHRASES[what][: self._max]).format_map(words)

    def capital(self, what: str, **words: str) -> str:
        """Returns a phrase that begins a sentence."""
        text = self.say(what, **words)
        return text[0].upper() + text[1:]


def enumerate_words(words: Sequence[str]) -> str:
    """Returns "a", "a and b" or "a, b and c"."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def count_rows(num_rows: int) -> str:
    """Returns "row" or "3 rows", to go after "the first"."""
    return "row" if num_rows == 1 else f"{num_rows} rows"
