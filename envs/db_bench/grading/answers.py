"""Reading an agent's final answer as rows, without ever evaluating it."""

import re
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TypeAlias

from agentpeft.envs.db_bench.backends.protocol import Row, Value

Literal: TypeAlias = "Value | list[Literal]"

_MAX_DEPTH = 4
_CLOSING = {"[": "]", "(": ")"}
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
      | (?P<call>(?:Decimal|(?:datetime\.)?(?:date|datetime|timedelta))\()
      | (?P<punctuation>[\[\](),])
      | (?P<bare>[^\s\[\](),'"][^\[\](),\r\n]*)
    )""",
    re.VERBOSE,
)
_LINE_END = re.compile(r"\r\n|\n|\r")
_CHARACTER = re.compile(r"\S")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<decimals>\.[0-9]+)?\Z")
_ESCAPE = re.compile(
    r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}|.)|''|\"\"",
    re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}


class _UnreadableError(ValueError):
    """The text is no list of values."""


def parse_answer(text: str, num_columns: int) -> tuple[Row, ...]:
    """Returns the rows that an answer states, for a question with `num_columns` columns.

    Read are Python and JSON lists of rows as the environment prints them (`[('a', 1)]`,
    `[["a", 1]]`, `Decimal('1.50')`, `datetime.date(2024, 1, 31)`, `None`, `null`), flat lists, one
    row without brackets, and plain text. A flat list is one row, or one column if the question has
    one. Text that is none of these is a single value.

    >>> parse_answer("[('a', 1), ('b', 2)]", 2)
    (('a', 1), ('b', 2))
    >>> parse_answer("March 19, 1998", 1)
    (('March 19, 1998',),)
    """
    try:
        literal = _Reader(text).read_all()
    except _UnreadableError:
        return _plain_text(text)
    if num_columns == 1 and text[:1] not in "[('\"" and len(literal) > 1:
        return _plain_text(text)
    return _to_rows(literal, num_columns)


def _plain_text(text: str) -> tuple[Row, ...]:
    """Returns the first line as one value, without a pair of quotes around it."""
    line = _LINE_END.split(text, 1)[0].strip()
    is_quoted = len(line) > 1 and line[0] == line[-1] and line[0] in "'\""
    return ((line[1:-1] if is_quoted else line,),)


def _to_rows(literal: list[Literal], num_columns: int) -> tuple[Row, ...]:
    """Returns rows from the comma-separated values of the answer's text."""
    if len(literal) == 1 and isinstance(literal[0], list):
        literal = literal[0]
    if any(isinstance(item, list) for item in literal):
        return tuple(_to_row(item) for item in literal)
    if num_columns == 1:
        return tuple(_to_row(item) for item in literal)
    return (_to_row(literal),) if literal else ()


def _to_row(item: Literal) -> Row:
    if not isinstance(item, list):
        return (item,)
    return tuple(str(value) if isinstance(value, list) else value for value in item)


class _Reader:
    """A recursive-descent reader of one answer, to `_MAX_DEPTH` brackets."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read_all(self) -> list[Literal]:
        """Returns the values up to the end of the line on which the last one closes.

        Rows such as `('a', 1)` may stand on a line each.
        """
        values: list[Literal] = []
        line_end = below = -1
        while _CHARACTER.search(self._text, self._at):
            values.append(self._value(0))
            if self._at > line_end:  # looked for once a line: there may be thousands of values
                end = _LINE_END.search(self._text, self._at)
                line_end, below = end.span() if end else (len(self._text),) * 2
            following = _CHARACTER.search(self._text, self._at, line_end)
            if following is None:
                following = _CHARACTER.search(self._text, below)
                if self._text[0] != "(" or following is None or following[0] != "(":
                    break
            elif following[0] != ",":
                raise _UnreadableError
            else:
                self._at = following.end()
        return values

    def _token(self) -> tuple[str, str]:
        match = _TOKEN.match(self._text, self._at)
        if match is None or match.lastgroup is None:
            raise _UnreadableError
        self._at = match.end()
        return match.lastgroup, match.group(match.lastgroup)

    def _value(self, depth: int) -> Literal:
        kind, token = self._token()
        if kind == "string":
            return _join_surrogates(_ESCAPE.sub(_unescape, token[1:-1]))
        if kind == "bare":
            return _bare_value(token.strip())
        if kind == "call":
            return _call_value(token, self._items(")", depth))
        if token in _CLOSING:
            return self._items(_CLOSING[token], depth)
        raise _UnreadableError

    def _items(self, close: str, depth: int) -> list[Literal]:
        if depth >= _MAX_DEPTH:
            raise _UnreadableError
        items: list[Literal] = []
        while True:
            start = self._at
            if self._token() == ("punctuation", close):
                return items
            self._at = start
            items.append(self._value(depth + 1))
            kind, token = self._token()
            if kind != "punctuation" or token not in (",", close):
                raise _UnreadableError
            if token == close:
                return items


def _join_surrogates(text: str) -> str:
    r"""Returns a text with the halves of JSON's `\ud83d\ude00` joined."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unescape(match: re.Match[str]) -> str:
    escaped = match.group(1)
    if escaped is None:
        return match.group()[0]
    if len(escaped) > 1:
        return chr(int(escaped[1:], 16))
    return _ESCAPES.get(escaped, escaped)


def _bare_value(token: str) -> Value:
    if token in ("None", "NULL", "null"):
        return None
    number = _NUMBER.match(token) if len(token) <= 100 else None
    if number is None:  # `1e2` and `007` stay as written: whether they are numbers, the gold tells
        return token
    return Decimal(token) if number["decimals"] else int(token)


def _call_value(name: str, arguments: list[Literal]) -> Value:
    """Returns the value of `Decimal('1.5')`, `datetime.date(2024, 1, 31)` and the like."""
    if name == "Decimal(":
        if len(arguments) == 1 and isinstance(arguments[0], str | int | Decimal):
            return arguments[0]
        raise _UnreadableError
    kind = name.rstrip("(").rpartition(".")[2]
    try:
        if kind == "timedelta":
            return timedelta(**_keywords(arguments))
        numbers = [int(text) for text in map(str, arguments) if text.isascii() and text.isdigit()]
        if len(numbers) < len(arguments):
            raise _UnreadableError
        return date(*numbers) if kind == "date" else datetime(*numbers)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise _UnreadableError from None


def _keywords(arguments: list[Literal]) -> dict[str, float]:
    """Returns the arguments of `timedelta(days=1, seconds=3600)`, which are read as bare text."""
    keywords = {}
    for argument in arguments:
        name, _, number = str(argument).partition("=")
        if name not in ("days", "seconds", "microseconds"):
            raise _UnreadableError
        keywords[name] = float(number)
    return keywords
