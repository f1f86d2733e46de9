"""How much work a server has to make before it runs a statement, estimated from the text.

A server looks at a kill between rows, but not while it prepares a statement or evaluates an
expression for one row, and some constructs make it visit their operands more than once. Nested, the
work multiplies: forty times `NULLIF(…, name)` in each other keep MariaDB busy for weeks, and no
KILL ends that. So such a statement must not be sent. The text is read once, in linear time, with
a stack of open brackets and CASEs, each with the work that is inside. What was found to multiply:

* the first operand of NULLIF, of IN with values of several types, and of CASE: by 2 to 5;
* both sides of IN, ANY and ALL with a subquery: by 2 to 4;
* the columns of a derived table: by how often an expression outside names one;
* common tables and aliases of subqueries: by how often they are named;
* a default in which DEFAULT(column) is: by how often. It is refused, as by MySQL.

The unit is about half a microsecond of MariaDB 10.11. It is a bound for what multiplies; that a
statement is slow for its rows is the watchdog's affair.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

MAX_WORK = 2**18
"""About 0.15 seconds. Statements of tasks have some thousands."""
_HARMLESS_CHARS = 1000
_HARMLESS_WORDS = 4
_HARMLESS_QUERIES = 2
"""A text with no more of each cannot multiply enough, so it is not read."""
_SELECT_WORK = 10
_NAMED_WORK = 200
"""A common table is parsed again for each name."""
_SUBQUERY_FACTOR = 4
_LIST_FACTOR = 2
_MAX_CASE_FACTOR = 5
_FUNCTION_FACTORS = {"NULLIF": 2, "DECODE": 5, "DECODE_ORACLE": 5}
_MAX_UNREADABLE_WORDS = 8
_MAX_UNREADABLE_QUERIES = 2

_TOKEN = re.compile(
    r"""
    \s+ | /\*.*?(?:\*/|\Z) | \#[^\n]* | --(?=[\s\x00-\x1f]|\Z)[^\n]*
    | (?P<text>'(?:[^'\\]|\\(?:.|\Z)|'')*(?:'|\Z))
    | (?P<quoted>`(?:[^`]|``)*(?:`|\Z) | "(?:[^"\\]|\\(?:.|\Z)|"")*(?:"|\Z))
    | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w$]))
    | (?P<word>@*[\w$]+) | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ANY_EXPRESSION = "("
_BEFORE_VALUES = ("IN", "ANY", "ALL", "SOME")
_OPENS_QUERY = ("SELECT", "WITH", "VALUES", "(")
_SET_OPERATORS = ("UNION", "EXCEPT", "INTERSECT", "MINUS")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CLAUSES = _words("FROM WHERE GROUP HAVING ORDER LIMIT WINDOW PROCEDURE FOR INTO")
_SEPARATORS = _CLAUSES | _words(
    "AND OR XOR WHEN THEN ELSE SET VALUES ON USING JOIN UNION EXCEPT INTERSECT MINUS"
)
_KEYWORDS = _SEPARATORS | _words(
    "AS ALL ANY SOME ASC BETWEEN BY CASE DAY DESC DISTINCT DIV END ESCAPE EXISTS FALSE IN INNER "
    "INTERVAL IS LEFT LIKE MOD MONTH NOT NULL OVER PARTITION RECURSIVE REGEXP RIGHT RLIKE ROW ROWS "
    "SELECT TRUE UNBOUNDED WITH YEAR"
)
_SETS = re.compile(r"\bSET\b", re.I)
_CHANGES_READING = re.compile(r"sql_mode|names|charset|character", re.I)
_READ_BY_SETTINGS = re.compile(r"\\|[^\x00-\x7f]")
_CONDITIONAL_COMMENT = re.compile(r"/\*M?!")
_MULTIPLYING = re.compile(r"\b(?:NULLIF|DECODE\w*|IN|CASE|ANY|SOME|ALL|SELECT)\b", re.I)
_DEFAULT = re.compile(r"\bDEFAULT\b.*\bDEFAULT\b", re.I | re.S)
_DEFAULT_CALL = re.compile(r"\bDEFAULT\s*(?:\(|/\*|#|--)", re.I)
_QUERY = re.compile(r"\bSELECT\b", re.I)
_DYNAMIC = re.compile(r"\b(?:PREPARE|IMMEDIATE)\b", re.I)

STACK_ERROR = (
    "1436 (HY000): Thread stack overrun:  246704 bytes used of a 262144 byte stack, and 20000 "
    "bytes needed.  Use 'mysqld --thread_stack=#' to specify a bigger stack."
)
_DYNAMIC_ERROR = (
    "1295 (HY000): This command is not supported in the prepared statement protocol yet"
)
_DEFAULT_ERROR = "3773 (HY000): DEFAULT function cannot be used with default value expressions"


class StatementGuard:
    """Says which texts of one session may be sent. It remembers what changes how texts are read."""

    def __init__(self) -> None:
        self._may_be_read_otherwise = False

    def find_refusal(self, sql: str) -> str | None:
        """Returns the error of a text that is not to be sent, None for one that may be.

        Statements made of values (`PREPARE`, `EXECUTE IMMEDIATE`) cannot be seen, so they are
        refused. Where the server may see other tokens than we do (after a change of `sql_mode` or
        of the character set, or for a comment that some servers execute), hardly anything that
        multiplies may be in the text.
        """
        if _SETS.search(sql) and _CHANGES_READING.search(sql):
            self._may_be_read_otherwise = True
        is_unreadable = _CONDITIONAL_COMMENT.search(sql) or (
            self._may_be_read_otherwise and _READ_BY_SETTINGS.search(sql)
        )
        is_dynamic = _DYNAMIC.search(sql)
        num_queries, num_words = len(_QUERY.findall(sql)), len(_MULTIPLYING.findall(sql))
        if is_unreadable:
            is_large = num_words > _MAX_UNREADABLE_WORDS or num_queries > _MAX_UNREADABLE_QUERIES
            if is_dynamic:
                return _DYNAMIC_ERROR
            if len(_DEFAULT_CALL.findall(sql)) > 1:
                return _DEFAULT_ERROR
            return STACK_ERROR if is_large else None
        is_small = num_words <= _HARMLESS_WORDS and num_queries <= _HARMLESS_QUERIES
        has_default = _DEFAULT.search(sql)
        if is_small and len(sql) <= _HARMLESS_CHARS and not is_dynamic and not has_default:
            return None
        try:
            _Reader().read(sql)
        except _RefusedError as refused:
            return str(refused)
        return None


class _RefusedError(Exception):
    """A text that is not to be sent; says the error for the agent."""


@dataclass
class _Frame:
    """An open bracket, an open CASE, or a statement, and the work that is in it so far.

    `operand`: of what the next IN would have on its left; `total`: before that; `case_operand`: of
    what a CASE compares; `sources`: of the derived tables whose columns the select list may name;
    `item_start`: `total` where the item of the select list began.
    """

    is_case: bool = False
    factor: int = 1
    is_compared: bool = False
    is_default: bool = False
    total: int = 0
    operand: int = 0
    case_operand: int = 0
    num_whens: int = 0
    sources: int = 0
    item_start: int = 0
    num_names: int = 0
    most_names: int = 1
    last_name: str = ""
    has_query: bool = False
    has_item_query: bool = False
    is_between: bool = False
    is_in_list: bool = False
    is_in_from: bool = False
    is_in_with: bool = False

    def separate(self) -> None:
        """Ends an operand."""
        self.total += self.operand
        self.operand = 0

    def begin_item(self) -> None:
        """Begins an item of the select list."""
        self.item_start, self.num_names, self.has_item_query = self.total, 0, False

    def end_query(self) -> None:
        """Ends a SELECT. An item evaluates its sources' columns as often as it names them."""
        self.separate()
        self.total += self.sources * self.most_names
        self.sources, self.most_names = 0, 1
        self.is_in_list = self.is_in_from = False

    def compute_work(self) -> int:
        """Returns the work of the whole, which has ended."""
        self.end_query()
        case_work = self.case_operand * min(self.num_whens, _MAX_CASE_FACTOR)
        query_factor = _SUBQUERY_FACTOR if self.is_compared and self.has_query else 1
        return (self.total + case_work) * self.factor * query_factor


class _Reader:
    """Reads a text. Raises: _RefusedError."""

    def __init__(self) -> None:
        self._frames = [_Frame()]
        self._named: dict[str, int] = {}
        """The work of common tables, and of items of select lists with subqueries."""

    def read(self, sql: str) -> None:
        """Raises: _RefusedError."""
        matches = [match for match in _TOKEN.finditer(sql) if match.lastgroup]
        kinds = [str(match.lastgroup) for match in matches]
        texts = [match.group() for match in matches]
        words = [
            text.upper() if kind == "word" else text if kind == "sign" else ""
            for kind, text in zip(kinds, texts, strict=True)
        ]
        words = ["", "", *words, "", "", ""]
        for index, (kind, text) in enumerate(zip(kinds, texts, strict=True)):
            self._read_token(kind, text, words[index : index + 5])
        while len(self._frames) > 1:
            self._close()
        self._end_statement()

    def _read_token(self, kind: str, text: str, words: Sequence[str]) -> None:
        """`words`: two tokens before, this one and two after it, the words in upper case."""
        _, before, word, after, _ = words
        frame = self._frames[-1]
        if kind == "sign":
            self._read_sign(words)
        elif word == "CASE":
            self._open(words)
        elif word == "END" and frame.is_case:
            self._close()
        elif word in _SEPARATORS and not (word == "AND" and frame.is_between):
            self._separate(word)
        elif kind in ("word", "quoted") and word not in _KEYWORDS:
            self._read_name(text, before, after)
        else:
            self._read_operator(words)
        is_prepared = before == "PREPARE" and after == "FROM" and kind in ("word", "quoted")
        if is_prepared or (before == "EXECUTE" and word == "IMMEDIATE"):
            raise _RefusedError(_DYNAMIC_ERROR)
        if frame.operand > MAX_WORK:
            raise _RefusedError(STACK_ERROR)

    def _read_sign(self, words: Sequence[str]) -> None:
        sign = words[2]
        if sign == "(":
            self._open(words)
        elif sign == ")":
            while len(self._frames) > 1 and self._close().is_case:
                pass
        elif sign == ",":
            self._end_item()
        elif sign == ";":
            self._end_statement()

    def _read_operator(self, words: Sequence[str]) -> None:
        """Reads a keyword that ends no operand, or a literal."""
        *_, word, after, after_next = words
        frame = self._frames[-1]
        if word == "SELECT":
            frame.end_query()
            frame.total += _SELECT_WORK
            frame.begin_item()
            frame.has_query = frame.is_in_list = True
            frame.is_in_with = False
        elif word == "WITH":
            frame.is_in_with = True
        elif word in ("BETWEEN", "AND"):
            frame.is_between = word == "BETWEEN"
        elif word in _BEFORE_VALUES and after == "(":
            frame.operand *= _SUBQUERY_FACTOR if after_next in _OPENS_QUERY else _LIST_FACTOR
        else:
            frame.operand += 1

    def _open(self, words: Sequence[str]) -> None:
        """Opens a bracket or a CASE."""
        before_last, before, word, *_ = words
        outer = self._frames[-1]
        is_default = before == "DEFAULT" or (before_last == "DEFAULT" and before.isidentifier())
        if before == "DEFAULT" and word == "(" and (outer.is_default or before_last == "DEFAULT"):
            raise _RefusedError(_DEFAULT_ERROR)
        is_compared = before in _BEFORE_VALUES
        factor = _FUNCTION_FACTORS.get(before, 1)
        is_default |= outer.is_default
        self._frames.append(_Frame(word == "CASE", factor, is_compared, is_default))

    def _close(self) -> _Frame:
        """Ends the innermost frame and returns it. Outside, its work is an operand or a source."""
        self._end_item()
        closed = self._frames.pop()
        work, outer = closed.compute_work(), self._frames[-1]
        if work > MAX_WORK:
            raise _RefusedError(STACK_ERROR)
        outer.num_names += closed.num_names
        if outer.is_in_with and closed.has_query:
            outer.total += work
            self._name(outer.last_name, work)
            return closed
        outer.has_query |= closed.has_query
        outer.has_item_query |= closed.has_query
        if outer.is_in_from and closed.has_query:
            outer.sources += work
        else:
            outer.operand += work
        return closed

    def _end_statement(self) -> None:
        """Ends a statement, or one that a server will not take for its brackets."""
        self._end_item()
        if self._frames[-1].compute_work() > MAX_WORK:
            raise _RefusedError(STACK_ERROR)
        self._frames[-1] = _Frame()

    def _separate(self, word: str) -> None:
        frame = self._frames[-1]
        if frame.is_case and word == "WHEN":
            if not frame.num_whens:
                frame.separate()
                frame.case_operand, frame.total = frame.total, 0
            frame.num_whens += 1
        if word in _CLAUSES:
            self._end_item()
            frame.is_in_from = frame.is_in_list and word == "FROM"
            frame.is_in_list = frame.is_in_with = False
        if word in _SET_OPERATORS:
            self._end_item()
            frame.end_query()
        frame.separate()

    def _end_item(self) -> None:
        """Ends an operand; if it is an item of a select list, the last name is its alias."""
        frame = self._frames[-1]
        frame.separate()
        if not frame.is_in_list:
            return
        frame.most_names = max(frame.most_names, frame.num_names)
        work = frame.total - frame.item_start
        if frame.has_item_query:
            self._name(frame.last_name, work)
        frame.begin_item()

    def _name(self, name: str, work: int) -> None:
        self._named[name] = max(work, self._named.get(name, 0))
        self._named[_ANY_EXPRESSION] = max(work, self._named.get(_ANY_EXPRESSION, 0))

    def _read_name(self, text: str, before: str, after: str) -> None:
        frame = self._frames[-1]
        name = text.lower() if text[0] not in '`"' else text[1:-1].lower()
        frame.last_name = name
        frame.operand += 1
        if after in ("(", ".") or before == "AS":
            return
        frame.num_names += 1
        if before == ".":
            return
        if "(" in name:  # an item without an alias is called as its text
            name = _ANY_EXPRESSION
        if name not in self._named:
            return
        work = self._named[name] + _NAMED_WORK
        frame.has_query = frame.has_item_query = True
        if frame.is_in_from:
            frame.sources += work
        else:
            frame.operand += work
