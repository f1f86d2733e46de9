"""MySQL's utf8mb4_0900_ai_ci: order and equality that ignore case and accents."""

import sqlite3
import unicodedata
from functools import lru_cache
from time import monotonic

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.deadline import Deadline

_PUNCTUATION = " _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$"
_ORDER = {character: chr(index + 1) for index, character in enumerate("\t\n\r" + _PUNCTUATION)}
_TABLE = str.maketrans(_ORDER)
_MAX_KEPT_CHARS = 100
_WILDCARDS = "%_\\"
_MAX_PATTERN_BYTES = 200
"""What SQLite takes at most: see `connection`."""
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
    """Replaces NOCASE by MySQL's collation (SQLite's own is faster and knows ASCII only)."""
    deadline = deadline or Deadline()

    def compare(left: str, right: str) -> int:
        """Compares two texts; after the deadline it ends the statement, since it cannot raise."""
        if monotonic() > deadline.end_s:
            deadline.miss()
            return 0
        first, second = collation_key(left), collation_key(right)
        return (first > second) - (first < second)

    connection.create_collation("NOCASE", compare)


def fold_text(text: str) -> str:
    """Returns a text for SQLite's LIKE. Raises: MySQLError (1235): it ends at a NUL."""
    if "\0" in text:
        raise Mistake.NOT_SUPPORTED("LIKE of a text with a NUL character")
    return fold(text)


def fold_pattern(pattern: str) -> str:
    """Returns a pattern for SQLite's LIKE, with a backslash as its escape character.

    A wide percent sign, which folds to a wildcard, is none. Raises: MySQLError (1235).
    """
    if not pattern.isascii():
        folded = ((character, fold(character)) for character in pattern)
        pattern = "".join(
            f"\\{to}" if to in _WILDCARDS and character not in _WILDCARDS else to
            for character, to in folded
        )
    num_backslashes = len(pattern) - len(pattern.rstrip("\\"))
    if num_backslashes % 2 or len(pattern.encode()) > _MAX_PATTERN_BYTES or "\0" in pattern:
        raise Mistake.NOT_SUPPORTED(f"LIKE '{pattern:.80}'")
    return pattern


def fold(text: str) -> str:
    """Returns a text of as many characters, without case and accents."""
    return text.lower() if text.isascii() else "".join(map(_folded, text))


@lru_cache(maxsize=4096)
def _folded(character: str) -> str:
    key = unicodedata.normalize("NFKD", character.lower())
    return key[0] if len(key) == 1 or all(map(unicodedata.combining, key[1:])) else character
