"""Splitting and parsing of MySQL statements: bounded, and with MySQL's own syntax errors.

Functions reach the rest of the package as plain calls (`exp.Anonymous`) under MySQL's own names.
sqlglot would read `LEFT(a, 2)` as a node of its own, with other arguments in another order for each
function. It knows functions by name alone, so `_disguise_calls` gives their tokens a text that is
no function's, of the type `_Disguise`, and `_undisguise` puts the written names back into the tree.
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
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.grammar import (
    check_nesting,
    find_foreign,
    token_types,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import INTERNAL

MAX_CHARS = 100_000
_DIALECT = Dialect.get_or_raise("mysql")
_REPLACE = re.compile(r"^(\s*)REPLACE(?=\s)", re.IGNORECASE)
_FILE = re.compile(r"\bINTO\s+(OUTFILE|DUMPFILE)\b", re.IGNORECASE)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`[^`]*`|[^'\"`]", re.DOTALL)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CALLABLE = token_types(
    "VAR LEFT RIGHT REPLACE FORMAT DATE TIME TIMESTAMP TIMESTAMPTZ DATETIME YEAR TRUNCATE DATABASE "
    "SCHEMA INSERT MOD CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP LOCALTIME LOCALTIMESTAMP "
    "SESSION_USER CURRENT_USER"
)
_BEFORE_NAMES = token_types(
    "VAR NUMBER STRING IDENTIFIER R_PAREN INTO TABLE INDEX KEY REFERENCES ALIAS WITH UNIQUE"
)
_OWN_SYNTAX = _words(
    "GROUP_CONCAT CAST CONVERT TRIM SUBSTRING SUBSTR MID POSITION EXTRACT IF VALUE CHECK MATCH"
)
_GLUED = _words(
    "COUNT SUM MIN MAX AVG STD STDDEV STDDEV_POP STDDEV_SAMP VARIANCE VAR_POP VAR_SAMP NOW CURDATE "
    "CURTIME DATE_ADD DATE_SUB ADDDATE SUBDATE SYSDATE BIT_AND BIT_OR BIT_XOR"
)
_STATEMENTS = _words(
    "SELECT WITH ( INSERT REPLACE UPDATE DELETE CREATE ALTER DROP TRUNCATE SHOW DESCRIBE DESC "
    "EXPLAIN SET USE BEGIN START COMMIT ROLLBACK VALUES TABLE"
)
_PRIVILEGES = {
    **dict.fromkeys(("GRANT", "REVOKE"), "GRANT OPTION"),
    **dict.fromkeys(("SHUTDOWN", "RESTART"), "SHUTDOWN"),
    **dict.fromkeys(("FLUSH", "RESET"), "RELOAD"),
    **dict.fromkeys(("INSTALL", "UNINSTALL", "CHANGE", "PURGE"), "SUPER"),
    "KILL": "SUPER or CONNECTION_ADMIN",
    "LOAD": "FILE",
    "LOCK": "LOCK TABLES",
}
_REPLICATION = ("SLAVE", "REPLICA", "GROUP_REPLICATION", "ALL")
_PRIVATE_OBJECTS = {
    **dict.fromkeys(("USER", "ROLE"), "CREATE USER"),
    **dict.fromkeys(("FUNCTION", "PROCEDURE"), "CREATE ROUTINE"),
    **dict.fromkeys(("TRIGGER", "EVENT", "SERVER", "TABLESPACE"), "SUPER"),
}


class _Disguise(str):
    """The text of a token while it must not be a name that sqlglot knows."""

    __slots__ = ("written",)
    written: str


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

    @property
    def is_replace(self) -> bool:
        """Whether this is a REPLACE (its tokens say INSERT)."""
        return self.text[:7].upper() == "REPLACE"


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
    statements = []
    start = 0
    ends = [i for i, token in enumerate(tokens) if token.token_type is TokenType.SEMICOLON]
    for end in [*ends, len(tokens)]:
        chunk = tokens[start:end]
        if chunk:
            text = sql[chunk[0].start : chunk[-1].end + 1]
            if chunk[0].text.upper() == "REPLACE":
                chunk = _tokenize(text)
            statements.append(Statement(text, chunk))
        start = end + 1
    if not statements:
        raise Mistake.EMPTY_QUERY()
    return tuple(statements)


def _tokenize(sql: str) -> list[Token]:
    """Returns the tokens; REPLACE at the beginning is read as the INSERT that it is."""
    try:
        is_replace = _REPLACE.match(sql) is not None  # `sub` would look for it in all of the text
        read = _REPLACE.sub(r"\1INSERT ", sql) if is_replace else sql
        return _READER.tokenizer.tokenize(read)
    except TokenError:
        raise syntax_error(sql, _unreadable_start(sql)) from None


def parse(statement: Statement) -> exp.Expr:
    """Returns the statement's syntax tree. Raises: MySQLError (1064, 1227, 1436)."""
    _check_first_words(statement)
    _check_names(statement)
    tokens = list(statement.tokens)
    has_calls = _disguise_calls(statement, tokens)
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
    if has_calls:
        _undisguise(tree)
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
    first, *rest = statement.words
    if "FILE" in statement.text.upper() and _FILE.search(statement.text):
        raise Mistake.PRIVILEGE("FILE")
    if first in _PRIVILEGES:
        raise Mistake.PRIVILEGE(_PRIVILEGES[first])
    second = rest[0] if rest else ""
    if first in ("START", "STOP") and second in _REPLICATION:
        raise Mistake.PRIVILEGE("SUPER or REPLICATION_SLAVE_ADMIN")
    if first not in _STATEMENTS:
        raise syntax_error(statement.text, 0)
    _check_transaction(statement)
    if first == "SET" and second in ("GLOBAL", "PERSIST", "PERSIST_ONLY"):
        raise Mistake.PRIVILEGE("SUPER or SYSTEM_VARIABLES_ADMIN")
    if first == "SET" and second in ("PASSWORD", "ROLE", "DEFAULT"):
        raise Mistake.PRIVILEGE("CREATE USER")
    if first not in ("CREATE", "ALTER", "DROP", "RENAME"):
        return
    if second in _PRIVATE_OBJECTS:
        raise Mistake.PRIVILEGE(_PRIVATE_OBJECTS[second])
    if second in ("DATABASE", "SCHEMA"):
        raise Mistake.DATABASE_DENIED(rest[-1].lower())


