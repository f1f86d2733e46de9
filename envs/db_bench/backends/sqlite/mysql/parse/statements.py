"""Splitting and parsing of MySQL statements: bounded, and with MySQL's own syntax errors.

Functions reach the rest of the package as plain calls (`exp.Anonymous`) under MySQL's own names.
sqlglot would read `LEFT(a, 2)` as a node of its own, with other arguments in another order for each
function. It knows functions by name alone, so `_disguise_calls` gives their tokens a text that is
no function's, of the type `Disguise`, and `check_nodes` puts the written names back into the tree.
The type tells the two apart: whatever text an agent writes, it is never taken for a disguise.
"""

import logging
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from sys import getsizeof

from sqlglot import Dialect, Token, TokenType, exp
from sqlglot.errors import ParseError, TokenError

from agentpeft.envs.db_bench.backends.sqlite.mysql.byte_cache import ByteCache
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake, MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.nodes import Disguise, check_nodes
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.tokens import (
    MAX_DIGITS,
    check_nesting,
    find_foreign,
    token_types,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.words import (
    DEFINED_OBJECTS,
    MODIFIERS,
    REFUSED_STATEMENTS,
    STATEMENTS,
    words,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import INTERNAL

MAX_CHARS = 100_000
_DIALECT = Dialect.get_or_raise("mysql")
_NUMBER = re.compile(r"\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?", re.IGNORECASE | re.ASCII)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`[^`]*`|[^'\"`]", re.DOTALL)


_CALLABLE = token_types(
    "VAR LEFT RIGHT REPLACE FORMAT DATE TIME TIMESTAMP TIMESTAMPTZ DATETIME YEAR TRUNCATE DATABASE "
    "SCHEMA INSERT MOD CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP LOCALTIME LOCALTIMESTAMP "
    "SESSION_USER CURRENT_USER ISNULL"
)
_BEFORE_NAMES = token_types(
    "VAR NUMBER STRING IDENTIFIER R_PAREN INTO TABLE INDEX KEY REFERENCES ALIAS WITH UNIQUE"
)
_OWN_SYNTAX = words(
    "GROUP_CONCAT CAST CONVERT TRIM SUBSTRING SUBSTR MID POSITION EXTRACT IF VALUE CHECK MATCH"
)
_GLUED = words(
    "COUNT SUM MIN MAX AVG STD STDDEV STDDEV_POP STDDEV_SAMP VARIANCE VAR_POP VAR_SAMP NOW "
    "CURDATE CURTIME DATE_ADD DATE_SUB ADDDATE SUBDATE SYSDATE BIT_AND BIT_OR BIT_XOR"
)
_TRANSACTIONS = frozenset({
    "BEGIN", "BEGIN WORK", "START TRANSACTION", "START TRANSACTION READ WRITE", "COMMIT",
    "COMMIT WORK", "ROLLBACK", "ROLLBACK WORK",
})  # fmt: skip
_REFUSED_TRANSACTIONS = (
    "START TRANSACTION READ ONLY", "START TRANSACTION WITH CONSISTENT", "START SLAVE",
    "START REPLICA", "START GROUP_REPLICATION", "COMMIT AND", "COMMIT WORK AND", "COMMIT NO",
    "COMMIT RELEASE", "ROLLBACK TO", "ROLLBACK WORK TO", "ROLLBACK AND", "ROLLBACK WORK AND",
    "ROLLBACK NO", "ROLLBACK RELEASE",
)  # fmt: skip


class _Reader(threading.local):
    """A thread's tokenizer and parser: making new ones takes as long as a short statement."""

    def __init__(self) -> None:
        self.tokenizer = _DIALECT.tokenizer()
        self.parser = _DIALECT.parser()


_READER = _Reader()

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # an agent's SQL is no reason for log lines


@dataclass(slots=True, unsafe_hash=True)
class Statement:
    """One statement of the agent's text; equal to another if the text is the same."""

    text: str
    _tokens: Sequence[Token] = field(default=(), compare=False)

    @property
    def tokens(self) -> Sequence[Token]:
        """The text's tokens, read when they are asked for."""
        if not self._tokens:
            self._tokens = _tokenize(self.text)
        return self._tokens

    def forget_tokens(self) -> None:
        """Gives the tokens' memory back: caches keep statements for long."""
        self._tokens = ()

    @property
    def words(self) -> list[str]:
        """The first four tokens in upper case."""
        return [token.text.upper() for token in self.tokens[:4]]


