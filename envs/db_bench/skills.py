"""LifelongAgentBench's 22 SQL skills, and which of them a MySQL statement shows.

A skill is read off the statement's syntax tree, never off its text:

* `select`, `insert`, `update`, `delete`: such a statement, or a SELECT inside of one.
* `where_single_condition`: a WHERE with one comparison; `where_multiple_conditions`: several, all
  joined by AND or all by OR; `where_nested_conditions`: AND and OR mixed, one within the other.
* `group_by_single_column`, `group_by_multiple_columns`: by the number of keys.
* `having_single_condition_with_aggregate`, `having_multiple_conditions_with_aggregate`: a HAVING
  over an aggregate (written out, or by its alias), by the number of comparisons;
  `having_aggregate_calculation`: it calculates with aggregates, as in `MAX(x) - MIN(x) > 5`.
* `order_by_single_column`, `order_by_multiple_columns_same_direction`,
  `order_by_multiple_columns_different_directions`: by number and direction of the keys.
* `limit_only`, `limit_and_offset`: `LIMIT a, b` is the latter.
* `column_alias`, `table_alias`: a selected expression, a table or a derived table is renamed.
* `subquery_single`: exactly one query inside another; `subquery_multiple`: two or more side by
  side; `subquery_nested`: one inside another subquery. Common table expressions are no subqueries.

Every clause counts, those of subqueries too. LifelongAgentBench itself calls any WHERE with three
comparisons nested and looks at clauses of the outermost query only.
"""

from collections.abc import Iterable, Iterator

import sqlglot
from sqlglot import exp

from agentpeft.envs.core.errors import DataError
from agentpeft.envs.tasks.skill_generator import sort_skills

WRITES = ("insert", "delete", "update")
WHERE = ("where_single_condition", "where_multiple_conditions", "where_nested_conditions")
GROUP_BY = ("group_by_single_column", "group_by_multiple_columns")
HAVING_CONDITIONS = (
    "having_single_condition_with_aggregate",
    "having_multiple_conditions_with_aggregate",
)
HAVING = (*HAVING_CONDITIONS, "having_aggregate_calculation")
ORDER_BY_MULTIPLE = (
    "order_by_multiple_columns_same_direction",
    "order_by_multiple_columns_different_directions",
)
ORDER_BY = ("order_by_single_column", *ORDER_BY_MULTIPLE)
LIMIT = ("limit_only", "limit_and_offset")
ALIAS = ("column_alias", "table_alias")
SUBQUERY = ("subquery_single", "subquery_multiple", "subquery_nested")
SKILLS = ("select", *WRITES, *WHERE, *GROUP_BY, *HAVING, *ORDER_BY, *LIMIT, *ALIAS, *SUBQUERY)
"""The names of the skills; tasks list theirs in this order."""

_STATEMENTS: tuple[tuple[type[exp.Expr], str], ...] = (
    (exp.Select, "select"),
    (exp.Insert, "insert"),
    (exp.Delete, "delete"),
    (exp.Update, "update"),
)
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod)


