"""Splitting and parsing of MySQL statements: bounded, and with MySQL's own syntax errors.

Functions reach the rest of the package as plain calls (`exp.Anonymous`) under MySQL's own names:
their tokens are marked before sqlglot sees them, so that none is rewritten into another dialect's.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from sqlglot import Dialect, exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from agentpeft.envs.db_bench.mysql.errors import Misplaced, Mistake, MySQLError

MAX_CHARS = 100_000
MAX_NESTING = 60
MAX_CHAIN = 60
"""Most operators in a row, AND and OR apart (they are not nested when they are translated)."""
MAX_DIGITS = 81
MARK = "#"
"""Stands before the name of a function call in the parsed tree."""

_DIALECT = Dialect.get_or_raise("mysql")
_REPLACE = re.compile(r"^(\s*)REPLACE(?=\s)", re.IGNORECASE)
_FILE = re.compile(r"\bINTO\s+(OUTFILE|DUMPFILE)\b", re.IGNORECASE)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`[^`]*`|[^'\"`]", re.DOTALL)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _token_types(names: str) -> frozenset[TokenType]:
    return frozenset(TokenType[name] for name in names.split())


_OPENING = _token_types("L_PAREN CASE")
_CLOSING = _token_types("R_PAREN END")
_SEPARATING = _token_types("COMMA AND OR SELECT WHEN")
_REPEATING = _token_types("UNION JOIN EXCEPT INTERSECT")
_CHAINING = _token_types(
    "PLUS DASH STAR SLASH MOD DIV NOT TILDE EQ NEQ NULLSAFE_EQ LT GT LTE GTE AMP PIPE CARET STRING"
)
_FOREIGN = _token_types(
    "DCOLON L_BRACKET L_BRACE PLACEHOLDER COLON ILIKE QUALIFY RETURNING TABLE_SAMPLE FETCH PIVOT "
    "UNPIVOT"
)
_BEFORE_TABLES = _token_types("FROM JOIN UPDATE INTO TABLE")
_AFTER_NO_COMMA = _token_types("STAR FROM WHERE R_PAREN COMMA GROUP_BY ORDER_BY LIMIT")
_CALLABLE = _token_types(
    "VAR LEFT RIGHT REPLACE FORMAT DATE TIME TIMESTAMP TIMESTAMPTZ DATETIME YEAR TRUNCATE DATABASE "
    "SCHEMA INSERT MOD CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP LOCALTIME LOCALTIMESTAMP "
    "SESSION_USER CURRENT_USER"
)
_BEFORE_NAMES = _token_types(
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
_PRIVATE_OBJECTS = {
    **dict.fromkeys(("USER", "ROLE"), "CREATE USER"),
    **dict.fromkeys(("FUNCTION", "PROCEDURE"), "CREATE ROUTINE"),
    **dict.fromkeys(("TRIGGER", "EVENT", "SERVER", "TABLESPACE"), "SUPER"),
}

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # an agent's SQL is no reason for log lines


@dataclass(frozen=True)
class Statement:
    """One statement of the agent's text; equal to another if the text is the same."""

    text: str
    tokens: tuple[Token, ...] = field(compare=False, repr=False)

    @property
    def words(self) -> list[str]:
        """The first four tokens in upper case."""
        return [token.text.upper() for token in self.tokens[:4]]

    @property
    def is_replace(self) -> bool:
        """Whether this is a REPLACE (its tokens say INSERT)."""
        return self.text[:7].upper() == "REPLACE"


@lru_cache(maxsize=2048)
def parse_statements(sql: str) -> tuple[Statement, ...]:
    """Splits a text at its semicolons; those within strings and comments do not count.

    Raises: MySQLError where the text is empty, too long, or does not consist of tokens.
    """
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
            statements.append(Statement(text, tuple(chunk)))
        start = end + 1
    if not statements:
        raise Mistake.EMPTY_QUERY()
    return tuple(statements)


