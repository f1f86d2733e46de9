"""Limits of nesting, for statements that a server cannot be stopped at.

A server looks at a kill between rows, but not while it prepares a statement or evaluates an
expression for one row. Some constructs make it visit an operand several times: NULLIF, CASE, IN,
ANY and ALL, subqueries, common tables and aliases that are named twice, defaults of defaults. Forty
of these in each other keep MariaDB busy for weeks, and no KILL ends that. So what is nested deeper
than anybody writes is refused before it is sent; that a statement is slow for its rows is the
watchdog's affair.

The limits are on the text, not on the work: statements made to be slow within them took up to 0.8 s
of MariaDB 10.11.
"""

import math
import re
from collections import Counter

_MAX_DEPTH = 8
"""Open brackets and CASEs, in a text with more than `_MAX_WORDS` words that multiply work."""
_MAX_WORDS = 8
_MAX_SUBQUERIES = 12
_MAX_CHAINED = 5
"""`a IN (…) IN (…)`: the left operand of each is all before it."""
_MAX_VISITS = 2**13
"""How often operands are visited if every use of a name, and every operator, is within the next."""

_LITERAL = re.compile(
    r"""'(?:[^'\\]|\\(?:.|\Z)|'')*+(?:'|\Z) | "(?:[^"\\]|\\(?:.|\Z)|"")*+(?:"|\Z)
    | `[^`]*(?:`|\Z) | /\*(?!M?!).*?(?:\*/|\Z) | \#[^\n]* | --(?=[\s\x00-\x1f]|\Z)[^\n]*""",
    re.VERBOSE | re.DOTALL,
)
_CONDITIONAL_COMMENT = re.compile(r"/\*M?!\d*")
_SETS = re.compile(r"\bSET\b", re.I)
_CHANGES_READING = re.compile(r"sql_mode|names|charset|character", re.I)
_READ_BY_SETTINGS = re.compile(r"\\|[^\x00-\x7f]")
_DYNAMIC = re.compile(r"\bEXECUTE\s+IMMEDIATE\b|\bPREPARE\s+\S+\s+FROM\b", re.I)
_NESTING = re.compile(r"[(),]|\b(?:CASE|END|DEFAULT)\b", re.I)
_RESERVED = re.compile(r"CASE|DEFAULT|IN|ALL|SELECT", re.I)
_MULTIPLYING = re.compile(r"\b(?:NULLIF|DECODE\w*|IN|CASE|ANY|SOME|ALL|SELECT)\b", re.I)
_SUBQUERY = re.compile(r"\(\s*SELECT\b", re.I)
_CHAINED = re.compile(r"\)\s*(?:NOT\s+)?IN\b", re.I)
_DOUBLES = re.compile(r"\b(?:NULLIF|IN)\b", re.I)
_QUINTUPLES = re.compile(r"\b(?:DECODE\w*|CASE(?!\s+WHEN))\b", re.I)
_DEFINED = re.compile(r"\bAS\s+`?(\w+)|\)\s*`?(\w+)`?\s*(?=,|FROM\b)|(\w+)`?\s+AS\s*\(", re.I)
_USED = re.compile(r"\w+(?!\w*`?\s*[.(])")

STACK_ERROR = (
    "1436 (HY000): Thread stack overrun:  246704 bytes used of a 262144 byte stack, and 20000 "
    "bytes needed.  Use 'mysqld --thread_stack=#' to specify a bigger stack."
)
_DYNAMIC_ERROR = (
    "1295 (HY000): This command is not supported in the prepared statement protocol yet"
)
_DEFAULT_ERROR = "3773 (HY000): DEFAULT function cannot be used with default value expressions"


class StatementGuard:
    """Refuses dangerous texts of one session; remembers settings that change how texts are read."""

    def __init__(self) -> None:
        self._may_be_read_otherwise = False

    def find_refusal(self, sql: str) -> str | None:
        """Returns an error in place of a text that must not be sent; None for others.

        Statements made of values (`PREPARE`, `EXECUTE IMMEDIATE`) cannot be seen, so they are
        refused. Where the server may see other literals than we do (after a change of `sql_mode` or
        of the character set, or by a comment that some servers execute), the limits hold for the
        text with its literals too.
        """
        if _SETS.search(sql) and _CHANGES_READING.search(sql):
            self._may_be_read_otherwise = True
        readings = [_LITERAL.sub(_blank_literal, sql)]
        is_otherwise = self._may_be_read_otherwise and _READ_BY_SETTINGS.search(sql)
        if is_otherwise or _CONDITIONAL_COMMENT.search(sql):
            readings.append(_CONDITIONAL_COMMENT.sub(" ", sql).replace("*/", " "))
        return next(filter(None, map(_find_refusal, readings)), None)


def _blank_literal(match: re.Match[str]) -> str:
    if match[0][0] == "`":
        name = re.sub(r"\W", "_", match[0][1:-1])
        # A reserved word in quotes is a name, and can only be used in quotes
        return f"`{name}_`" if _RESERVED.fullmatch(name) else f"`{name}`"
    return "''" if match[0][0] in "'\"" else " "


def _find_refusal(text: str) -> str | None:
    if _DYNAMIC.search(text):
        return _DYNAMIC_ERROR
    depth, max_depth, default_depth = 0, 0, math.inf
    for match in _NESTING.finditer(text):
        sign = match[0].upper()
        if sign in ("(", "CASE"):
            depth += 1
            max_depth = max(depth, max_depth)
        elif sign in (")", "END"):
            depth = max(depth - 1, 0)
        elif sign == "DEFAULT" and depth >= default_depth:
            return _DEFAULT_ERROR
        elif sign == "DEFAULT":
            default_depth = depth
        if depth < default_depth or (sign == "," and depth == default_depth):
            default_depth = math.inf
    is_nested = max_depth > _MAX_DEPTH and len(_MULTIPLYING.findall(text)) > _MAX_WORDS
    num_subqueries = len(_SUBQUERY.findall(text))
    is_long = num_subqueries > _MAX_SUBQUERIES or len(_CHAINED.findall(text)) > _MAX_CHAINED
    may_be_within = num_subqueries > 0 or max_depth > _MAX_DEPTH // 2  # else all stand side by side
    is_visited_often = may_be_within and _count_visits(text) > _MAX_VISITS
    return STACK_ERROR if is_nested or is_long or is_visited_often else None


def _count_visits(text: str) -> float:
    """Returns how often an operand is visited at most: by names that are used, and by operators."""
    defined = Counter(word.lower() for words in _DEFINED.findall(text) for word in words if word)
    used = Counter(_USED.findall(text.lower()))
    visits = math.prod(max(used[name] / num - 1, 1.0) ** num for name, num in defined.items())
    num_doubles, num_quintuples = len(_DOUBLES.findall(text)), len(_QUINTUPLES.findall(text))
    # Capped, as a float has no room for what a long text may come to.
    return visits * 2.0 ** min(num_doubles, 99) * 5.0 ** min(num_quintuples, 99)
