"""What is looked at before a statement is parsed: its size, and where MySQL's grammar is narrower.

sqlglot reads many dialects at once: clauses in any order, `LIMIT 50 PERCENT`, `ASC DESC`. It drops
what it does not need, so that the tree no longer shows it. The tokens do.
"""

import re
from collections.abc import Callable, Sequence
from datetime import date

from sqlglot import Token, TokenType

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.words import words
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import TYPE_NAMES

MAX_NESTING = 60
MAX_CHAIN = 60
"""Most operators in a row, AND and OR apart (they are not nested when they are translated)."""
MAX_DIGITS = 81


def token_types(names: str) -> frozenset[TokenType]:
    """Returns the token types of these names."""
    return frozenset(TokenType[name] for name in names.split())


_OPENING = token_types("L_PAREN CASE")
_CLOSING = token_types("R_PAREN END")
_SEPARATING = token_types("COMMA AND OR SELECT WHEN")
_REPEATING = token_types("UNION JOIN EXCEPT INTERSECT")
_CHAINING = token_types(
    "PLUS DASH STAR SLASH MOD DIV NOT TILDE EQ NEQ NULLSAFE_EQ LT GT LTE GTE AMP PIPE CARET STRING"
)


def check_nesting(tokens: Sequence[Token]) -> None:
    """Raises: MySQLError (1436) where something nests too deeply or is too long."""
    if len(tokens) <= MAX_CHAIN:
        return
    chains = [0]
    num_repeated = 0
    for token in tokens:
        kind = token.token_type
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


_CLAUSES = {
    TokenType[name]: rank
    for rank, name in enumerate(
        ("FROM", "WHERE", "GROUP_BY", "HAVING", "WINDOW", "ORDER_BY", "LIMIT")
    )
}
_CONDITIONS = frozenset({_CLAUSES[TokenType.WHERE], _CLAUSES[TokenType.HAVING]})
_SET_OPERATIONS = token_types("UNION EXCEPT INTERSECT")
_BEGINNINGS = token_types("SELECT UPDATE DELETE INSERT") | _SET_OPERATIONS
_NEVER = token_types(
    "DCOLON L_BRACKET L_BRACE PLACEHOLDER COLON ILIKE QUALIFY RETURNING TABLE_SAMPLE FETCH PIVOT "
    "UNPIVOT"
)
_NO_LIST_ENDS_BEFORE = token_types(
    "FROM WHERE R_PAREN COMMA GROUP_BY HAVING ORDER_BY LIMIT SELECT JOIN INNER CROSS"
)
_BEFORE_TABLES = token_types("FROM JOIN UPDATE INTO TABLE")
_AFTER_DIRECTION = token_types("COMMA R_PAREN LIMIT FOR INTO ROWS RANGE")
_AFTER_LIMIT = token_types("COMMA R_PAREN OFFSET FOR INTO")
_TRUTHS = token_types("NULL TRUE FALSE UNKNOWN")
_QUERIES = token_types("SELECT WITH L_PAREN")
_QUANTIFIERS = token_types("ALL DISTINCT")
_TESTS = token_types("LIKE IN BETWEEN RLIKE NULL IS")
_BEFORE_DISTINCT = token_types("SELECT L_PAREN") | _SET_OPERATIONS
_BEFORE_LISTS = token_types(
    "SELECT L_PAREN DISTINCT ALL COMMA SET WITH ORDER_BY GROUP_BY PARTITION_BY FROM"
)
_LISTS = token_types("WHERE GROUP_BY HAVING ORDER_BY PARTITION_BY")
_BEFORE_NAMES = _BEFORE_TABLES | _BEFORE_LISTS | _LISTS
_VALUES = token_types("NUMBER STRING R_PAREN VAR IDENTIFIER NULL TRUE FALSE")
_BEFORE_ALIASES = token_types("VAR IDENTIFIER R_PAREN ALIAS")
_NAMES = token_types("IDENTIFIER STRING L_PAREN")
_ENDS = token_types("COMMA R_PAREN")
_NO_OPERANDS = token_types("STAR WHEN THEN ELSE END")
_FUNCTIONS = token_types("VAR LEFT RIGHT REPLACE DATE YEAR TRUNCATE MOD FORMAT ISNULL")
_BINARY = token_types("PLUS DASH STAR SLASH MOD DIV EQ NEQ LT GT LTE GTE NULLSAFE_EQ LIKE BETWEEN")
_DATA_STATEMENTS = words("SELECT WITH INSERT UPDATE DELETE (")
_CAST_TYPES = words(
    "SIGNED UNSIGNED CHAR CHARACTER NCHAR DECIMAL DEC DATE DATETIME TIME YEAR DOUBLE FLOAT BINARY "
    "JSON"
)
_CAST_ENDINGS = words("INTEGER INT CHARACTER CHARSET PRECISION")
_INTERVAL_UNITS = words(
    "MICROSECOND SECOND MINUTE HOUR DAY WEEK MONTH QUARTER YEAR SECOND_MICROSECOND "
    "MINUTE_MICROSECOND MINUTE_SECOND HOUR_MICROSECOND HOUR_SECOND HOUR_MINUTE DAY_MICROSECOND "
    "DAY_SECOND DAY_MINUTE DAY_HOUR YEAR_MONTH"
)
_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?: [0-9:]+)?$", re.ASCII)
_NO_COLUMNS = words(
    "PRIMARY UNIQUE KEY INDEX CONSTRAINT FOREIGN CHECK FULLTEXT SPATIAL LIKE SELECT"
)