def _tokenize(sql: str) -> list[Token]:
    """Returns the tokens; REPLACE at the beginning is read as the INSERT that it is."""
    try:
        return _DIALECT.tokenize(_REPLACE.sub(r"\1INSERT ", sql))
    except TokenError:
        raise syntax_error(sql, _unreadable_start(sql)) from None


def parse(statement: Statement) -> exp.Expr:
    """Returns the statement's syntax tree. Raises: MySQLError (1064, 1227, 1436)."""
    _check_first_words(statement)
    tokens = _marked(statement)
    _check_nesting(statement)
    _check_grammar(statement)
    try:
        tree = _DIALECT.parser().parse(tokens, statement.text)[0]
    except ParseError as error:
        raise _to_mysql(error, statement) from None
    except RecursionError:
        raise Mistake.STACK() from None
    if tree is None or isinstance(tree, exp.Command):
        raise syntax_error(statement.text, _offset(statement, min(1, len(tokens) - 1)))
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


def _offset(statement: Statement, index: int) -> int:
    if index >= len(statement.tokens):
        return len(statement.text)
    return statement.tokens[index].start - statement.tokens[0].start


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
    if first not in _STATEMENTS:
        raise syntax_error(statement.text, 0)
    second = rest[0] if rest else ""
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


def _marked(statement: Statement) -> list[Token]:
    """Returns the tokens with the names of function calls marked."""
    tokens = list(statement.tokens)
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
            text = MARK + token.text
            tokens[index] = Token(
                TokenType.VAR, text, token.line, token.col, token.start, token.end
            )
        before = token
    return tokens


def _with_space(statement: Statement, index: int) -> MySQLError:
    """Returns MySQL's error about `COUNT (*)`: its own functions take no space."""
    if statement.tokens[index + 2 :][:1] and statement.tokens[index + 2].text == "*":
        return syntax_error(statement.text, _offset(statement, index + 2))
    return Mistake.FUNCTION_SPACE("db", statement.tokens[index].text)


def _check_nesting(statement: Statement) -> None:
    """Raises: MySQLError (1436) where parentheses, CASE or operators nest too deeply."""
    chains = [0]
    num_repeated = 0
    for token in statement.tokens:
        kind = token.token_type
        if kind is TokenType.NUMBER and len(token.text) > MAX_DIGITS:
            raise Mistake.NUMBER_RANGE("DECIMAL", token.text[:MAX_DIGITS])
        if kind in _CHAINING:
            chains[-1] += 1
        elif kind in _OPENING:
            chains.append(0)
        elif kind in _SEPARATING:
            chains[-1] = 0
        elif kind in _CLOSING and len(chains) > 1:
            chains.pop()
        elif kind in _REPEATING:
            num_repeated += 1
        else:
            continue
        if chains[-1] > MAX_CHAIN or len(chains) > MAX_NESTING or num_repeated > MAX_NESTING:
            raise Mistake.STACK()


def _is_table(tokens: Sequence[Token], index: int) -> bool:
    """Returns whether a token stands where a table's name does (not so in TRIM(x FROM 'y'))."""
    is_last_argument = tokens[index + 1 : index + 2] and tokens[index + 1].text == ")"
    return tokens[index - 1].token_type in _BEFORE_TABLES and not is_last_argument


def _check_grammar(statement: Statement) -> None:
    """Raises: MySQLError (1064) for what sqlglot reads and MySQL does not."""
    tokens = statement.tokens
    for index, (before, token) in enumerate(pairwise(tokens)):
        kind = token.token_type
        if (
            kind in _FOREIGN
            or (kind is TokenType.STRING and _is_table(tokens, index + 1))
            or (before.token_type is TokenType.COMMA and kind in _AFTER_NO_COMMA)
            or (before.token_type is TokenType.SELECT and kind is TokenType.FROM)
            or (kind is TokenType.EQ and token.text == "==")
        ):
            raise syntax_error(statement.text, _offset(statement, index + 1))


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
        return syntax_error(text, _offset(statement, index - is_alias))  # `* FORM t`
    return syntax_error(text, len(text))
