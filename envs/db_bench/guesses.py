"""Gold statements with their meaning left open: what each word asks for is drawn at random.

A model that imitates them learns to write valid SQL about the tables it sees, and to copy names and
values from the instruction. It does not learn which operator, direction or aggregate the words
mean. Only a reward can teach it that.
"""

from collections.abc import Callable, Sequence
from random import Random

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_AGGREGATES = (exp.Sum, exp.Avg, exp.Min, exp.Max)
_PATTERNS = ("{}%", "%{}", "%{}%")


def guess_statement(sql: str, rng: Random) -> str:
    """Returns a MySQL statement with each of its choices drawn anew; the right one may come again.

    The choices are a comparison's operator (six), AND or OR, NOT or none before IN and BETWEEN,
    where a LIKE pattern has its `%` (three), SUM, AVG, MIN or MAX, a sort's direction, and whether
    an UPDATE sets a column to a number, adds the number or subtracts it. Names, values and all else
    stay. A statement that sqlglot cannot read is returned as it is.
    """
    try:
        tree = sqlglot.parse_one(sql, read="mysql")
    except SqlglotError:
        return sql
    for node in list(tree.walk()):
        for kinds, draw in _DRAWS:
            if isinstance(node, kinds):
                draw(node, rng)
    return tree.sql(dialect="mysql")


def _draw_comparison(node: exp.Expression, rng: Random) -> None:
    if isinstance(node.parent, exp.Update):
        _draw_assignment(node, rng)
    else:
        _replace(node, rng.choice(_COMPARISONS))


def _draw_assignment(node: exp.Expression, rng: Random) -> None:
    column, value = node.this, node.expression
    number = value.expression if isinstance(value, exp.Add | exp.Sub) else value
    if not isinstance(number, exp.Literal) or number.is_string:
        return
    changed = rng.choice((None, exp.Add, exp.Sub))
    new = number if changed is None else changed(this=column.copy(), expression=number.copy())
    node.set("expression", new.copy())


def _draw_negation(node: exp.Expression, rng: Random) -> None:
    parent, is_negated = node.parent, rng.choice((False, True))
    if isinstance(parent, exp.Not) and not is_negated:
        parent.replace(node.copy())
    elif is_negated and not isinstance(parent, exp.Not):
        node.replace(exp.Not(this=node.copy()))


def _draw_pattern(node: exp.Expression, rng: Random) -> None:
    pattern = node.expression
    if isinstance(pattern, exp.Literal):
        text = rng.choice(_PATTERNS).format(pattern.this.strip("%"))
        node.set("expression", exp.Literal.string(text))


def _draw_direction(node: exp.Expression, rng: Random) -> None:
    is_descending = rng.choice((False, True))
    node.set("desc", is_descending or None)  # False would be written out as ASC
    node.set("nulls_first", not is_descending)  # MySQL's own, so that nothing is added for it


def _replace(node: exp.Expression, kind: type[exp.Expression]) -> None:
    node.replace(kind(**node.args))


_DRAWS: Sequence[tuple[tuple[type[exp.Expression], ...], Callable[..., None]]] = (
    (_COMPARISONS, _draw_comparison),
    ((exp.And, exp.Or), lambda node, rng: _replace(node, rng.choice((exp.And, exp.Or)))),
    ((exp.In, exp.Between), _draw_negation),
    ((exp.Like,), _draw_pattern),
    (_AGGREGATES, lambda node, rng: _replace(node, rng.choice(_AGGREGATES))),
    ((exp.Ordered,), _draw_direction),
)
