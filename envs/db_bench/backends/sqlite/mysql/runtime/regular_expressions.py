r"""MySQL 8's regular expressions on RE2, whose time is linear in the text.

MySQL uses ICU, which backtracks: an agent's `^(a+)+$` would run for years. RE2 knows nearly the
same language. What it spells differently is rewritten, and what it cannot do (lookaround,
back-references, possessive quantifiers, sets within sets) is MySQL's error 3690, never another
engine's work.

Patterns ignore case unless told otherwise, as under MySQL's collation. Different from ICU: `\b`
knows ASCII words alone, `$` takes a line's end before the end of the text into the match, and
intervals go to 1000.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from typing import Any

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake, MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.deadline import Deadline
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.rows import Function

MAX_TEXT_CHARS = 1 << 20
_MAX_PATTERN_CHARS = 1000
_MAX_PATTERN_BYTES = 512 * 1024
"""Of a compiled pattern, its states included. RE2's module keeps 128 of them."""

_ASCII_SETS = {
    "d": "0-9",
    "w": "0-9A-Za-z_",
    "s": r"\t-\r\x20",
    "alpha": "A-Za-z",
    "lower": "a-z",
    "upper": "A-Z",
    "punct": "!-#%-*,-/:;?@\\[-\\]_{}",
}
_UNICODE_SETS = {
    "d": r"\p{Nd}",
    "w": r"\pL\pM\p{Nd}\p{Pc}",
    "s": r"\t-\r\x{85}\pZ",
    "alpha": r"\pL\pM",
    "lower": r"\p{Ll}",
    "upper": r"\p{Lu}",
    "punct": r"\pP",
}
_COMPLEMENTS = {
    "d": r"\P{Nd}",
    "w": r"\pC\p{Nl}\p{No}\p{Pd}\p{Ps}\p{Pe}\p{Pi}\p{Pf}\p{Po}\pS\pZ",
    "s": r"\x00-\x08\x0e-\x1f\x7f-\x{84}\x{86}-\x{9f}\p{Cf}\p{Co}\pL\pM\pN\pP\pS",
}
_SETS = {
    "h": r"\t\p{Zs}",
    "blank": r"\t\p{Zs}",
    "cntrl": r"\p{Cc}",
    "graph": r"\pL\pM\pN\pP\pS",
    "print": r"\pL\pM\pN\pP\pS\p{Zs}",
    "xdigit": "0-9A-Fa-f",
    "v": r"\n-\r\x{85}\x{2028}\x{2029}",
}
_LINE_END = r"(?:\n?\z)"
_ANY_LINE_END = r"(?:\r\n|[\n-\r\x{85}\x{2028}\x{2029}])"
_QUANTIFIER = re.compile(r"[*+?]|\{(\d+)(?:,(\d*))?\}")
_WORD_END = re.compile(r"\[\[:[<>]:\]\]")
_COMMENT = re.compile(r"\(\?#[^)]*\)")
_POSIX = re.compile(r"\[:(\^?)(\w+):\]")
_GROUP = re.compile(r"\(\?(?::|P?<[A-Za-z]\w*>|[imsU]*(?:-[imsU]+)?[:)])")
_CODE = re.compile(r"(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|x([0-9A-Fa-f]{2})|x\{([0-9A-Fa-f]+)\})")
_PROPERTY = re.compile(r"[pP](?:\w|\{\^?\w+\})")

_ERRORS: tuple[tuple[bytes, Mistake], ...] = (
    (b"missing )", Mistake.REGEXP_PARENTHESIS),
    (b"unexpected )", Mistake.REGEXP_PARENTHESIS),
    (b"missing ]", Mistake.REGEXP_BRACKET),
    (b"invalid escape sequence", Mistake.REGEXP_ESCAPE),
    (b"trailing \\", Mistake.REGEXP_ESCAPE),
    (b"invalid character class range", Mistake.REGEXP_RANGE),
    (b"pattern too large", Mistake.REGEXP_TOO_BIG),
    (b"invalid repetition size", Mistake.REGEXP_TOO_BIG),
    (b"invalid perl operator", Mistake.REGEXP_UNIMPLEMENTED),
)


