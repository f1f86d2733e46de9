"""MySQL's utf8mb4_0900_ai_ci: order and equality that ignore case and accents."""

import re
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

    def like_operator(pattern: str | None, text: str | None, escape: str = "\\") -> int | None:
        if pattern is None or text is None:
            return None
        return like(text, pattern, deadline, escape)

    connection.create_collation("NOCASE", compare)
    connection.create_function("like", 2, like_operator)
    connection.create_function("like", 3, like_operator)


def like(text: str, pattern: str, deadline: Deadline, escape: str = "\\") -> int:
    """Returns whether a text is LIKE a pattern; `deadline` is missed where that takes too long.

    What earlier `%` take can stay as it is: the rest of the pattern matches there if anywhere.
    """
    text = fold(text)
    marked = _wildcards(escape).sub(lambda match: match[1] or _MARKS[match[0]], pattern)
    written = fold(marked)
    first, *rest = written.split(_MARKS["%"])
    if not rest:
        return int(len(first) == len(text) and _fits(first, text, 0))
    *middle, last = rest
    position = len(first)
    if not _fits(first, text, 0):
        return 0
    for segment in middle:
        position = _find(segment, text, position, deadline) + len(segment)
        if position < len(segment):
            return 0
    start = len(text) - len(last)
    return int(start >= position and _fits(last, text, start))


@lru_cache(maxsize=16)
def _wildcards(escape: str) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(escape)}(.)|[%_]" if escape else "[%_]()", re.DOTALL)


_MARKS = {"%": "\U0010ffff", "_": "\U0010fffe"}
"""No characters."""


def _find(segment: str, text: str, position: int, deadline: Deadline) -> int:
    """Returns where a segment fits first, -1 for nowhere."""
    if _MARKS["_"] not in segment:
        return text.find(segment, position)
    for start in range(position, len(text) - len(segment) + 1):
        if deadline.is_over():
            deadline.miss()
            return -1
        if _fits(segment, text, start):
            return start
    return -1


def _fits(segment: str, text: str, start: int) -> bool:
    part = text[start : start + len(segment)]
    if _MARKS["_"] not in segment:
        return part == segment
    pairs = zip(segment, part, strict=False)
    return len(part) == len(segment) and all(a in (b, _MARKS["_"]) for a, b in pairs)


def fold(text: str) -> str:
    """Returns a text of as many characters, without case and accents."""
    return text.lower() if text.isascii() else "".join(map(_folded, text))


@lru_cache(maxsize=4096)
def _folded(character: str) -> str:
    key = unicodedata.normalize("NFKD", character.lower())
    return key[0] if len(key) == 1 or all(map(unicodedata.combining, key[1:])) else character
