"""The answers that a gold query allows: ties, missing orders, and limits that cut them."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from agentpeft.envs.db_bench.backends.protocol import Database, Row, Table, Value
from agentpeft.envs.db_bench.grading.matching import is_sub_bag
from agentpeft.envs.db_bench.tasks import DBBenchTask

_MYSQL = sqlglot.Dialect.get_or_raise("mysql")


@dataclass(frozen=True)
class GoldRows:
    """The rows a query could return: `count` of `rows` from `offset` on, ties in any order.

    `ties[i]` numbers the group of rows that the query's order does not tell apart, ascending; a
    query without ORDER BY has one group.
    """

    rows: tuple[Row, ...]
    ties: tuple[int, ...]
    offset: int
    count: int

    def allows(self, answer: Sequence[Row]) -> bool:
        """Returns whether some execution of the query could have given `answer`."""
        if len(answer) != self.count:
            return False
        answered, possible = defaultdict(list), defaultdict(list)
        for tie, row in zip(self.ties[self.offset :], answer, strict=False):
            answered[tie].append(row)
        for tie, row in zip(self.ties, self.rows, strict=True):
            possible[tie].append(row)
        return all(is_sub_bag(rows, possible[tie]) for tie, rows in answered.items())


@dataclass(frozen=True)
class _Plan:
    """A gold query without its limit and with its order keys added as last columns."""

    sql: str
    key_columns: tuple[int, ...]
    num_added: int
    is_ordered: bool
    offset: int
    limit: int | None


def compute_gold_rows(sql: str, tables: Sequence[Table], database: Database) -> GoldRows | None:
    """Returns the possible results of `sql` on fresh tables; None if it cannot be analysed or run.

    Raises: EnvFault.
    """
    plan = _plan_query(sql)
    return None if plan is None else _run_plan(plan, tables, database)


def _run_plan(plan: _Plan, tables: Sequence[Table], database: Database) -> GoldRows | None:
    with closing(database.open(tables)) as session:
        result = session.execute(plan.sql)
    if result.error is not None or result.is_cut:
        return None
    keys = [tuple(map(_fold, (row[column] for column in plan.key_columns))) for row in result.rows]
    rows = tuple(row[: len(row) - plan.num_added] for row in result.rows)
    available = max(0, len(rows) - plan.offset)
    count = available if plan.limit is None else min(plan.limit, available)
    return GoldRows(rows, _number_ties(keys), plan.offset, count)


def compute_choices(task: DBBenchTask, label: tuple[Row, ...], database: Database) -> GoldRows:
    """Returns the possible results of a read task's query; `label` alone if the two disagree.

    The label's order counts where the query has one, or cannot be analysed. Raises: EnvFault.
    """
    plan = None if task.gold_sql is None else _plan_query(task.gold_sql)
    if plan is not None and (plan.is_ordered or plan.limit is not None):
        gold_rows = _run_plan(plan, task.tables, database)
        if gold_rows is not None and gold_rows.allows(label):
            return gold_rows
    is_ordered = task.gold_sql is not None and (plan is None or plan.is_ordered)
    ties = tuple(range(len(label))) if is_ordered else (0,) * len(label)
    return GoldRows(label, ties, 0, len(label))


def _number_ties(keys: Sequence[tuple[Value, ...]]) -> tuple[int, ...]:
    ties: list[int] = []
    for index, key in enumerate(keys):
        is_new = index > 0 and key != keys[index - 1]
        ties.append((ties[-1] if ties else 0) + is_new)
    return tuple(ties)


def _fold(value: Value) -> Value:
    return value.casefold() if isinstance(value, str) else value


def _plan_query(sql: str) -> _Plan | None:
    try:
        query = sqlglot.parse_one(sql, read=_MYSQL)
    except (SqlglotError, RecursionError):
        return None
    while isinstance(query, exp.Subquery) and query.is_wrapper:
        query = query.this
    if not isinstance(query, exp.Query):
        return None
    limit, offset = query.args.get("limit"), query.args.get("offset")
    counts = [_get_count(node) for node in (limit, offset)]
    if (limit is not None and counts[0] is None) or (offset is not None and counts[1] is None):
        return None
    order = query.args.get("order")
    query.set("limit", None)
    query.set("offset", None)
    key_columns: list[int] | None = []
    num_added = 0
    if order is not None:
        num_before = len(query.expressions)
        key_columns = _add_keys(query, [ordered.this for ordered in order.expressions])
        num_added = len(query.expressions) - num_before if isinstance(query, exp.Select) else 0
    if key_columns is None:
        return None
    return _Plan(
        _MYSQL.generate(query),
        tuple(key_columns),
        num_added,
        order is not None,
        counts[1] or 0,
        counts[0],
    )


def _get_count(node: exp.Expression | None) -> int | None:
    value = node.args.get("expression") if node is not None else None
    return int(value.name) if isinstance(value, exp.Literal) and value.name.isdigit() else None


def _add_keys(query: exp.Query, keys: Sequence[exp.Expression]) -> list[int] | None:
    """Returns the columns that hold the order keys, appending to a SELECT those it lacks.

    Negative numbers count from the end. None where a key is in no column and none can be added.
    """
    outputs = [name.lower() for name in query.named_selects]
    added: list[exp.Expression] = []
    columns = []
    for key in keys:
        if isinstance(key, exp.Literal) and not key.is_string and key.name.isdigit():
            columns.append(int(key.name) - 1)
        elif isinstance(key, exp.Column) and not key.table and outputs.count(key.name.lower()) == 1:
            columns.append(outputs.index(key.name.lower()))
        elif isinstance(query, exp.Select) and not query.args.get("distinct"):
            columns.append(-1 - len(added))
            added.append(_without_aliases(key, query))
        else:
            return None
    if any(column >= 0 for column in columns) and any(s.is_star for s in query.selects):
        return None
    if isinstance(query, exp.Select):
        for number, key in enumerate(reversed(added)):
            query.append("expressions", exp.alias_(key, f"order_key_{number}"))
    return columns


def _without_aliases(key: exp.Expression, query: exp.Select) -> exp.Expression:
    """Returns a key with the query's column aliases replaced by their expressions."""
    aliases = {
        select.alias.lower(): select.this
        for select in query.expressions
        if isinstance(select, exp.Alias)
    }

    def replace(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Column) and not node.table and node.name.lower() in aliases:
            return exp.Paren(this=aliases[node.name.lower()].copy())
        return node

    return key.copy().transform(replace)
