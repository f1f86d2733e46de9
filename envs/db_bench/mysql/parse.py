"""Splitting and parsing of MySQL statements: bounded, and with MySQL's own syntax errors.

Functions reach the rest of the package as plain calls (`exp.Anonymous`) under MySQL's own names:
their tokens are marked before sqlglot sees them, so that none is rewritten into another dialect's.
"""

import logging
import re
from dataclasses import dataclass, field
from functools import lru_cache

from sqlglot import Dialect, exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokens import Token, TokenType

from agentpeft.envs.db_bench.mysql.errors import Mistake, MySQLError

MAX_CHARS = 100_000
MAX_NESTING = 60
MAX_CHAIN = 60
"""Most operators in a row, AND and OR apart (they are not nested when they are translated)."""
MARK = "#"
"""Stands before the name of a function call in the parsed tree."""

_DIALECT = Dialect.get_or_raise("mysql")
_REPLACE = re.compile(r"^(\s*)REPLACE(?=\s)", re.IGNORECASE)
_FILE = re.compile(r"\bINTO\s+(OUTFILE|DUMPFILE)\b", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FUNCTION_KEYWORDS = frozenset(
    [
        "LEFT",
        "RIGHT",
        "REPLACE",
        "FORMAT",
        "DATE",
        "TIME",
        "TIMESTAMP",
        "DATETIME",
        "YEAR",
        "TRUNCATE",
        "DATABASE",
        "SCHEMA",
        "INSERT",
        "USER",
        "RANK",
        "ROW_NUMBER",
        "DENSE_RANK",
        "FIRST_VALUE",
        "LAST_VALUE",
        "MOD",
        "REPEAT",
        "CURRENT_DATE",
        "CURRENT_TIME",
        "CURRENT_TIMESTAMP",
        "LOCALTIME",
        "LOCALTIMESTAMP",
        "SESSION_USER",
        "CURRENT_USER",
        "UTC_DATE",
        "UTC_TIME",
        "UTC_TIMESTAMP",
        "LOG",
        "CHAR_LENGTH",
        "DEFAULT",
    ]
)
_SPECIAL_SYNTAX = frozenset(
    [
        "GROUP_CONCAT",
        "CAST",
        "CONVERT",
        "TRIM",
        "SUBSTRING",
        "SUBSTR",
        "MID",
        "POSITION",
        "EXTRACT",
        "CHAR",
        "VALUES",
        "ROW",
        "IN",
        "ANY",
        "SOME",
        "ALL",
        "EXISTS",
        "AND",
        "OR",
        "NOT",
        "XOR",
        "DIV",
        "AS",
        "ON",
        "USING",
        "OVER",
        "KEY",
        "INDEX",
        "UNIQUE",
        "PRIMARY",
        "WEIGHT_STRING",
        "MATCH",
        "AGAINST",
        "JSON_OBJECT",
        "INTERVAL",
        "BY",
        "WHEN",
        "THEN",
        "ELSE",
        "CASE",
        "CHECK",
        "PARTITION",
        "FOREIGN",
        "ROLLUP",
        "IF",
        "TABLE",
        "LIKE",
        "REGEXP",
        "RLIKE",
        "BINARY",
        "WITH",
        "GROUPING",
        "DISTINCT",
    ]
)
_NAMES_BEFORE = frozenset(
    [
        "INTO",
        "TABLE",
        "INDEX",
        "KEY",
        "REFERENCES",
        "UPDATE",
        "AS",
        "EXISTS",
        "CONSTRAINT",
        "WITH",
        "RECURSIVE",
        ",",
        "UNIQUE",
        "IGNORE",
        "INSERT",
        "REPLACE",
    ]
)
_GLUED = frozenset(
    [
        "COUNT",
        "SUM",
        "MIN",
        "MAX",
        "AVG",
        "STD",
        "STDDEV",
        "STDDEV_POP",
        "STDDEV_SAMP",
        "VARIANCE",
        "VAR_POP",
        "VAR_SAMP",
        "NOW",
        "CURDATE",
        "CURTIME",
        "DATE_ADD",
        "DATE_SUB",
        "ADDDATE",
        "SUBDATE",
        "SYSDATE",
        "BIT_AND",
        "BIT_OR",
        "BIT_XOR",
    ]
)
_OPERATORS = frozenset(
    [
        "+",
        "-",
        "*",
        "/",
        "%",
        "!",
        "~",
        "=",
        "<",
        ">",
        "<=",
        ">=",
        "<>",
        "!=",
        "<=>",
        "&",
        "|",
        "^",
        "<<",
        ">>",
        "NOT",
    ]
)
_STATEMENTS = frozenset(
    [
        "SELECT",
        "WITH",
        "(",
        "INSERT",
        "REPLACE",
        "UPDATE",
        "DELETE",
        "CREATE",
        "ALTER",
        "DROP",
        "TRUNCATE",
        "SHOW",
        "DESCRIBE",
        "DESC",
        "EXPLAIN",
        "SET",
        "USE",
        "BEGIN",
        "START",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT",
        "RELEASE",
        "VALUES",
        "TABLE",
        "RENAME",
        "DO",
    ]
)
_PRIVILEGES = {
    "GRANT": "GRANT OPTION",
    "REVOKE": "GRANT OPTION",
    "KILL": "SUPER or CONNECTION_ADMIN",
    "SHUTDOWN": "SHUTDOWN",
    "RESTART": "SHUTDOWN",
    "FLUSH": "RELOAD",
    "RESET": "RELOAD",
    "LOAD": "FILE",
    "INSTALL": "SYSTEM_VARIABLES_ADMIN",
    "UNINSTALL": "SYSTEM_VARIABLES_ADMIN",
    "CHANGE": "REPLICATION_SLAVE_ADMIN",
    "PURGE": "BINLOG_ADMIN",
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
    for end in [i for i, t in enumerate(tokens) if t.token_type is TokenType.SEMICOLON] + [None]:
        chunk = tokens[start:end]
        if chunk:
            text = sql[chunk[0].start : chunk[-1].end + 1]
            if chunk[0].token_type is TokenType.COMMAND:  # its tokens are still one piece of text
                chunk = _tokenize(text)
            statements.append(Statement(text, tuple(chunk)))
        start = len(tokens) if end is None else end + 1
    if not statements:
        raise Mistake.EMPTY_QUERY()
    return tuple(statements)


def _tokenize(sql: str) -> list[Token]:
    """Returns the tokens; REPLACE at the beginning is read as the INSERT that it is."""
    try:
        return _DIALECT.tokenize(_REPLACE.sub(r"\1INSERT ", sql))
    except TokenError:
        raise syntax_error(sql, _unreadable_start(sql)) from None


def parse(statement: Statement) -> exp.Expression:
    """Returns the statement's syntax tree. Raises: MySQLError (1064, 1227, 1436)."""
    _check_first_words(statement)
    tokens = _marked(statement)
    _check_nesting(statement)
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


def _offset(statement: Statement, index: int) -> int:
    if index >= len(statement.tokens):
        return len(statement.text)
    return statement.tokens[index].start - statement.tokens[0].start


def _unreadable_start(sql: str) -> int:
    """Returns where an unclosed quote or comment begins."""
    closed = re.compile(
        r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`[^`]*`|[^'\"`]", re.DOTALL
    )
    position = 0
    while match := closed.match(sql, position):
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
    for index in range(1, len(tokens) - 1):
        token = tokens[index]
        if tokens[index + 1].token_type is TokenType.L_PAREN and _is_call(tokens, index):
            name = token.text.upper()
            if name in _GLUED and token.end + 1 != tokens[index + 1].start:
                if tokens[min(index + 2, len(tokens) - 1)].token_type is TokenType.STAR:
                    raise syntax_error(statement.text, _offset(statement, index + 2))
                raise Mistake.FUNCTION_SPACE("db", token.text)
            tokens[index] = Token(
                TokenType.VAR, MARK + token.text, token.line, token.col, token.start, token.end
            )
    return tokens


