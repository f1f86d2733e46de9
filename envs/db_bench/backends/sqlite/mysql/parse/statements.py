"""The agent's text as statements of tokens, as MySQL's scanner reads it."""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from agentpeft.envs.db_bench.backends.sqlite.mysql.byte_cache import ByteCache
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake, MySQLError

MAX_CHARS = 100_000
_TOKEN = re.compile(
    r"""(?P<space>[ \t-\r]+|--(?=[\x00-\x20])[^\n]*|\#[^\n]*|/\*(?!!).*?\*/)
    |(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<name>`(?:[^`]|``)*`)
    |(?P<foreign>(?:[xXbBnN]|_(?:utf|latin|cp|binary|ascii|ucs)\w*\s*)(?:'[^']*'|"[^"]*")
        |0x[0-9a-fA-F]+\b|0b[01]+\b)
    |(?P<number>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?
        |[0-9]+(?:[eE][+-]?[0-9]+)?(?![0-9A-Za-z_$\x80-\U0010ffff]))
    |(?P<word>[0-9A-Za-z_$\x80-\U0010ffff]+)
    |(?P<symbol><=>|<>|!=|<=|>=|<<|>>|\|\||&&|:=|->>?|.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)|(['\"])\2", re.DOTALL)
_ESCAPES = {
    "0": "\0",
    "b": "\b",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "Z": "\x1a",
    "%": r"\%",
    "_": r"\_",
}


_CHAR_BYTES = 100
"""Most that a statement takes for each character, as tokens."""


class Token(NamedTuple):
    """A token. `kind`: a group of `_TOKEN`, or "end".

    `text`: what a text or a name means. `upper`: a word in upper case or a symbol, else empty.
    """

    kind: str
    text: str
    upper: str
    start: int
    end: int


@dataclass(frozen=True)
class Statement:
    """One statement of the agent's text, equal to another if the text is the same."""

    text: str
    tokens: tuple[Token, ...] = field(compare=False)
    """Their places are those in the whole text; the last one is an "end"."""

    def syntax_error(self, start: int) -> MySQLError:
        """Returns error 1064 about the text from a token's start on, as MySQL cites it."""
        offset = start - self.tokens[0].start
        near = self.text[offset:][:80]
        return Mistake.SYNTAX(near, self.text.count("\n", 0, offset) + 1)


_SPLIT: ByteCache[str, tuple[Statement, ...]] = ByteCache(8 * 1024**2)


def parse_statements(sql: str) -> tuple[Statement, ...]:
    """Splits a text at its semicolons; those within strings and comments do not count.

    Raises: MySQLError where the text is empty, too long, or does not consist of tokens.
    """
    kept = _SPLIT.find(sql)
    if kept is not None:
        return kept
    if len(sql) > MAX_CHARS:
        raise MySQLError(1153, "08S01", "Got a packet bigger than 'max_allowed_packet' bytes")
    statements = []
    tokens: list[Token] = []
    empty: int | None = None  # where nothing stands before a semicolon; at the end it may
    for match in _TOKEN.finditer(f"{sql}\n;"):
        kind = match.lastgroup or ""
        if kind == "space":
            continue
        token = _read(kind, match)
        if token.upper != ";":
            if empty is not None:
                raise Mistake.SYNTAX(sql[empty:][:80], sql.count("\n", 0, empty) + 1)
            tokens.append(token)
        elif not tokens:
            empty = token.start if empty is None else empty
        else:
            text = sql[tokens[0].start : tokens[-1].end]
            end = Token("end", "", "", tokens[-1].end, tokens[-1].end)
            statements.append(Statement(text, (*tokens, end)))
            tokens = []
    if not statements:
        raise Mistake.EMPTY_QUERY()
    _SPLIT.keep(sql, tuple(statements), _CHAR_BYTES * len(sql))
    return tuple(statements)


def _read(kind: str, match: re.Match[str]) -> Token:
    """Returns a token. Raises: MySQLError for a quote or a comment that is not closed."""
    text, start = match[0], match.start()
    upper = ""
    if kind == "word":
        upper = text.upper()
    elif kind == "symbol":
        upper = text
        if text in "'\"`" or match.string.startswith("/*", start):
            if match.string.startswith("/*!", start):
                raise Mistake.NOT_SUPPORTED("/*! … */")  # a comment that a server executes
            line = match.string.count("\n", 0, start) + 1
            raise Mistake.SYNTAX(match.string[start:-2][:80], line)
    elif kind == "text":
        text = _decode(text)
    elif kind == "name":
        text = text[1:-1].replace("``", "`")
    return Token(kind, text, upper, start, match.end())


def _decode(written: str) -> str:
    r"""Returns what a text in quotes means; `\%` and `\_` stay, for LIKE."""
    quote, text = written[0], written[1:-1]

    def change(match: re.Match[str]) -> str:
        if match[1] is None:
            return quote if match[2] == quote else match[0]
        return _ESCAPES.get(match[1], match[1])

    return _ESCAPED.sub(change, text) if "\\" in text or quote in text else text
