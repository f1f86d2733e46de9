"""MySQL's utf8mb4_0900_ai_ci: order and equality that ignore case and accents.

It is done for Latin, Greek, Russian and Chinese letters, digits and common symbols. Where another
character decides (which order have two emoji, is a hiragana a katakana), the answer is error 1235.
"""
# ruff: noqa: RUF001, RUF003 (characters that look alike are what this is about)

import sqlite3
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from time import monotonic

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake, MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.deadline import Deadline

_ORDER = (
    "\t\n\x0b\x0c\r _-‐‒–—―,;:!¡?¿.·'‘’‚‹›\"“”„«»()[]{}§¶@*/\\&#%‰†‡•′`´^¯¨¸°©®←→↑↓+±÷×<=>¬|¦~"
    "−∞≤≥●★☆✓♭♯¤¢$£¥€0123456789abcdefghijklmnopqrstuvwxyzþ"
    "αβγδεζηθικλμνξοπρστυφχψωабвгдежзийклмнопрстуфхцчшщъыьэюя"
)
"""The characters that are done, as MySQL orders them; behind them the Chinese ones."""
_TABLE: dict[int, str | None] = {
    **dict.fromkeys((*range(32), 127), None),
    **{ord(character): chr(index) for index, character in enumerate(_ORDER, 1)},
}
"""Characters as weights below 256; other characters, all above, are their own weights."""
_LAST_LATIN = chr(_ORDER.index("þ") + 1)
_EXPANSIONS = {
    **{"æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "ħ": "h", "ŀ": "l"},
    **{"ƍ": "zw", "ʦ": "ts", "ȸ": "db", "ȹ": "qp", "ʣ": "dz", "ʪ": "ls", "ʫ": "lz", "ỻ": "ll"},
}
_MAX_KEPT_CHARS = 100
_WILDCARDS = "%_\\"
_MAX_PATTERN_BYTES = 200
"""What SQLite takes at most: see `connection`."""


def collation_key(text: str) -> str:
    """Returns a text that sorts and compares as MySQL sorts `text`.

    >>> collation_key("Émile") == collation_key("emile")
    True
    """
    return _kept_key(text) if len(text) <= _MAX_KEPT_CHARS else _key(text)


def _key(text: str) -> str:
    base = text.lower() if text.isascii() else "".join(map(_base, text))
    return base.translate(_TABLE)


_kept_key = lru_cache(maxsize=4096)(_key)


@lru_cache(maxsize=4096)
def _base(character: str) -> str:
    """Returns a character without case and accents; it may be none, or several."""
    if character in _ORDER:
        return character
    if unicodedata.category(character) in ("Cc", "Cf", "Mn", "Me"):
        return ""
    digit = unicodedata.decimal(character, None)
    if digit is not None:
        return str(digit)
    folded = unicodedata.normalize("NFKD", character.casefold()).casefold()
    first, rest = folded[0], folded[1:]
    is_accented = unicodedata.combining(rest[:1] or "a")
    if is_accented and not (first in _ORDER and " " < first < "а"):
        return character.lower()  # й is not и, ё may be е; a spacing accent is no space
    return "".join(_EXPANSIONS.get(c, c) for c in folded if not unicodedata.combining(c))


def _is_unknown(weight: str) -> bool:
    return weight > "\xff" and not "\u4e00" <= weight <= "\u9fd5"


def _check(first: str, second: str, is_order: bool) -> None:
    """Raises: MySQLError (1235) where two keys differ in a character that is not done."""
    pair = next((pair for pair in zip(first, second, strict=False) if pair[0] != pair[1]), ())
    unknown = [weight for weight in pair if _is_unknown(weight)]
    may_be_equal = min(pair, default="") > _LAST_LATIN and not any(map(_is_symbol, unknown))
    if unknown and (is_order or may_be_equal):
        raise Mistake.NOT_SUPPORTED(f"a comparison with {unknown[0]}")


def _is_symbol(character: str) -> bool:
    return unicodedata.category(character)[0] in "PSZ"


def install_collation(connection: sqlite3.Connection, deadline: Deadline | None = None) -> None:
    """Replaces NOCASE by MySQL's equality, and adds SORTED, its order.

    A comparison cannot raise: after the deadline, or where it is not done, it ends the statement.
    """
    deadline = deadline or Deadline()

    def comparison(is_order: bool) -> Callable[[str, str], int]:
        def compare(left: str, right: str) -> int:
            if monotonic() > deadline.end_s:
                deadline.miss()
                return 0
            first, second = collation_key(left), collation_key(right)
            if first != second and not (left.isascii() and right.isascii()):
                try:
                    _check(first, second, is_order)
                except MySQLError as error:
                    deadline.refuse(error)
            return (first > second) - (first < second)

        return compare

    connection.create_collation("NOCASE", comparison(is_order=False))
    connection.create_collation("SORTED", comparison(is_order=True))


def fold_text(text: str) -> str:
    """Returns a text for SQLite's LIKE. Raises: MySQLError (1235): it ends at a NUL."""
    if text.isascii() and "\0" not in text:
        return text.lower()
    return "".join(map(_folded, text))


def fold_pattern(pattern: str) -> str:
    """Returns a pattern for SQLite's LIKE, with a backslash as its escape character.

    A wide percent sign, which folds to a wildcard, is none. Raises: MySQLError (1235).
    """
    if not pattern.isascii():
        folded = [(character, _folded(character)) for character in pattern]
        for character, letter in folded:
            if _is_unknown(letter) and not _is_symbol(letter):
                raise Mistake.NOT_SUPPORTED(f"LIKE with {character}")
        pattern = "".join(
            f"\\{to}" if to in _WILDCARDS and character not in _WILDCARDS else to
            for character, to in folded
        )
    num_backslashes = len(pattern) - len(pattern.rstrip("\\"))
    if num_backslashes % 2 or len(pattern.encode()) > _MAX_PATTERN_BYTES or "\0" in pattern:
        raise Mistake.NOT_SUPPORTED(f"LIKE '{pattern:.80}'")
    return pattern


@lru_cache(maxsize=4096)
def _folded(character: str) -> str:
    """Returns a character without case and accents. Raises: MySQLError (1235)."""
    base = _base(character)
    letter = base if len(base) == 1 else character.lower()
    is_done = base and not (_is_unknown(letter) and unicodedata.decomposition(character))
    if not is_done or len(letter) > 1:
        raise Mistake.NOT_SUPPORTED(f"LIKE with {character}")
    return letter