_SPLIT: ByteCache[str, tuple[Statement, ...]] = ByteCache(8 * 1024**2)
_STATEMENT_BYTES = 300


def parse_statements(sql: str) -> tuple[Statement, ...]:
    """Splits a text at its semicolons; those within strings and comments do not count.

    Raises: MySQLError where the text is empty, too long, or does not consist of tokens.
    """
    statements = _SPLIT.find(sql)
    if statements is None:
        statements = _split(sql)
        without_tokens = tuple(Statement(statement.text) for statement in statements)
        num_bytes = 2 * getsizeof(sql) + _STATEMENT_BYTES * len(statements)
        _SPLIT.keep(sql, without_tokens, num_bytes)
    return statements


def _split(sql: str) -> tuple[Statement, ...]:
    if len(sql) > MAX_CHARS:
        raise MySQLError(1153, "08S01", "Got a packet bigger than 'max_allowed_packet' bytes")
    tokens = _tokenize(sql)
    if "/*" in sql and any(c[:1] == "!" for token in tokens for c in token.comments):
        raise Mistake.NOT_SUPPORTED("/*! … */")  # a comment that a server executes
    statements = []
    start = 0
    ends = [i for i, token in enumerate(tokens) if token.token_type is TokenType.SEMICOLON]
    for end in [*ends, len(tokens)]:
        chunk = tokens[start:end]
        if chunk:
            statements.append(Statement(sql[chunk[0].start : chunk[-1].end + 1], chunk))
        start = end + 1
    if not statements:
        raise Mistake.EMPTY_QUERY()
    return tuple(statements)


def _tokenize(sql: str) -> list[Token]:
    try:
        return _READER.tokenizer.tokenize(sql)
    except TokenError:
        raise syntax_error(sql, _unreadable_start(sql)) from None


def parse(statement: Statement) -> exp.Expr:
    """Returns the statement's syntax tree, of known nodes alone.

    Raises: MySQLError (1064 for what is no MySQL, 1235 for what is not emulated, 1436).
    """
    _check_first_words(statement)
    _check_texts(statement)
    tokens = list(statement.tokens)
    _disguise_calls(statement, tokens)
    check_nesting(statement.tokens)
    foreign = find_foreign(statement.tokens)
    if foreign is not None:
        raise _error_at(statement, foreign)
    try:
        tree = _READER.parser.parse(tokens, statement.text)[0]
    except ParseError as error:
        raise _to_mysql(error, statement) from None
    except RecursionError:
        raise Mistake.STACK() from None
    if tree is None or isinstance(tree, exp.Command):
        raise _error_at(statement, min(1, len(tokens) - 1))
    check_nodes(tree)
    return tree


def syntax_error(text: str, offset: int) -> MySQLError:
    """Returns error 1064 with the text from `offset` on, as MySQL cites it."""
    return Mistake.SYNTAX(text[offset:][:80], text.count("\n", 0, offset) + 1)


def locate(statement: Statement, error: Misplaced) -> MySQLError:
    """Returns error 1064 at a misplaced word."""
    if error.start is not None:
        return syntax_error(statement.text, error.start - statement.tokens[0].start)
    places = [t.start for t in statement.tokens if t.text.upper() == error.word.upper()]
    offset = places[0] - statement.tokens[0].start if places else len(statement.text)
    return syntax_error(statement.text, offset)


def _error_at(statement: Statement, index: int) -> MySQLError:
    """Returns error 1064 at a token, or at the end of the text for an index past the last."""
    tokens = statement.tokens
    offset = tokens[index].start - tokens[0].start if index < len(tokens) else len(statement.text)
    return syntax_error(statement.text, offset)


def _unreadable_start(sql: str) -> int:
    """Returns where an unclosed quote or comment begins."""
    position = 0
    while match := _QUOTED.match(sql, position):
        position = match.end()
    return position