class _Grammar:
    """One pass over a statement's tokens. `place` is the token's that is looked at."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = tokens
        self.kinds = [None, None, None, *(token.token_type for token in tokens), *[None] * 4]
        self.first = tokens[0].text.upper()
        self.place = 0
        self.frames: list[tuple[str, int]] = [("", -1)]
        """For each open parenthesis the word before it, and the rank of its last clause."""
        self.num_betweens = [0]
        """For each open parenthesis the BETWEENs whose AND is to come."""
        self.cases: list[bool] = []
        """For each open CASE whether a THEN is to come."""
        self.num_sets = 0

    def kind(self, offset: int) -> TokenType | None:
        """Returns the type of a token up to four places off, None beyond the ends."""
        return self.kinds[self.place + offset + 3]

    def text(self, offset: int) -> str:
        """Returns the text of a token near the present one in upper case."""
        index = self.place + offset
        return self.tokens[index].text.upper() if 0 <= index < len(self.tokens) else ""

    def find_foreign(self) -> int | None:
        """Returns the index of the first token that MySQL does not have there."""
        is_definition = self.first == "CREATE"
        for place, token in enumerate(self.tokens):
            rule = _RULES.get(token.token_type)
            if rule is None and not is_definition:
                continue
            self.place = place
            is_definition &= token.token_type is not TokenType.SELECT
            wrong = rule(self) if rule else None
            if wrong is None and is_definition and len(self.frames) == 2:
                wrong = self._check_column()
            if wrong is not None:
                return place + wrong
        is_open = len(self.frames) > 1 or self.num_betweens[-1] > 0
        return len(self.tokens) if is_open else None

    def open(self) -> int | None:
        """No `VALUES (2) (3)`; but a query in parentheses may stand behind INSERT's names."""
        self.frames.append((self.text(-1), -1))
        self.num_betweens.append(0)
        if self.kind(-1) in (TokenType.NUMBER, TokenType.STRING):
            return 0
        if self.kind(-1) in _FUNCTIONS and self.kind(1) is TokenType.SELECT:
            return None if self.first == "INSERT" and len(self.frames) == 2 else 1
        if self.kind(-1) is not TokenType.R_PAREN:
            return None
        return None if self.first == "INSERT" and self.kind(1) in _QUERIES else 0

    def close(self) -> int | None:
        """Ends a parenthesis."""
        if len(self.frames) == 1 or self.num_betweens.pop():
            return 0
        self.frames.pop()
        return None

    def between(self) -> int | None:
        """BETWEEN has an AND."""
        self.num_betweens[-1] += 1
        return None

    def conjunction(self) -> int | None:
        """AND belongs to the last BETWEEN that has none."""
        self.num_betweens[-1] -= self.num_betweens[-1] > 0
        return None

    def clause(self) -> int | None:
        """Clauses stand in one order, each once; no UNION after ORDER BY or LIMIT."""
        head, rank = self.frames[-1]
        kind = self.tokens[self.place].token_type
        if self.num_betweens[-1]:
            return 0
        if kind in _BEGINNINGS:
            self.frames[-1] = (head, -1)
            if kind not in _SET_OPERATIONS:
                return self._follow()
            if rank >= _CLAUSES[TokenType.ORDER_BY]:
                return 0
            return None if self.kind(1) in _QUERIES or self.kind(1) in _QUANTIFIERS else 1
        self.frames[-1] = (head, _CLAUSES[kind])
        if rank >= _CLAUSES[kind]:
            return 0
        return self._check_limit() if kind is TokenType.LIMIT else self._follow()

    def _check_limit(self) -> int | None:
        """LIMIT takes one whole number, or two by a comma or OFFSET (not in a change)."""
        if not self._is_count(1):
            return 1
        after = self.kind(2)
        if after is not None and after not in _AFTER_LIMIT:
            return 2
        if after in (TokenType.COMMA, TokenType.OFFSET):
            if self.first in ("UPDATE", "DELETE") and len(self.frames) == 1:
                return 2
            if not self._is_count(3):
                return 3
            is_end = self.kind(4) is None or self.kind(4) in _AFTER_LIMIT - {TokenType.OFFSET}
            return None if is_end else 4
        return None

    def _is_count(self, offset: int) -> bool:
        """Returns whether a token is a whole number of 64 bits."""
        text = self.text(offset)
        return self.kind(offset) is TokenType.NUMBER and text.isdigit() and int(text) < 1 << 64

    def offset(self) -> int | None:
        """OFFSET stands behind LIMIT alone; elsewhere it is a name, which no number follows."""
        is_between = self.kind(-1) in _VALUES and self.kind(1) in _VALUES
        is_foreign = is_between or self.kind(1) is TokenType.NUMBER
        return 0 if is_foreign and self.kind(-2) is not TokenType.LIMIT else None

    def direction(self) -> int | None:
        """ASC and DESC end a term. DESC at the beginning is DESCRIBE."""
        after = self.kind(1)
        is_right = self.place == 0 or after is None or after in _AFTER_DIRECTION
        is_right |= self.text(1) == "SEPARATOR"
        return None if is_right else 1

    def truth(self) -> int | None:
        """IS takes NULL, TRUE, FALSE or UNKNOWN."""
        offset = 2 if self.kind(1) is TokenType.NOT else 1
        return None if self.kind(offset) in _TRUTHS or self.text(offset) == "UNKNOWN" else offset

    def distinct(self) -> int | None:
        """DISTINCT begins a select list or an argument; DISTINCT ON is another dialect's."""
        if self.kind(-1) not in _BEFORE_DISTINCT:
            return 0
        is_all = self.kind(-1) is TokenType.L_PAREN and self.kind(1) is TokenType.STAR
        return 1 if is_all or self.kind(1) is TokenType.ON else None

    def interval(self) -> int | None:
        """A text that holds its unit is no interval."""
        is_whole = self.kind(1) is TokenType.STRING and self.text(2) not in _INTERVAL_UNITS
        return 2 if is_whole else None

    def alias(self) -> int | None:
        """AS is followed by a name; in CAST by a type, which is no INT and no VARCHAR."""
        if self.kind(-1) in _BEFORE_LISTS:
            return 0
        is_name = self.text(1)[:1].isalpha() or self.text(1)[:1] in ("_", "$")
        if not is_name and self.kind(1) not in _NAMES:
            return 1
        if self.frames[-1][0] != "CAST":
            return None
        if self.text(1) not in _CAST_TYPES:
            return 1
        is_end = self.kind(2) in (TokenType.L_PAREN, TokenType.R_PAREN)
        return None if is_end or self.text(2) in _CAST_ENDINGS else 2

    def join(self) -> int | None:
        """There is no FULL, ANTI, SEMI or ASOF JOIN."""
        return 0 if self.kind(1) in (TokenType.JOIN, TokenType.OUTER) else None

    def name(self) -> int | None:
        """No alias in a condition; `NULLS FIRST` and `NULLS LAST` are other dialects'."""
        if self.kind(-1) in (TokenType.NUMBER, TokenType.STRING):
            is_condition = self.frames[-1][1] in _CONDITIONS and self.first in _DATA_STATEMENTS
            return 0 if is_condition and self.text(0) not in _INTERVAL_UNITS else None
        is_order = len(self.tokens[self.place].text) == 5 and self.text(0) == "NULLS"
        return 0 if is_order and self.text(1) in ("FIRST", "LAST") else None

    def equal(self) -> int | None:
        """`==` is no operator."""
        return 0 if self.text(0) == "==" else None

    def member(self) -> int | None:
        """IN is followed by a list or a query, which is not empty."""
        if self.kind(1) is not TokenType.L_PAREN and self.frames[-1][0] != "POSITION":
            return 1
        is_empty = self.kind(1) is TokenType.L_PAREN and self.kind(2) is TokenType.R_PAREN
        return 2 if is_empty else None

    def on(self) -> int | None:
        """There is no ON CONFLICT."""
        return 1 if self.text(1) == "CONFLICT" else None

    def never(self) -> int | None:
        """Tokens that MySQL lacks."""
        return 0

    def comma(self) -> int | None:
        """A list goes on after a comma, and does not begin with one."""
        is_open = self.kind(-1) in _BEFORE_LISTS or self.num_betweens[-1] > 0
        return 0 if is_open else self._follow()

    def number(self) -> int | None:
        """No number stands behind a value: an alias is a name or a text."""
        return 0 if self.kind(-1) in _VALUES and self.first in _DATA_STATEMENTS else None

    def string(self) -> int | None:
        """The alias of a table is no text."""
        if self.num_betweens[-1] and self.kind(-1) in _VALUES:
            return 0
        is_table = self.frames[-1][1] == _CLAUSES[TokenType.FROM]
        is_table |= self.first == "UPDATE" and not self.num_sets
        return 0 if is_table and self.kind(-1) in _BEFORE_ALIASES else None

    def negation(self) -> int | None:
        """NOT binds less than operators: none stands before it. `a NOT NULL` lacks IS."""
        if self.text(0) == "!":
            raise Mistake.NOT_SUPPORTED("!")  # it binds more than sqlglot's NOT
        if self.kind(1) is TokenType.IS:
            return 1
        is_assigned = self.first in ("UPDATE", "INSERT") and self.frames[-1][1] < 0
        if self.kind(-1) in _BINARY and not (self.kind(-1) is TokenType.EQ and is_assigned):
            return 0
        if self.kind(-1) not in _VALUES or self.first not in _DATA_STATEMENTS:
            return None
        return None if self.kind(1) in _TESTS - {TokenType.NULL} else 0

    def plus(self) -> int | None:
        """A sign has an operand."""
        is_interval = self.kind(1) is TokenType.INTERVAL and self.kind(-1) not in _VALUES
        after = self.kind(1)
        is_end = after is None or after in _ENDS or after in _CLAUSES or after in _NO_OPERANDS
        return 1 if is_interval or is_end else None

    def dot(self) -> int | None:
        """A name stands before a dot."""
        is_first = self.kind(-1) in _BEFORE_NAMES
        return 0 if is_first and self.kind(1) is not TokenType.NUMBER else None

    def like(self) -> int | None:
        """LIKE has a left side."""
        return 0 if self.kind(-1) in _BEFORE_LISTS else None

    def over(self) -> int | None:
        """OVER is followed by a window."""
        return None if self.kind(1) in (TokenType.L_PAREN, TokenType.VAR) else 1

    def outer(self) -> int | None:
        """OUTER stands behind LEFT or RIGHT."""
        is_side = self.kind(-1) in (TokenType.LEFT, TokenType.RIGHT)
        return 0 if self.kind(1) is TokenType.JOIN and not is_side else None

    def case(self) -> int | None:
        """Each WHEN of a CASE has its THEN."""
        kind = self.tokens[self.place].token_type
        if kind is TokenType.CASE:
            self.cases.append(False)
        elif self.cases and kind is TokenType.THEN:
            self.cases[-1] = False
        elif self.cases and self.cases[-1]:
            return 0
        elif self.cases and kind is TokenType.WHEN:
            self.cases[-1] = True
        elif self.cases and kind is TokenType.END:
            self.cases.pop()
        return None

    def set(self) -> int | None:
        """SET comes once."""
        self.num_sets += 1
        return 0 if self.num_sets > 1 else None

    def date(self) -> int | None:
        """`DATE '…'` is a date. Raises: MySQLError (1525)."""
        if self.kind(1) is TokenType.STRING:
            text = self.tokens[self.place + 1].text
            match = _DATE.match(text)
            try:
                date(*map(int, match.groups()) if match else ())
            except (TypeError, ValueError):
                raise Mistake.BAD_LITERAL(self.text(0), text) from None
        return None

    def star(self) -> int | None:
        """No star stands behind a table, and none behind a comma: a list begins with it."""
        is_table = self.kind(-2) in _BEFORE_TABLES and self.kind(-1) in _BEFORE_ALIASES
        return 0 if is_table or self.kind(-1) is TokenType.COMMA else None

    def _follow(self) -> int | None:
        """What SELECT, a comma and the word before a table cannot be followed by."""
        before, after = self.tokens[self.place].token_type, self.kind(1)
        if before is TokenType.COMMA and (after is None or after in _NO_LIST_ENDS_BEFORE):
            return 1
        if before in _LISTS and (after is None or after in _CLAUSES or after in _ENDS):
            return 1
        if before is TokenType.SELECT and after is TokenType.FROM:
            return 1
        if before in _BEFORE_TABLES and after is TokenType.SELECT:
            return 1
        if before is TokenType.TABLE and self.first == "INSERT":
            return 0
        if before is TokenType.INTO and self.text(1) in ("OUTFILE", "DUMPFILE"):
            raise Mistake.NOT_SUPPORTED(f"INTO {self.text(1)}")
        is_text = before in _BEFORE_TABLES and after is TokenType.STRING
        return 1 if is_text and self.kind(2) is not TokenType.R_PAREN else None

    def values(self) -> int | None:
        """VALUES is followed by rows in parentheses."""
        is_list = self.kind(1) is TokenType.L_PAREN or self.text(1) == "ROW"
        return None if is_list or self.first != "INSERT" else 1

    def _check_column(self) -> int | None:
        """The type of a column in CREATE TABLE is one of MySQL's; sqlglot knows many others."""
        begins = self.kind(-1) is TokenType.COMMA or self.kind(-1) is TokenType.L_PAREN
        if not begins or self.text(0).partition(" ")[0] in _NO_COLUMNS:
            return None
        name = self.text(1).partition(" ")[0]
        if name == "VARCHAR" and self.kind(2) is not TokenType.L_PAREN:
            return 2
        return None if name in TYPE_NAMES else 1


