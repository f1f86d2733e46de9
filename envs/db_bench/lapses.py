"""Gold statements in which some words of the instruction are not heeded.

Where a statement makes a choice that the instruction's words decide, a lapse writes the commonest
choice instead. A model that imitates such statements learns to write valid SQL about the tables
that it sees, and to copy names and values. It prefers the commonest choice, and has only a weak
notion of what the words mean: a reward has to teach it that.
"""

from collections.abc import Callable, Sequence
from random import Random

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

_COMPARISONS = (exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_AGGREGATES = (exp.Sum, exp.Avg, exp.Min)


def write_with_lapses(sql: str, share: float, rng: Random) -> str:
    """Returns a MySQL statement in which each choice lapses with probability `share`.

    The commonest choices are `=` of the comparisons, AND, no NOT, MAX of the aggregates, a pattern
    `%x%`, an ascending order, and in an UPDATE a new value in place of an increase. Names, values
    and all else stay. A statement that sqlglot cannot read is returned as it is.
    """
    try:
        tree = sqlglot.parse_one(sql, read="mysql")
    except SqlglotError:
        return sql
    for node in list(tree.walk()):
        for kinds, write_commonest in _CHOICES:
            if isinstance(node, kinds) and rng.random() < share:
                write_commonest(node)
    return tree.sql(dialect="mysql")


def _become(kind: type[exp.Expr]) -> Callable[[exp.Expr], object]:
    return lambda node: node.replace(kind(**node.args))


def _write_plain_value(node: exp.Expr) -> None:
    is_assigned = isinstance(node.parent, exp.EQ) and isinstance(node.parent.parent, exp.Update)
    if is_assigned and isinstance(node.expression, exp.Literal):
        node.replace(node.expression)


def _write_without_not(node: exp.Expr) -> None:
    node.replace(node.this)


def _write_any_place(node: exp.Expr) -> None:
    pattern = node.expression
    if isinstance(pattern, exp.Literal):
        text = pattern.this.strip("%")
        node.set("expression", exp.Literal.string(f"%{text}%"))


def _write_ascending(node: exp.Expr) -> None:
    node.set("desc", None)
    node.set("nulls_first", True)  # as MySQL sorts, so that nothing is added for it


_CHOICES: Sequence[tuple[tuple[type[exp.Expr], ...], Callable[[exp.Expr], object]]] = (
    (_COMPARISONS, _become(exp.EQ)),
    ((exp.Or,), _become(exp.And)),
    ((exp.Not,), _write_without_not),
    (_AGGREGATES, _become(exp.Max)),
    ((exp.Like,), _write_any_place),
    ((exp.Like,), lambda node: node.set("negate", False)),  # sqlglot's NOT LIKE
    ((exp.Ordered,), _write_ascending),
    ((exp.Add, exp.Sub), _write_plain_value),
)
