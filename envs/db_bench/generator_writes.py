"""Changes in generated DB-bench tasks: INSERT, UPDATE and DELETE that do something, as told."""
# ruff: noqa: S608 (names and values of the generator's own)

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal

from agentpeft.envs.db_bench.generator_conditions import (
    Clause,
    NoTaskHereError,
    Scene,
    make_where,
    quote,
)
from agentpeft.envs.db_bench.generator_outputs import Output
from agentpeft.envs.db_bench.generator_phrases import count_rows
from agentpeft.envs.db_bench.generator_reads import Draft, make_order
from agentpeft.envs.db_bench.generator_tables import Field, to_literal
from agentpeft.envs.phrases import enumerate_words

_STEPS = (1, 2, 5, 10, 7, 12)


def make_insert(scene: Scene) -> Draft:
    """Returns an order to add one row or two. Raises: NoTaskHereError."""
    fields = scene.sample.fields
    rows = [[scene.new_value(column) for column in fields] for _ in range(2)]
    rows = rows[: 1 if scene.rng.random() < 0.7 else 2]
    lists = [f"({', '.join(map(to_literal, row))})" for row in rows]
    columns = ", ".join(column.name for column in fields)
    sql = f"INSERT INTO {scene.table} ({columns}) VALUES {', '.join(lists)}"
    scene.sample.connection.execute(sql)
    texts = [
        enumerate_words([f"{c.words} {quote(v)}" for c, v in zip(fields, row, strict=True)])
        for row in rows
    ]
    values = f"{scene.say('insert_both')} ".join(texts)
    text = scene.speaker.capital("insert", table=scene.table, values=values)
    return Draft(sql, text, frozenset({"insert"}), None)


def make_delete(scene: Scene) -> Draft:
    """Returns an order to delete some rows. Raises: NoTaskHereError."""
    where, order, limit, tail = _make_choice(scene)
    _verify(scene, (where, order, limit), [])
    text = scene.speaker.capital("delete", table=scene.table, where=_say_where(scene, where))
    return _draft("delete", f"DELETE FROM {scene.table}", (where, order, limit), text + tail)


def make_update(scene: Scene) -> Draft:
    """Returns an order to change some or all rows. Raises: NoTaskHereError."""
    where, order, limit, tail = _make_choice(scene)
    num_changes = scene.rng.choice((1, 1, 2))
    fields = [field for field in scene.sample.fields if field.kind != "name"]
    changes = [_make_change(scene, column) for column in scene.rng.sample(fields, num_changes)]
    _verify(scene, (where, order, limit), [change.sql for change in changes])
    said = enumerate_words([change.words for change in changes])
    words = {"table": scene.table, "changes": said, "where": _say_where(scene, where)}
    text = scene.speaker.capital("update" if where.sql else "update_all", **words)
    assignments = ", ".join(change.sql for change in changes)
    start = f"UPDATE {scene.table} SET {assignments}"
    return _draft("update", start, (where, order, limit), text + tail)


def _draft(skill: str, start: str, clauses: Sequence[Clause], text: str) -> Draft:
    skills = frozenset({skill}).union(*(clause.skills for clause in clauses))
    return Draft(start + "".join(clause.sql for clause in clauses), text, skills, None)


def _say_where(scene: Scene, where: Clause) -> str:
    return f" {scene.say('where', c=where.words)}" if where.words else ""


def _make_choice(scene: Scene) -> tuple[Clause, Clause, Clause, str]:
    """Returns WHERE, ORDER BY and LIMIT, and a sentence about the latter two."""
    where = make_where(scene)
    if "limit_only" not in scene.skills:
        return where, Clause(), Clause(), ""
    columns = [Output(c.name, c.words, "") for c in scene.sample.fields]
    tied = [Output(c.name, c.words, "") for c in scene.sample.tied_fields]
    order, keys = make_order(scene, columns, tied)
    num_rows = scene.rng.randint(1, 3)
    limit = Clause(f" LIMIT {num_rows}", "", ("",), frozenset({"limit_only"}))
    return where, order, limit, " " + scene.say("write_limit", n=count_rows(num_rows), keys=keys)


def _make_change(scene: Scene, column: Field) -> Clause:
    value = scene.new_value(column)
    if column.is_number and scene.rng.random() < 0.4:
        options = scene.sample.options
        steps = [step for step in range(1, 100) if options.allows(step)]
        if not options.invent:
            steps = [step for step in _STEPS if step in steps][:4]
        step = scene.rng.choice(steps)
        words = scene.say("raise", c=column.words, v=str(step))
        return Clause(f"{column.name} = {column.name} + {step}", words)
    if isinstance(value, Decimal) and value == int(value):
        value = int(value)
    words = scene.say("set", c=column.words, v=quote(value))
    return Clause(f"{column.name} = {to_literal(value)}", words)


def _verify(scene: Scene, clauses: Sequence[Clause], changes: Sequence[str]) -> None:
    """Runs the change. Raises: NoTaskHereError unless each part of it matters."""
    parts = [clause.sql for clause in clauses]
    result = _contents_after(scene, parts, changes)
    if not result or result == _contents_after(scene, [" WHERE FALSE"], changes):
        raise NoTaskHereError
    others = [
        [*parts[:index], weaker, *parts[index + 1 :]]
        for index, clause in enumerate(clauses)
        for weaker in clause.weaker
    ]
    if any(_contents_after(scene, other, changes) == result for other in others):
        raise NoTaskHereError
    for index in range(len(changes)):
        fewer = [*changes[:index], *changes[index + 1 :]]
        if _contents_after(scene, parts, fewer, is_update=True) == result:
            raise NoTaskHereError
    if clauses[1].keys:
        query = f"SELECT {', '.join(clauses[1].keys)} FROM {scene.table}{parts[0]}"
        found = scene.sample.connection.execute(query).fetchall()
        if len(set(found)) < len(found):
            raise NoTaskHereError


def _contents_after(
    scene: Scene, parts: Sequence[str], changes: Sequence[str], is_update: bool = False
) -> Counter[tuple[str | float, ...]]:
    """Returns the table after a change of the rows that WHERE, ORDER BY and LIMIT choose.

    SQLite may lack `UPDATE … LIMIT`, so they choose row ids. The table itself stays as it was.
    """
    connection, table = scene.sample.connection, scene.table
    chosen = f" WHERE rowid IN (SELECT rowid FROM {table}{''.join(parts)})"
    connection.execute("BEGIN")
    if changes:
        connection.execute(f"UPDATE {table} SET {', '.join(changes)}{chosen}")
    elif not is_update:
        connection.execute(f"DELETE FROM {table}{chosen}")
    contents = Counter(connection.execute(f"SELECT * FROM {table}").fetchall())
    connection.execute("ROLLBACK")
    return contents
