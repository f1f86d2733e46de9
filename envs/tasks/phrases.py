"""The words of generated tasks: their data files, their phrasings in English, and made-up words."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

_CONSONANTS_AND_VOWELS = ("bcdfghjklmnprstvwxyz", "aeiou")


def read_toml(module_file: str, name: str) -> dict[str, Any]:
    """Returns a TOML file by its path from the folder of a module (`__file__`)."""
    return tomllib.loads((Path(module_file).parent / name).read_text(encoding="utf-8"))


class Speaker:
    """Phrases in English, each in one of several ways that `rng` picks."""

    def __init__(
        self, phrases: Mapping[str, Sequence[str]], rng: Random, max_phrasings: int | None
    ) -> None:
        """`phrases` has the ways to say each thing, plainest first, with blanks in braces.

        Only the first `max_phrasings` ways are used; None uses all.
        """
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


def invent_word(rng: Random, min_letters: int) -> str:
    """Returns a pronounceable word of `min_letters` to 9 letters, such as "tekolar"."""
    num_letters = rng.randint(min_letters, 9)
    return "".join([rng.choice(_CONSONANTS_AND_VOWELS[i % 2]) for i in range(num_letters)])