class _Rewriting:
    """One pass over a pattern that writes it as RE2 reads it."""

    def __init__(self, pattern: str, is_ascii: bool) -> None:
        """`is_ascii`: the texts are, so that plain sets serve, which are much smaller programs."""
        self.pattern = pattern
        self.position = 0
        self.sets = _SETS | (_ASCII_SETS if is_ascii else _UNICODE_SETS)
        self.line_end = "$" if re.search(r"\(\?[a-zA-Z]*m", pattern) else _LINE_END

    def run(self) -> str:
        """Returns the pattern for RE2. Raises: MySQLError."""
        written = []
        while self.position < len(self.pattern):
            written.append(self._next())
        return "".join(written)

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.pattern, self.position)
        if match is not None:
            self.position = match.end()
        return match

    def _next(self) -> str:
        if self._take(_WORD_END):
            return r"\b"
        if self.pattern.startswith("(?", self.position):
            return self._group()
        character = self.pattern[self.position]
        if character in "*+?{":
            return self._quantifier()
        self.position += 1
        if character == "[":
            return self._bracket()
        if character == "\\":
            return self._escape()
        return self.line_end if character == "$" else character

    def _group(self) -> str:
        if self._take(_COMMENT):
            return ""
        match = self._take(_GROUP)
        if match is None:
            raise Mistake.REGEXP_UNIMPLEMENTED()
        return match[0]

    def _quantifier(self) -> str:
        match = self._take(_QUANTIFIER)
        if match is None:
            raise Mistake.REGEXP_INTERVAL()
        if match[2] and int(match[2]) < int(match[1]):
            raise Mistake.REGEXP_MAX_LESS_THAN_MIN()
        if self.pattern.startswith("+", self.position):
            raise Mistake.REGEXP_UNIMPLEMENTED()  # a possessive one
        return match[0]

    def _bracket(self) -> str:
        written = ["["]
        if self.pattern.startswith("^", self.position):
            written.append("^")
            self.position += 1
        if self.pattern.startswith("]", self.position):
            written.append(r"\]")
            self.position += 1
        while not self.pattern.startswith("]", self.position):
            if self.position >= len(self.pattern):
                raise Mistake.REGEXP_BRACKET()
            written.append(self._member())
        self.position += 1
        return "".join([*written, "]"])

    def _member(self) -> str:
        posix = self._take(_POSIX)
        if posix is not None:
            return self._posix_set(posix[1], posix[2].lower())
        if self.pattern.startswith(("[", "&&", "--"), self.position):
            raise Mistake.REGEXP_UNIMPLEMENTED()
        character = self.pattern[self.position]
        self.position += 1
        return self._escape(is_in_bracket=True) if character == "\\" else character

    def _posix_set(self, caret: str, name: str) -> str:
        if name in ("alnum", "word", "digit", "space"):
            letter = {"digit": "d", "space": "s"}.get(name, "w")
            if caret:
                return _COMPLEMENTS[letter]
            return self.sets["alpha"] + self.sets["d"] if name == "alnum" else self.sets[letter]
        if name not in self.sets or len(name) == 1:
            raise Mistake.REGEXP_ARGUMENT()
        if caret:
            raise Mistake.REGEXP_UNIMPLEMENTED()
        return self.sets[name]

    def _escape(self, is_in_bracket: bool = False) -> str:
        """Returns what stands for a backslash, which was read, and what follows it."""
        if self.position >= len(self.pattern):
            raise Mistake.REGEXP_ESCAPE()
        if match := self._take(_CODE):
            return rf"\x{{{next(filter(None, match.groups()))}}}"
        if match := self._take(_PROPERTY):
            return rf"\{match[0]}"
        letter = self.pattern[self.position]
        self.position += 1
        if letter in "dwshv":
            return self.sets[letter] if is_in_bracket else f"[{self.sets[letter]}]"
        if letter in "DWSHV" and not (is_in_bracket and letter in "HV"):
            small = letter.lower()
            return _COMPLEMENTS[small] if is_in_bracket else f"[^{self.sets[small]}]"
        if letter in "tnrfa":
            return rf"\{letter}"
        if letter == "e":
            return r"\x1b"
        if is_in_bracket or letter not in "bBAzZRQE":
            return _literal(letter)
        if letter == "Q":
            return self._quotation()
        return {"Z": _LINE_END, "R": _ANY_LINE_END, "E": ""}.get(letter, rf"\{letter}")

    def _quotation(self) -> str:
        r"""Returns what stands for `\Q…\E`: the characters themselves."""
        end = self.pattern.find(r"\E", self.position)
        end = len(self.pattern) if end < 0 else end
        text = self.pattern[self.position : end]
        self.position = end + 2
        return "".join(map(_literal_character, text))


def _literal(letter: str) -> str:
    r"""Returns an escaped character that stands for itself. Raises: MySQLError for `\1`, `\y`."""
    if letter in "123456789kGKXN":
        raise Mistake.REGEXP_UNIMPLEMENTED()
    if letter.isascii() and letter.isalnum():
        raise Mistake.REGEXP_ESCAPE()
    return _literal_character(letter)


def _literal_character(character: str) -> str:
    is_special = character.isascii() and not character.isalnum() and character.isprintable()
    return f"\\{character}" if is_special and character not in " _" else character


@lru_cache(maxsize=64)  # of short texts: at most 50 KiB each
def _rewritten(pattern: str, is_ascii: bool) -> str:
    return _Rewriting(pattern, is_ascii).run()