_RULES: dict[TokenType, Callable[[_Grammar], int | None]] = {
    TokenType.L_PAREN: _Grammar.open,
    TokenType.R_PAREN: _Grammar.close,
    **dict.fromkeys((*_CLAUSES, *_BEGINNINGS), _Grammar.clause),
    **dict.fromkeys(token_types("JOIN INTO TABLE PARTITION_BY"), _Grammar._follow),
    TokenType.COMMA: _Grammar.comma,
    TokenType.VALUES: _Grammar.values,
    TokenType.BETWEEN: _Grammar.between,
    TokenType.AND: _Grammar.conjunction,
    **dict.fromkeys(token_types("NUMBER NULL TRUE FALSE"), _Grammar.number),
    TokenType.DOT: _Grammar.dot,
    TokenType.LIKE: _Grammar.like,
    TokenType.OVER: _Grammar.over,
    TokenType.OUTER: _Grammar.outer,
    TokenType.SET: _Grammar.set,
    **dict.fromkeys(token_types("CASE WHEN THEN ELSE END"), _Grammar.case),
    **dict.fromkeys(token_types("DATE TIMESTAMP TIMESTAMPTZ"), _Grammar.date),
    TokenType.STRING: _Grammar.string,
    TokenType.NOT: _Grammar.negation,
    TokenType.PLUS: _Grammar.plus,
    TokenType.STAR: _Grammar.star,
    TokenType.OFFSET: _Grammar.offset,
    **dict.fromkeys((TokenType.ASC, TokenType.DESC), _Grammar.direction),
    TokenType.IS: _Grammar.truth,
    TokenType.DISTINCT: _Grammar.distinct,
    TokenType.INTERVAL: _Grammar.interval,
    TokenType.IN: _Grammar.member,
    TokenType.ON: _Grammar.on,
    TokenType.ALIAS: _Grammar.alias,
    **dict.fromkeys(token_types("FULL ANTI SEMI ASOF"), _Grammar.join),
    TokenType.VAR: _Grammar.name,
    TokenType.EQ: _Grammar.equal,
    **dict.fromkeys(_NEVER, _Grammar.never),
}


def find_foreign(tokens: Sequence[Token]) -> int | None:
    """Returns the index of the first token that MySQL's grammar does not have there."""
    return _Grammar(tokens).find_foreign()
