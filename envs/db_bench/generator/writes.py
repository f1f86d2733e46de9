"""Changes in generated DB-bench tasks: INSERT, UPDATE and DELETE whose every part matters."""
# ruff: noqa: S608 (names and values of the generator's own)

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from agentpeft.envs.db_bench.generator.attempt import Attempt
from agentpeft.envs.db_bench.generator.conditions import Clause, make_where, quote
from agentpeft.envs.db_bench.generator.outputs import column_output
from agentpeft.envs.db_bench.generator.reads import (
    OrderKeys,
    Selection,
    count_rows,
    limit_clause,
    list_weaker,
    make_order,
)
from agentpeft.envs.db_bench.generator.tables import Field, StoredRow, to_literal, to_stored
from agentpeft.envs.db_bench.tasks import DBBenchTask
from agentpeft.envs.tasks.phrases import enumerate_words
from agentpeft.envs.tasks.skill_generator import NoTaskHereError

_STEPS = (1, 2, 5, 10, 7, 12)


_Choice = tuple[Clause[int], Clause[OrderKeys], Clause[slice]]


@dataclass(frozen=True)
class _Change:
    """An assignment of an UPDATE: `of` returns the new value of the column at `index`."""

    sql: str
    words: str
    index: int
    of: Callable[[str | float], str | float]


def insert(attempt: Attempt) -> DBBenchTask:
    """Returns an order to add one row or two. Raises: NoTaskHereError."""
    fields = attempt.sample.fields
    rows = [[attempt.new_value(column) for column in fields] for _ in range(2)]
    rows = rows[: 1 if attempt.rng.random() < 0.7 else 2]
    lists = [f"({', '.join(map(to_literal, row))})" for row in rows]
    columns = ", ".join(column.name for column in fields)
    table = attempt.sample.table.name
    sql = f"INSERT INTO {table} ({columns}) VALUES {', '.join(lists)}"
    texts = [
        enumerate_words([f"{c.words} {quote(v)}" for c, v in zip(fields, row, strict=True)])
        for row in rows
    ]
    values = f"{attempt.say('insert_both')} ".join(texts)
    text = attempt.speaker.capital("insert", table=table, values=values)
    return attempt.make_task(sql, text, ["insert"])


def delete(attempt: Attempt) -> DBBenchTask:
    """Returns an order to delete some rows. Raises: NoTaskHereError."""
    choice, tail = _make_choice(attempt)
    _verify(attempt, choice, [])
    where = _say_where(attempt, choice[0])
    text = attempt.speaker.capital("delete", table=attempt.table, where=where)
    return _draft(attempt, "delete", f"DELETE FROM {attempt.table}", choice, text + tail)


def update(attempt: Attempt) -> DBBenchTask:
    """Returns an order to change some or all rows. Raises: NoTaskHereError."""
    choice, tail = _make_choice(attempt)
    num_changes = attempt.rng.choice((1, 1, 2))
    fields = [field for field in attempt.sample.fields if field.kind != "name"]
    changes = [_make_change(attempt, column) for column in attempt.rng.sample(fields, num_changes)]
    _verify(attempt, choice, changes)
    text = attempt.speaker.capital(
        "update" if choice[0].sql else "update_all",
        table=attempt.table,
        changes=enumerate_words([change.words for change in changes]),
        where=_say_where(attempt, choice[0]),
    )
    assignments = ", ".join(change.sql for change in changes)
    return _draft(
        attempt, "update", f"UPDATE {attempt.table} SET {assignments}", choice, text + tail
    )


def _draft(attempt: Attempt, skill: str, start: str, clauses: _Choice, text: str) -> DBBenchTask:
    skills = frozenset({skill}).union(*(clause.skills for clause in clauses))
    return attempt.make_task(start + "".join(clause.sql for clause in clauses), text, skills)


def _say_where(attempt: Attempt, where: Clause[int]) -> str:
    return f" {attempt.say('where', c=where.words)}" if where.words else ""


def _make_choice(attempt: Attempt) -> tuple[_Choice, str]:
    """Returns WHERE, ORDER BY and LIMIT, and a sentence about the latter two."""
    where = make_where(attempt)
    if "limit_only" not in attempt.skills:
        return (where, Clause("", "", ()), Clause("", "", slice(None))), ""
    columns = [column_output(attempt, field) for field in attempt.sample.fields]
    tied = [column_output(attempt, field) for field in attempt.sample.tied_fields]
    order, keys = make_order(attempt, columns, tied)
    num_rows = attempt.rng.randint(1, 3)
    tail = " " + attempt.say("write_limit", n=count_rows(num_rows), keys=keys)
    return (where, order, limit_clause(num_rows, "")), tail


def _make_change(attempt: Attempt, column: Field) -> _Change:
    value = attempt.new_value(column)
    index = attempt.sample.fields.index(column)
    if column.is_number and attempt.rng.random() < 0.4:
        options = attempt.sample.options
        steps = [step for step in range(1, 100) if options.allows(step)]
        if not options.invent:
            steps = [step for step in _STEPS if step in steps][:4]
        step = attempt.rng.choice(steps)
        words = attempt.say("raise", c=column.words, v=str(step))
        sql = f"{column.name} = {column.name} + {step}"
        return _Change(sql, words, index, lambda stored: float(stored) + step)
    if isinstance(value, Decimal) and value == int(value):
        value = int(value)
    words = attempt.say("set", c=column.words, v=quote(value))
    new = to_stored(column, [value])[0]
    return _Change(f"{column.name} = {to_literal(value)}", words, index, lambda _: new)


def _verify(attempt: Attempt, choice: _Choice, changes: Sequence[_Change]) -> None:
    """Raises: NoTaskHereError unless each part of the change matters."""
    where, order, limit = choice
    if where.effect in where.weaker:
        raise NoTaskHereError
    query = Selection(where.effect, order=order.effect, cut=limit.effect)
    chosen = frozenset(index for [index] in query.select_groups())
    result = _contents_after(attempt, chosen, changes)
    if not result or result == _contents_after(attempt, frozenset(), changes):
        raise NoTaskHereError
    unused = Clause("", "", None)
    for weaker in list_weaker(query, (where, unused, unused, order, limit)):
        others = frozenset(index for [index] in weaker.select_groups())
        if others == chosen or _contents_after(attempt, others, changes) == result:
            raise NoTaskHereError
    if len(changes) == 1 and result == Counter(attempt.sample.stored_rows):
        raise NoTaskHereError
    if len(changes) == 2 and any(_contents_after(attempt, chosen, [c]) == result for c in changes):
        raise NoTaskHereError
    if query.order:
        rows = query._replace(cut=slice(None)).select_groups()
        if len({tuple(key.compute(row) for key, _ in query.order) for row in rows}) < len(rows):
            raise NoTaskHereError


def _contents_after(
    attempt: Attempt, chosen: frozenset[int], changes: Sequence[_Change]
) -> Counter[StoredRow]:
    """Returns the rows after changes to the chosen ones; without changes, these are deleted."""
    rows = attempt.sample.stored_rows
    if not changes:
        return Counter(row for index, row in enumerate(rows) if index not in chosen)
    contents = []
    for index, row in enumerate(rows):
        values = list(row)
        if index in chosen:
            for change in changes:
                values[change.index] = change.of(values[change.index])
        contents.append(tuple(values))
    return Counter(contents)