def check_skills(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the names once each, in the order of `SKILLS`. Raises: SettingsError."""
    return sort_skills(names, SKILLS)


def detect_skills(sql: str) -> tuple[str, ...]:
    """Returns the skills that a MySQL statement shows, in the order of `SKILLS`.

    Raises: DataError where it cannot be parsed.

    >>> detect_skills("SELECT name FROM staff WHERE age > 30 LIMIT 2, 5")
    ('select', 'where_single_condition', 'limit_and_offset')
    """
    try:
        tree = sqlglot.parse_one(sql, read="mysql")
    except (sqlglot.ParseError, sqlglot.TokenError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"not a MySQL statement ({reason}): {sql:.80}") from None
    skills = {skill for node in tree.walk() for skill in _node_skills(node)}
    skills.update(_subquery_skills(tree))
    return tuple(skill for skill in SKILLS if skill in skills)


def _node_skills(node: exp.Expr) -> Iterator[str]:
    yield from (skill for kind, skill in _STATEMENTS if isinstance(node, kind))
    if isinstance(node, exp.Where):
        yield _where_skill(node)
    elif isinstance(node, exp.Group) and node.expressions:
        yield f"group_by_{'single_column' if len(node.expressions) == 1 else 'multiple_columns'}"
    elif isinstance(node, exp.Having):
        yield from _having_skills(node)
    elif isinstance(node, exp.Order) and not isinstance(node.parent, exp.Window | exp.GroupConcat):
        yield _order_skill(node)
    elif isinstance(node, exp.Limit):
        has_offset = node.args.get("offset") or (node.parent and node.parent.args.get("offset"))
        yield "limit_and_offset" if has_offset else "limit_only"
    elif isinstance(node, exp.TableAlias) and not isinstance(node.parent, exp.CTE):
        yield "table_alias"
    if isinstance(node, exp.Select) and any(isinstance(e, exp.Alias) for e in node.expressions):
        yield "column_alias"


def _where_skill(where: exp.Where) -> str:
    joins = {type(node) for node in _conditions(where.this) if isinstance(node, exp.Connector)}
    if not joins:
        return "where_single_condition"
    return "where_multiple_conditions" if len(joins) == 1 else "where_nested_conditions"


def _conditions(condition: exp.Expr) -> Iterator[exp.Expr]:
    """Yields the connectors and the comparisons of a boolean expression."""
    if isinstance(condition, exp.Paren | exp.Not):
        yield from _conditions(condition.this)
        return
    yield condition
    if isinstance(condition, exp.Connector):
        yield from _conditions(condition.left)
        yield from _conditions(condition.right)


def _having_skills(having: exp.Having) -> Iterator[str]:
    condition = _own_condition(having)
    if not condition.find(exp.AggFunc):
        return
    is_single = not any(isinstance(node, exp.Connector) for node in _conditions(condition))
    yield f"having_{'single_condition' if is_single else 'multiple_conditions'}_with_aggregate"
    if any(node.find(exp.AggFunc) for node in condition.find_all(*_ARITHMETIC)):
        yield "having_aggregate_calculation"


def _own_condition(having: exp.Having) -> exp.Expr:
    """Returns a HAVING's own condition: no subqueries, and no aliases of selected expressions."""
    select = having.parent
    selected = select.expressions if isinstance(select, exp.Select) else []
    aliases = {e.alias.lower(): e.this for e in selected if isinstance(e, exp.Alias)}

    def replace(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Query):
            return exp.Null()
        if isinstance(node, exp.Column) and not node.table and node.name.lower() in aliases:
            replaced: exp.Expr = aliases[node.name.lower()].copy()
            return replaced
        return node

    condition: exp.Expr = having.this
    return condition.copy().transform(replace)


def _order_skill(order: exp.Order) -> str:
    directions = {bool(key.args.get("desc")) for key in order.expressions}
    if len(order.expressions) == 1:
        return "order_by_single_column"
    direction = "same_direction" if len(directions) == 1 else "different_directions"
    return f"order_by_multiple_columns_{direction}"


def _subquery_skills(tree: exp.Expr) -> Iterator[str]:
    subqueries = [node for node in tree.find_all(exp.Select) if _is_subquery(node)]
    inside = [_enclosing_subquery(node) for node in subqueries]
    if len(subqueries) == 1:
        yield "subquery_single"
    if len({id(outer) for outer in inside}) < len(subqueries):
        yield "subquery_multiple"
    if any(outer is not None for outer in inside):
        yield "subquery_nested"


def _is_subquery(select: exp.Expr) -> bool:
    """Returns whether a SELECT is a subquery, or the first part of a subquery that is a union."""
    parent = select.parent
    while isinstance(parent, exp.SetOperation | exp.Subquery):
        if isinstance(parent, exp.SetOperation) and select.arg_key == "expression":
            return False
        if isinstance(parent, exp.Subquery) and not isinstance(parent.parent, exp.SetOperation):
            return parent.parent is not None
        select, parent = parent, parent.parent
    return parent is not None and not isinstance(parent, exp.Insert | exp.CTE | exp.Create)


def _enclosing_subquery(select: exp.Expr) -> exp.Expr | None:
    node = select.parent
    while node is not None:
        if isinstance(node, exp.Select) and _is_subquery(node):
            return node
        node = node.parent
    return None
