"""What is looked at before a statement is parsed: nesting, and what only sqlglot can read."""

from collections.abc import Sequence
from itertools import pairwise

from sqlglot import Token, TokenType

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Mistake

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
_FOREIGN = token_types(
    "DCOLON L_BRACKET L_BRACE PLACEHOLDER COLON ILIKE QUALIFY RETURNING TABLE_SAMPLE FETCH PIVOT "
    "UNPIVOT"
)
_AFTER_NO_COMMA = token_types("STAR FROM WHERE R_PAREN COMMA GROUP_BY ORDER_BY LIMIT")
_BEFORE_TABLES = token_types("FROM JOIN UPDATE INTO TABLE")
_FOREIGN_PAIRS = frozenset(
    {
        (TokenType.SELECT, TokenType.FROM),
        *((TokenType.COMMA, kind) for kind in _AFTER_NO_COMMA),
        *((kind, TokenType.STRING) for kind in _BEFORE_TABLES),
    }
)


def check_nesting(tokens: Sequence[Token]) -> None:
    """Raises: MySQLError (1436, 1690) where something nests too deeply or is too long."""
    if len(tokens) <= MAX_CHAIN and max(len(token.text) for token in tokens) <= MAX_DIGITS:
        return
    chains = [0]
    num_repeated = 0
    for token in tokens:
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


def find_foreign(tokens: Sequence[Token]) -> int | None:
    """Returns the index of the first token that MySQL's grammar does not have there."""
    kinds = [token.token_type for token in tokens]
    has_pairs = not _FOREIGN_PAIRS.isdisjoint(pairwise(kinds))
    if not has_pairs and _FOREIGN.isdisjoint(kinds) and all(t.text != "==" for t in tokens):
        return None
    for index, (before, token) in enumerate(pairwise(tokens), start=1):
        kind = token.token_type
        if kind in _FOREIGN or (kind is TokenType.EQ and token.text == "=="):
            return index
        pair = (before.token_type, kind)
        if pair in _FOREIGN_PAIRS and not (
            kind is TokenType.STRING and _is_last_argument(tokens, index)
        ):
            return index
    return None


def _is_last_argument(tokens: Sequence[Token], index: int) -> bool:
    """Returns whether a string ends a call such as TRIM('x' FROM 'y')."""
    return index + 1 < len(tokens) and tokens[index + 1].token_type is TokenType.R_PAREN
