"""MySQL's utf8mb4_0900_ai_ci: order and equality that ignore case and accents."""

import re
import sqlite3
import unicodedata
from functools import lru_cache

_PUNCTUATION = " _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$"
_ORDER = {character: chr(index + 1) for index, character in enumerate("\t\n\r" + _PUNCTUATION)}
_TABLE = str.maketrans(_ORDER)
_MAX_KEPT_CHARS = 200
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


_kept_key = lru_cache(maxsize=8192)(_key)


def install_collation(connection: sqlite3.Connection) -> None:
    """Replaces NOCASE and LIKE by MySQL's (SQLite's own are faster and know ASCII only)."""
    connection.create_collation("NOCASE", _compare)
    connection.create_function("like", 2, lambda pattern, text: _like_operator(pattern, text, ""))
    connection.create_function("like", 3, _like_operator)


def _compare(left: str, right: str) -> int:
    first, second = collation_key(left), collation_key(right)
    return (first > second) - (first < second)


def _like_operator(pattern: str | None, text: str | None, escape: str) -> int | None:
    return None if pattern is None or text is None else like(str(text), str(pattern), escape)


def like(text: str, pattern: str, escape: str) -> int:
    """Returns whether a text is LIKE a pattern; never backtracks over more than one `%`."""
    first, *rest = _segments(pattern, escape)
    folded = _fold(text)
    match = first.match(folded)
    if match is None:
        return 0
    position = match.end()
    if not rest:
        return int(position == len(folded))
    *middle, last = rest
    for segment in middle:
        match = segment.search(folded, position)
        if match is None:
            return 0
        position = match.end()
    start = _last_start(last, folded)
    return int(start is not None and start >= position)


def _last_start(segment: re.Pattern[str], text: str) -> int | None:
    width = _width(segment.pattern)
    start = len(text) - width
    return start if start >= 0 and segment.match(text, start) else None


@lru_cache(maxsize=1024)
def _width(pattern: str) -> int:
    return len(re.sub(r"\\(.)", "x", pattern, flags=re.DOTALL))


@lru_cache(maxsize=1024)
def _segments(pattern: str, escape: str) -> tuple[re.Pattern[str], ...]:
    segments, current = [], ""
    characters = iter(_fold(pattern))
    for character in characters:
        if character == escape:
            current += re.escape(next(characters, escape))
        elif character == "%":
            segments.append(current)
            current = ""
        else:
            current += "." if character == "_" else re.escape(character)
    return tuple(re.compile(part, re.DOTALL) for part in [*segments, current])


def _fold(text: str) -> str:
    if text.isascii():
        return text.lower()
    parts = unicodedata.normalize("NFKD", text.lower())
    return "".join(c for c in parts if not unicodedata.combining(c))
