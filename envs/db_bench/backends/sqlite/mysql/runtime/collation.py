"""MySQL's utf8mb4_0900_ai_ci: order and equality that ignore case and accents."""

import sqlite3
import unicodedata
from functools import lru_cache
from time import monotonic

from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.deadline import Deadline

_PUNCTUATION = " _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$"
_ORDER = {character: chr(index + 1) for index, character in enumerate("\t\n\r" + _PUNCTUATION)}
_TABLE = str.maketrans(_ORDER)
_MAX_KEPT_CHARS = 100
_EXPANSIONS = str.maketrans({"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d"})


def collation_key(text: str) -> str:
    """Returns a text that sorts and compares as MySQL sorts `text`.

    >>> collation_key("Émile") == collation_key("emile")
    True
    """
    return _kept_key(text) if len(text) <= _MAX_KEPT_CHARS else _key(text)


def _key(text: str) -> str:
    if not text.isascii():
        parts = unicodedata.normalize("NFKD", text.casefold())
        text = "".join(c for c in parts if not unicodedata.combining(c)).translate(_EXPANSIONS)
    return text.lower().translate(_TABLE)


_kept_key = lru_cache(maxsize=4096)(_key)


def install_collation(connection: sqlite3.Connection, deadline: Deadline | None = None) -> None:
    """Replaces NOCASE and LIKE by MySQL's (SQLite's own are faster and know ASCII only)."""
    deadline = deadline or Deadline()

    def compare(left: str, right: str) -> int:
        """Compares two texts; after the deadline it ends the statement, since it cannot raise."""
        if monotonic() > deadline.end_s:
            deadline.miss()
            return 0
        first, second = collation_key(left), collation_key(right)
        return (first > second) - (first < second)

    def like_operator(pattern: str | None, text: str | None, escape: str = "") -> int | None:
        if pattern is None or text is None:
            return None
        if deadline.is_over():
            deadline.miss()
            return 0
        return like(str(text), str(pattern), escape, deadline)

    connection.create_collation("NOCASE", compare)
    connection.create_function("like", 2, like_operator)
    connection.create_function("like", 3, like_operator)


def like(text: str, pattern: str, escape: str, deadline: Deadline | None = None) -> int:
    r"""Returns whether a text is LIKE a pattern; `deadline` is missed where that takes too long.

    >>> like("Banana", "b%a_a", "\\")
    1
    """
    if "_" not in pattern and (not escape or escape not in pattern):
        return _has_pieces(fold(text), fold(pattern).split("%"))
    return _matches(fold(text), _read_pattern(pattern, escape), deadline or Deadline())


def _has_pieces(text: str, pieces: list[str]) -> int:
    """Returns whether a text is made of pieces in turn with any text between them."""
    first, *rest = pieces
    if not rest:
        return int(text == first)
    *middle, last = rest
    if not text.startswith(first):
        return 0
    position = len(first)
    for piece in middle:
        place = text.find(piece, position)
        if place < 0:
            return 0
        position = place + len(piece)
    return int(len(text) - len(last) >= position and text.endswith(last))


def _matches(text: str, pattern: list[str], deadline: Deadline) -> int:
    """Returns whether a text matches, in at most len(text) * len(pattern) steps.

    After a mismatch only the last `%` may take one character more: what earlier ones take can stay
    as it is, for the rest of the pattern matches there if anywhere.
    """
    if len(pattern) * len(text) > deadline.max_work:
        deadline.miss()
        return 0
    place = position = 0
    retry: tuple[int, int] | None = None
    while position < len(text):
        expected = pattern[place] if place < len(pattern) else ""
        if expected == _ANY_TEXT:
            retry = (place + 1, position)
            place += 1
        elif expected in (_ANY_CHARACTER, text[position]):
            place, position = place + 1, position + 1
        elif retry is None:
            return 0
        else:
            place, position = retry[0], retry[1] + 1
            retry = (place, position)
            if deadline.is_over():
                deadline.miss()
                return 0
    return int(all(part == _ANY_TEXT for part in pattern[place:]))


_ANY_TEXT = "%%"
_ANY_CHARACTER = "__"


def _read_pattern(pattern: str, escape: str) -> list[str]:
    """Returns a pattern's characters; wildcards are longer than a character."""
    parts: list[str] = []
    characters = iter(fold(pattern))
    for character in characters:
        if character == escape:
            parts.append(next(characters, escape))
        elif character == "%":
            parts.append(_ANY_TEXT)
        else:
            parts.append(_ANY_CHARACTER if character == "_" else character)
    return parts


def fold(text: str) -> str:
    """Returns a text of as many characters, without case and accents."""
    return text.lower() if text.isascii() else "".join(map(_folded, text))


@lru_cache(maxsize=4096)
def _folded(character: str) -> str:
    key = unicodedata.normalize("NFKD", character.lower())
    return key[0] if len(key) == 1 or all(map(unicodedata.combining, key[1:])) else character
