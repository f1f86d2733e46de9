"""MySQL's text functions in Python: linear in time, and bounded in output."""

import hashlib
import zlib

from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.collation import (
    collation_key,
    compare_texts,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.rows import Function, SQLiteValue

MAX_TEXT_CHARS = 1 << 20


def _bounded(text: str) -> str | None:
    return text if len(text) <= MAX_TEXT_CHARS else None


def _substring(text: str, start: float, length: float = MAX_TEXT_CHARS) -> str:
    first, count = round(start), round(length)
    if first == 0 or count <= 0 or abs(first) > len(text):
        return ""
    first = first - 1 if first > 0 else len(text) + first
    return text[first : first + count]


def _substring_index(text: str, delimiter: str, count: int) -> str:
    if not delimiter or not count:
        return ""
    parts = text.split(delimiter)
    return delimiter.join(parts[:count] if count > 0 else parts[count:])


def _padding(text: str, length: float, filling: str) -> str | None:
    """Returns what is missing to `length`; None where it cannot be had."""
    missing = round(length) - len(text)
    if length < 0 or length > MAX_TEXT_CHARS or (missing > 0 and not filling):
        return None
    return (filling * (missing // len(filling) + 1))[:missing] if missing > 0 else ""


def _lpad(text: str, length: float, filling: str) -> str | None:
    padding = _padding(text, length, filling)
    return None if padding is None else padding + text[: round(length)]


def _rpad(text: str, length: float, filling: str) -> str | None:
    padding = _padding(text, length, filling)
    return None if padding is None else text[: round(length)] + padding


def _insert(text: str, start: int, length: int, new: str) -> str | None:
    if not 1 <= start <= len(text):
        return text
    end = start - 1 + length if length >= 0 else len(text)
    return _bounded(text[: start - 1] + new + text[end:])


def _locate(part: str, text: str, start: int = 1) -> int:
    return text.casefold().find(part.casefold(), start - 1) + 1 if start >= 1 else 0


def _repeat(text: str, count: float) -> str | None:
    return text * round(count) if len(text) * count <= MAX_TEXT_CHARS else None


def _trim(text: str, removed: str, position: str) -> str:
    start, end = 0, len(text)
    if removed and position != "TRAILING":
        while text.startswith(removed, start):
            start += len(removed)
    if removed and position != "LEADING":
        while text.endswith(removed, start, end):
            end -= len(removed)
    return text[start:end]


def _replace(text: str, old: str, new: str) -> str | None:
    if not old:
        return text
    num_chars = len(text) + text.count(old) * (len(new) - len(old))
    return text.replace(old, new) if num_chars <= MAX_TEXT_CHARS else None


def _concat_ws(separator: str | None, *parts: str | None) -> str | None:
    if separator is None:
        return None
    return _bounded(separator.join(part for part in parts if part is not None))


def _find_in_set(text: str, members: str) -> int:
    keys = [collation_key(member) for member in members.split(",")] if members else []
    key = collation_key(text)
    return keys.index(key) + 1 if key in keys else 0


def _elt(index: int | None, *texts: str) -> str | None:
    return texts[int(index) - 1] if index and 1 <= index <= len(texts) else None


def _hex(value: SQLiteValue) -> str:
    if isinstance(value, int | float):
        return f"{round(value) & (1 << 64) - 1:X}"
    return (value.encode() if isinstance(value, str) else value or b"").hex().upper()


def _sha2(text: str, bits: int) -> str | None:
    names = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}
    return hashlib.new(names[bits], text.encode()).hexdigest() if bits in names else None


TEXT_FUNCTIONS: dict[str, Function] = {
    "upper": lambda text: text.upper(),
    "lower": lambda text: text.lower(),
    "concat": lambda *parts: _bounded("".join(parts)),
    "octet_length": lambda text: len(text.encode()),
    "left": lambda text, count: text[: max(round(count), 0)],
    "right": lambda text, count: text[-round(count) :] if count >= 0.5 else "",
    "substring": _substring,
    "substring_index": _substring_index,
    "lpad": _lpad,
    "rpad": _rpad,
    "reverse": lambda text: text[::-1],
    "repeat": _repeat,
    "replace": _replace,
    "space": lambda count: _repeat(" ", count),
    "locate": _locate,
    "insert": _insert,
    "trim": _trim,
    "ascii": lambda text: text.encode()[0] if text else 0,
    "hex": _hex,
    "md5": lambda text: hashlib.md5(text.encode()).hexdigest(),  # noqa: S324
    "sha1": lambda text: hashlib.sha1(text.encode()).hexdigest(),  # noqa: S324
    "sha2": _sha2,
    "crc32": lambda text: zlib.crc32(text.encode()),
    "find_in_set": _find_in_set,
    "strcmp": compare_texts,
}
"""Each gives NULL where an argument is NULL."""
NULLABLE_TEXT_FUNCTIONS: dict[str, Function] = {"concat_ws": _concat_ws, "elt": _elt}
