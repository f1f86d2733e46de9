"""SQLite's run-time errors as the errors that MySQL gives in their place."""

import logging
import re
import sqlite3
from collections.abc import Callable

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake, MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.deadline import StatementInterrupted

_LOGGER = logging.getLogger(__name__)
PACKET_TOO_BIG = MySQLError(1153, "08S01", "Got a packet bigger than 'max_allowed_packet' bytes")
_OUT_OF_MEMORY = MySQLError(
    1038, "HY001", "Out of sort memory, consider increasing server sort buffer size"
)
_BAD_TEXT = MySQLError(1300, "HY000", "Cannot convert string to utf8mb4")
_BY_CODE = {
    sqlite3.SQLITE_TOOBIG: Mistake.NOT_SUPPORTED("values of more than 256 KiB"),
    sqlite3.SQLITE_NOMEM: _OUT_OF_MEMORY,
    sqlite3.SQLITE_AUTH: MySQLError(
        1142, "42000", "command denied to user 'agent'@'%' for this object"
    ),
    sqlite3.SQLITE_MISMATCH: MySQLError(1366, "HY000", "Incorrect integer value"),
}


def _stack(_: str) -> MySQLError:
    return Mistake.STACK()


_MESSAGES: tuple[tuple[re.Pattern[str], Callable[[str], MySQLError]], ...] = (
    (re.compile(r"no such column: (.*)"), lambda name: Mistake.UNKNOWN_COLUMN(name, "field list")),
    (re.compile(r"no such table: (?:main\.)?(.*)"), lambda name: Mistake.NO_TABLE("db", name)),
    (re.compile(r"no such function: (.*)"), lambda name: Mistake.NO_FUNCTION("db", name)),
    (
        re.compile(r"ambiguous column name: (.*)"),
        lambda name: Mistake.AMBIGUOUS(name, "field list"),
    ),
    (re.compile(r"(integer overflow)"), lambda _: Mistake.NOT_SUPPORTED("sums beyond 64 bits")),
    (re.compile(r"(Could not decode)"), lambda _: _BAD_TEXT),
    (re.compile(r"(query string is too large)"), lambda _: PACKET_TOO_BIG),
    (re.compile(r"(parser stack overflow|Expression tree is too large|too many)"), _stack),
    (re.compile(r'near "(.*)": syntax error', re.DOTALL), lambda near: Mistake.SYNTAX(near, 1)),
    (re.compile(r"incomplete input()"), lambda near: Mistake.SYNTAX(near, 1)),
)


_TARGET = re.compile(r'(?:INTO|UPDATE|TABLE)\s+(?:main\.)?"((?:[^"]|"")+)"')


def to_mysql_error(error: Exception, sql: str) -> MySQLError:
    """Returns MySQL's error for what stopped a statement; `sql` is what SQLite ran."""
    if isinstance(error, MySQLError):
        return error
    if isinstance(error, StatementInterrupted):
        return Mistake.TIMEOUT()
    if isinstance(error, MemoryError):
        return _OUT_OF_MEMORY
    if isinstance(error, UnicodeError):
        return _BAD_TEXT
    code = vars(error).get("sqlite_errorcode")  # missing where Python's module itself complains
    if code == sqlite3.SQLITE_FULL:
        target = _TARGET.search(sql)
        return MySQLError(1114, "HY000", f"The table '{target[1] if target else ''}' is full")
    if code in _BY_CODE:
        return _BY_CODE[code]
    for pattern, to_error in _MESSAGES:
        if match := pattern.match(str(error)):
            return to_error(match[1])
    return unhandled(error)


def unhandled(error: Exception) -> MySQLError:
    """Returns error 1235 for a statement that the code did not foresee."""
    _LOGGER.debug("a statement fails", exc_info=error)
    return Mistake.NOT_SUPPORTED("this statement")