def _is_call(tokens: list[Token], index: int) -> bool:
    token = tokens[index]
    name = token.text.upper()
    if token.token_type is not TokenType.VAR and name not in _FUNCTION_KEYWORDS:
        return False
    if name in _SPECIAL_SYNTAX or not _NAME.fullmatch(name):
        return False
    before = tokens[index - 1].text.upper()
    if before == ",":
        return True
    return before not in _NAMES_BEFORE


def _check_nesting(statement: Statement) -> None:
    """Raises: MySQLError (1436) where parentheses, CASE or operators nest too deeply."""
    depth = 0
    chains = [0]
    for token in statement.tokens:
        word = token.text.upper()
        if word in ("(", "CASE") and token.token_type is not TokenType.STRING:
            depth += 1
            chains.append(0)
        elif word in (")", "END") and len(chains) > 1:
            depth -= 1
            chains.pop()
        elif word in (",", "AND", "OR", "SELECT", "WHEN", "UNION"):
            chains[-1] = 0
        elif word in _OPERATORS or token.token_type is TokenType.STRING:
            chains[-1] += 1
        if depth > MAX_NESTING or chains[-1] > MAX_CHAIN:
            raise Mistake.STACK()
    if sum(token.text.upper() in ("UNION", "JOIN") for token in statement.tokens) > MAX_NESTING:
        raise Mistake.STACK()


def _to_mysql(error: ParseError, statement: Statement) -> MySQLError:
    details = error.errors[0] if error.errors else {}
    text = statement.text
    start = statement.tokens[0].start
    line, column = details.get("line"), details.get("col")
    if not isinstance(line, int) or not isinstance(column, int):
        return syntax_error(text, 0)
    is_leftover = str(details.get("description")).startswith("Invalid expression")
    for index, token in enumerate(statement.tokens):
        if (token.line, token.col) != (line, column):
            continue
        if index == len(statement.tokens) - 1 and not is_leftover:
            break
        if index > 1 and statement.tokens[index - 2].token_type is TokenType.STAR:
            token = statement.tokens[index - 1]  # `* FORM t`: no alias can follow the star
        return syntax_error(text, token.start - start)
    return syntax_error(text, len(text))