def _check_transaction(statement: Statement) -> None:
    """Raises: MySQLError (1064) for what sqlglot takes for the beginning of a transaction."""
    first, *rest = statement.words
    if first == "START" and rest[:1] == ["TRANSACTION"]:
        words, index = rest[1:], 2
        is_right = not words or words[0] == "WITH" or words in (["READ", "ONLY"], ["READ", "WRITE"])
    else:
        index = 1
        is_right = first not in ("START", "BEGIN") or (first == "BEGIN" and rest in ([], ["WORK"]))
    if not is_right:
        raise _error_at(statement, index)


def _check_names(statement: Statement) -> None:
    """Raises: MySQLError (1300) for a name with a character above U+FFFF."""
    if statement.text.isascii():
        return
    for token in statement.tokens:
        if max(token.text, default="") > "\uffff" and token.token_type is not TokenType.STRING:
            raise Mistake.BAD_NAME(
                re.sub(r"\\x(..)", lambda m: f"\\x{m[1].upper()}", str(token.text.encode())[2:-1])
            )


def _disguise_calls(statement: Statement, tokens: list[Token]) -> bool:
    """Disguises the names of function calls in `tokens`; returns whether there are any.

    Some are names after all, such as `t` of `INSERT db.t (a)`. They lose their disguise too.
    """
    has_calls = False
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
            text = _Disguise(f"{INTERNAL}{token.text}")
            text.written = token.text
            has_calls = True
            tokens[index] = Token(
                TokenType.VAR, text, token.line, token.col, token.start, token.end
            )
        before = token
    return has_calls


def _undisguise(tree: exp.Expr) -> None:
    for node in tree.walk():
        text = node.args.get("this")
        if isinstance(text, _Disguise):
            node.set("this", text.written)


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
