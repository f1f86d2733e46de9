"""MySQL's utf8mb4_0900_ai_ci: order and equality that ignore case and accents."""

import sqlite3
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
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


def compare_texts(left: str, right: str) -> int:
    """Returns -1, 0 or 1, as a text is before, equal to or after another."""
    first, second = collation_key(left), collation_key(right)
    return (first > second) - (first < second)


def install_collation(connection: sqlite3.Connection, deadline: Deadline | None = None) -> None:
    """Replaces NOCASE and LIKE by MySQL's (SQLite's own are faster and know ASCII only)."""
    deadline = deadline or Deadline()

    def compare(left: str, right: str) -> int:
        """Compares two texts; after the deadline it ends the statement, since it cannot raise."""
        if monotonic() > deadline.end_s:
            deadline.miss()
            return 0
        return compare_texts(left, right)

    def like_operator(pattern: str | None, text: str | None, escape: str = "") -> int | None:
        if pattern is None or text is None:
            return None
        if deadline.is_over():
            deadline.miss()
            return 0
        return like(str(text), str(pattern), escape)

    connection.create_collation("NOCASE", compare)
    connection.create_function("like", 2, like_operator)
    connection.create_function("like", 3, like_operator)


def like(text: str, pattern: str, escape: str) -> int:
    """Returns whether a text is LIKE a pattern.

    A pattern is segments between `%`, each looked for where the one before it ended: no
    backtracking, and time linear in the text but for a segment with `_` (see `_Segment.find`).
    """
    first, *rest = _segments(pattern, escape)
    folded = _fold(text)
    if not first.is_at(folded, 0):
        return 0
    if not rest:
        return int(len(folded) == first.width)
    position = first.width
    *middle, last = rest
    for segment in middle:
        start = segment.find(folded, position)
        if start < 0:
            return 0
        position = start + segment.width
    start = len(folded) - last.width
    return int(start >= position and last.is_at(folded, start))


class _Segment:
    """A part of a LIKE pattern without `%`: texts at offsets, any characters between them."""

    __slots__ = ("characters", "pieces", "width")

    def __init__(self, characters: Sequence[str | None]) -> None:
        """None stands for `_`."""
        self.width = len(characters)
        self.characters = characters
        self.pieces: list[tuple[int, str]] = []
        for is_any, group in groupby(enumerate(characters), lambda pair: pair[1] is None):
            if not is_any:
                pairs = list(group)
                self.pieces.append((pairs[0][0], "".join(str(pair[1]) for pair in pairs)))

    def is_at(self, text: str, start: int) -> bool:
        """Returns whether it matches at a place."""
        return start + self.width <= len(text) and all(
            text.startswith(piece, start + offset) for offset, piece in self.pieces
        )

    def find(self, text: str, start: int) -> int:
        """Returns the first place from `start` on where it matches, -1 if there is none.

        With `_` in it, bit n of `state` says that the n + 1 characters read last match its first
        n + 1 (the Shift-And algorithm): one step on such a number for each character of the text.
        """
        if not self.pieces:
            return start if start + self.width <= len(text) else -1
        if len(self.pieces) == 1:
            offset, piece = self.pieces[0]
            place = text.find(piece, start + offset) - offset
            return place if place >= start and place + self.width <= len(text) else -1
        places: dict[str, int] = {}
        anywhere = 0
        for index, character in enumerate(self.characters):
            if character is None:
                anywhere |= 1 << index
            else:
                places[character] = places.get(character, 0) | 1 << index
        state, end = 0, 1 << (self.width - 1)
        for index in range(start, len(text)):
            state = (state << 1 | 1) & (places.get(text[index], 0) | anywhere)
            if state & end:
                return index - self.width + 1
        return -1


def _segments(pattern: str, escape: str) -> tuple[_Segment, ...]:
    is_short = len(pattern) <= _MAX_KEPT_CHARS and len(escape) <= _MAX_KEPT_CHARS
    return _kept_segments(pattern, escape) if is_short else _read_segments(pattern, escape)


def _read_segments(pattern: str, escape: str) -> tuple[_Segment, ...]:
    segments: list[list[str | None]] = [[]]
    characters = iter(_fold(pattern))
    for character in characters:
        if character == escape:
            segments[-1].append(next(characters, escape))
        elif character == "%":
            segments.append([])
        else:
            segments[-1].append(None if character == "_" else character)
    return tuple(map(_Segment, segments))


_kept_segments = lru_cache(maxsize=256)(_read_segments)


def _fold(text: str) -> str:
    if text.isascii():
        return text.lower()
    parts = unicodedata.normalize("NFKD", text.lower())
    return "".join(c for c in parts if not unicodedata.combining(c))