def _compiled(pattern: str, mode: str, text: str) -> Any:
    """Returns RE2's compiled pattern for a text. Raises: MySQLError."""
    if not pattern:
        raise Mistake.REGEXP_ARGUMENT()
    if len(pattern) > _MAX_PATTERN_CHARS:
        raise Mistake.REGEXP_TOO_BIG()
    try:
        re2 = import_module("re2")  # here, since not every platform has it
    except ImportError:
        raise Mistake.REGEXP_UNINSTALLED() from None
    is_ascii = text.isascii() and pattern.isascii()
    try:
        return re2.compile(_rewritten(_flags(mode) + pattern, is_ascii), _options(re2))
    except re2.error as error:
        raise _to_mysql(error) from None
    except UnicodeEncodeError:
        raise Mistake.REGEXP_ARGUMENT() from None


@lru_cache(maxsize=1)
def _options(re2: Any) -> Any:
    options = re2.Options()
    options.max_mem = _MAX_PATTERN_BYTES
    options.log_errors = False
    return options


def _flags(mode: str) -> str:
    """Returns the flags of a match type such as `cn`. Raises: MySQLError (1210)."""
    if set(mode) - set("cimnu"):
        raise Mistake.WRONG_ARGUMENTS("regexp_like")
    is_case_sensitive = mode.rfind("c") > mode.rfind("i")
    flags = [
        "" if is_case_sensitive else "i",
        "m" if "m" in mode else "",
        "s" if "n" in mode else "",
    ]
    return f"(?{''.join(flags)})" if any(flags) else ""


def _to_mysql(error: Exception) -> MySQLError:
    message = bytes(error.args[0]) if error.args and isinstance(error.args[0], bytes) else b""
    for start, mistake in _ERRORS:
        if message.startswith(start):
            return mistake()
    return Mistake.REGEXP_SYNTAX(1, 1)


def _matches(
    deadline: Deadline,
    text: str | bytes,
    pattern: str | bytes,
    position: float = 1,
    mode: str = "",
) -> Iterator[Any]:
    """Yields the matches from a position (1 is the first) on, within the statement's time.

    RE2 takes at most one step for each character and instruction of the program.
    """
    text, pattern = _as_text(text), _as_text(pattern)
    start = round(position) - 1
    if not 0 <= start <= len(text):
        raise Mistake.REGEXP_BOUNDS()
    compiled = _compiled(pattern, mode, text)
    work = len(text) * compiled.programsize
    deadline.check(work)
    for match in compiled.finditer(text, start):
        yield match
        deadline.check(work)


def _as_text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _nth_match(matches: Iterator[Any], occurrence: float) -> Any | None:
    wanted = max(round(occurrence), 1)
    for number, match in enumerate(matches, start=1):
        if number == wanted:
            return match
    return None


def _like(deadline: Deadline, text: str, pattern: str, mode: str = "") -> int:
    return int(next(_matches(deadline, text, pattern, 1, mode), None) is not None)


def _replace(  # noqa: PLR0913, PLR0917 (MySQL's arguments)
    deadline: Deadline,
    text: str,
    pattern: str,
    new: str,
    position: float = 1,
    occurrence: float = 0,
    mode: str = "",
) -> str | None:
    """Returns the text with its matches replaced; None where it would be too long."""
    text = _as_text(text)
    pieces = []
    end = num_chars = 0
    for number, match in enumerate(_matches(deadline, text, pattern, position, mode), start=1):
        if occurrence > 0 and number != round(occurrence):
            continue
        pieces += [text[end : match.start()], _expanded(new, match)]
        num_chars += len(pieces[-2]) + len(pieces[-1])
        end = match.end()
        if num_chars > MAX_TEXT_CHARS:
            return None
    return "".join([*pieces, text[end:]])


def _expanded(template: str, match: Any) -> str:
    r"""Returns a replacement: `$1` is a group, `\$` a dollar. Raises: MySQLError (3686)."""

    def value(part: re.Match[str]) -> str:
        if part[1] is not None:
            return part[1]
        number = part[2]
        while len(number) > 1 and int(number) > match.re.groups:
            number = number[:-1]
        if int(number) > match.re.groups:
            raise Mistake.REGEXP_BOUNDS()
        return (match[int(number)] or "") + part[2][len(number) :]

    return re.sub(r"\\(.)|\$(\d{1,2})", value, template, flags=re.DOTALL)


def _substr(
    deadline: Deadline,
    text: str,
    pattern: str,
    position: float = 1,
    occurrence: float = 1,
    mode: str = "",
) -> str | None:
    match = _nth_match(_matches(deadline, text, pattern, position, mode), occurrence)
    return match[0] if match else None


def _instr(  # noqa: PLR0913, PLR0917 (MySQL's arguments)
    deadline: Deadline,
    text: str,
    pattern: str,
    position: float = 1,
    occurrence: float = 1,
    is_end: float = 0,
    mode: str = "",
) -> int:
    match = _nth_match(_matches(deadline, text, pattern, position, mode), occurrence)
    if match is None:
        return 0
    return int(match.end() if is_end else match.start()) + 1


REGEXP_FUNCTIONS: dict[str, Function] = {
    "regexp_like": _like,
    "regexp_replace": _replace,
    "regexp_substr": _substr,
    "regexp_instr": _instr,
}
"""Each takes the deadline first, and gives NULL where an argument is NULL."""
