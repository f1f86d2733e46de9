"""Observations: public names in place of real ones, MySQL 8's wording of MariaDB's errors.

Names are hidden to make observations alike, not as a secret: `HEX(DATABASE())` tells the real one,
and nobody gains anything by knowing it.
"""

import re
from collections.abc import Callable

from agentpeft.envs.db_bench.backends.protocol import Row

PUBLIC_SCHEMA = "db"
_PUBLIC_ACCOUNT = r"\1agent\1@\2localhost\2"
_CLAUSES = {
    **dict.fromkeys(("SELECT", "INSERT INTO", "SET"), "field list"),
    "WHERE": "where clause",
    "GROUP BY": "group statement",
    "ORDER BY": "order clause",
    "HAVING": "having clause",
    "ON": "on clause",
}
_GROUP_BY_TAIL = (
    "which is not functionally dependent on columns in GROUP BY clause; "
    "this is incompatible with sql_mode=only_full_group_by"
)
_LOCAL_DATA = (
    "3948 (42000): Loading local data is disabled; "
    "this must be enabled on both the client and server sides"
)
_CLAUSE = f"({'|'.join(_CLAUSES)})"
_COLUMN = r"for column `[^`]*`\.`[^`]*`\.`(.*)` at row"
_WRITTEN_TABLE = r"\b(?:INTO|UPDATE|REPLACE|TABLE|ON)\s+`?(\w+)"
_Replacement = str | Callable[[re.Match[str]], str]
_MYSQL_WORDS: dict[str, tuple[str, _Replacement]] = {
    "1052": (f"in '?{_CLAUSE}'? is", lambda m: f"in {_CLAUSES[m[1]]} is"),
    "1054": (f"in '{_CLAUSE}'$", lambda m: f"in '{_CLAUSES[m[1]]}'"),
    "1091": (
        "Can't DROP [A-Z ]+ `(.*)`; check that it exists",
        r"Can't DROP '\1'; check that column/key exists",
    ),
    "1142": (r"for table `[^`]*`\.`(.*)`$", r"for table '\1'"),
    "1227": ("the SUPER privilege", "the SUPER or SYSTEM_VARIABLES_ADMIN privilege"),
    "1292": (_COLUMN, r"for column '\1' at row"),
    "1366": (rf"\(\w+\)(.*){_COLUMN}", r"(HY000)\1for column '\2' at row"),
    "1927": ("^.*$", "1317 (70100): Query execution was interrupted"),
    "4166": ("^.*$", _LOCAL_DATA),
}


def compute_error_text(text: str, sql: str, schema: str) -> str:
    """Returns the error as MySQL 8 would word it for `sql`, with public names.

    >>> compute_error_text("1054 (42S22): Unknown column 'x' in 'WHERE'", "", "s")
    "1054 (42S22): Unknown column 'x' in 'where clause'"
    """
    text = hide_names(text, schema).replace("MariaDB", "MySQL")
    number = text[:4]
    if number in _MYSQL_WORDS:
        return re.sub(*_MYSQL_WORDS[number], text)
    if number == "1055" and (match := re.search(r"'([^']+)' isn't in GROUP BY", text)):
        position = _find_in_select_list(sql, match[1].rsplit(".", 1)[-1])
        return (
            f"1055 (42000): Expression #{position} of SELECT list is not in GROUP BY clause and "
            f"contains nonaggregated column '{match[1]}' {_GROUP_BY_TAIL}"
        )
    if number == "1062" and (match := re.search(_WRITTEN_TABLE, sql, re.IGNORECASE)):
        return re.sub(r"for key '(?!.*\.)(.*)'$", rf"for key '{match[1]}.\1'", text)
    return text


def _find_in_select_list(sql: str, column: str) -> int:
    """Returns the 1-based place of the first item of the select list that names `column`."""
    match = re.search(r"\bSELECT\b(.*?)\bFROM\b", sql, re.IGNORECASE | re.DOTALL)
    items = re.split(r",(?![^(]*\))", match[1]) if match else []
    named = (i for i, item in enumerate(items, 1) if re.search(rf"\b{re.escape(column)}\b", item))
    return next(named, 1)


def hide_names(text: str, schema: str) -> str:
    """Returns text with the real schema, which is the account's name too, made public."""
    if schema not in text:
        return text
    account = rf"(['`\"]?){schema}\1@(['`\"]?)(?:%|[\w.:-]+)\2"
    return re.sub(account, _PUBLIC_ACCOUNT, text).replace(schema, PUBLIC_SCHEMA)


def hide_names_in_rows(rows: list[Row], schema: str) -> tuple[Row, ...]:
    """Returns the rows with the real names made public in every text."""
    return tuple(
        tuple(hide_names(value, schema) if isinstance(value, str) else value for value in row)
        for row in rows
    )