def _check_first_words(statement: Statement) -> None:
    """Raises: MySQLError (1064, 1235) for a statement that is not emulated."""
    first, *rest = statement.words
    second = rest[0] if rest else ""
    if first.partition(" ")[0] in REFUSED_STATEMENTS:
        raise Mistake.NOT_SUPPORTED(first)
    if first not in STATEMENTS:
        raise syntax_error(statement.text, 0)
    if first in ("CREATE", "DROP") and second in DEFINED_OBJECTS:
        raise Mistake.NOT_SUPPORTED(f"{first} {second}")
    if first in ("START", "BEGIN", "COMMIT", "ROLLBACK"):
        text = " ".join(statement.words)
        if text.startswith(_REFUSED_TRANSACTIONS):
            raise Mistake.NOT_SUPPORTED(text)
        if text not in _TRANSACTIONS or len(statement.tokens) > 4:
            raise _error_at(statement, 2 if text.startswith("START TRANSACTION") else 1)
    if first in ("INSERT", "UPDATE") and second == "OR":
        raise _error_at(statement, 1)
    if first in ("INSERT", "UPDATE", "DELETE") and second in MODIFIERS:
        raise Mistake.NOT_SUPPORTED(f"{first} {second}")


def _check_texts(statement: Statement) -> None:
    """Raises: MySQLError for names beyond U+FFFF (1300), `1e1+2` (1235), long numbers (1690)."""
    is_ascii = statement.text.isascii()
    for token in statement.tokens:
        text = token.text
        if token.token_type is TokenType.NUMBER:
            if len(text) > MAX_DIGITS:
                raise Mistake.NUMBER_RANGE("DECIMAL", text[:MAX_DIGITS])
            if not text.isdigit() and not _NUMBER.fullmatch(text):
                if _NUMBER.match(text) and text[-1].isdigit():
                    raise Mistake.NOT_SUPPORTED(text)
                raise syntax_error(statement.text, token.start - statement.tokens[0].start)
        is_name = not is_ascii and token.token_type is not TokenType.STRING
        if is_name and max(text, default="") > "\uffff":
            raise Mistake.BAD_NAME(
                re.sub(r"\\x(..)", lambda m: f"\\x{m[1].upper()}", str(text.encode())[2:-1])
            )


def _disguise_calls(statement: Statement, tokens: list[Token]) -> None:
    """Disguises the names of function calls in `tokens`.

    Some are names after all, such as `t` of `INSERT db.t (a)`. They lose their disguise too.
    """
    before = tokens[0]
    for index, (token, after) in enumerate(pairwise(statement.tokens)):
        if (
            after.token_type is TokenType.L_PAREN
            and token.token_type in _CALLABLE
            and index
            and before.token_type not in _BEFORE_NAMES
            and token.text.upper() not in _OWN_SYNTAX
        ):
            if token.end + 1 != after.start and token.text.upper() in _GLUED:
                raise _with_space(statement, index)
            text = Disguise(f"{INTERNAL}{token.text}")
            text.written = token.text
            tokens[index] = Token(
                TokenType.VAR, text, token.line, token.col, token.start, token.end
            )
        before = token


def _with_space(statement: Statement, index: int) -> MySQLError:
    """Returns MySQL's error about `COUNT (*)`: its own functions take no space."""
    if statement.tokens[index + 2 :][:1] and statement.tokens[index + 2].text == "*":
        return _error_at(statement, index + 2)
    return Mistake.FUNCTION_SPACE("db", statement.tokens[index].text)


def _to_mysql(error: ParseError, statement: Statement) -> MySQLError:
    details = error.errors[0] if error.errors else {}
    text = statement.text
    line, column = details.get("line"), details.get("col")
    if not isinstance(line, int) or not isinstance(column, int):
        return syntax_error(text, 0)
    is_leftover = str(details.get("description")).startswith("Invalid expression")
    for index, token in enumerate(statement.tokens):
        if (token.line, token.col) != (line, column):
            continue
        if index == len(statement.tokens) - 1 and not is_leftover:
            break
        is_alias = index > 1 and statement.tokens[index - 2].token_type is TokenType.STAR
        return _error_at(statement, index - is_alias)  # `* FORM t`
    return syntax_error(text, len(text))
