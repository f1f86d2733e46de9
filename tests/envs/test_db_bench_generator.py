"""Generated tasks have the skills asked for, and every part of their gold SQL matters."""

import itertools
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import sqlglot
from sqlglot import exp

from agentpeft.envs import SettingsError, Taskset, UnknownTaskError
from agentpeft.envs.db_bench.backends.opening import open_database
from agentpeft.envs.db_bench.backends.protocol import DatabaseLimits
from agentpeft.envs.db_bench.generator.attempt import Attempt
from agentpeft.envs.db_bench.generator.generator import (
    PHRASES,
    DBBenchGenerator,
    find_conflict,
)
from agentpeft.envs.db_bench.generator.outputs import (
    column_output,
    make_aggregate,
    make_calculation,
)
from agentpeft.envs.db_bench.generator.reads import Selection
from agentpeft.envs.db_bench.generator.tables import TableOptions, make_sample
from agentpeft.envs.db_bench.skills import SKILLS, detect_skills
from agentpeft.envs.tasks.phrases import Speaker
from agentpeft.envs.tasks.task_random import TaskRandom

UNAVOIDABLE = {
    "delete": {"where_single_condition"},
    "having_single_condition_with_aggregate": {"group_by_single_column"},
    "having_multiple_conditions_with_aggregate": {"group_by_single_column"},
    "having_aggregate_calculation": {
        "group_by_single_column",
        "having_single_condition_with_aggregate",
    },
    "limit_only": {"order_by_single_column"},
    "limit_and_offset": {"order_by_single_column"},
    "subquery_single": {"where_single_condition"},
    "subquery_multiple": {"where_multiple_conditions", "where_single_condition"},
    "subquery_nested": {"where_single_condition"},
}
WRITES = {"insert", "update", "delete"}
PAIRS = [pair for pair in itertools.combinations(SKILLS, 2) if find_conflict(pair) is None]


@pytest.fixture(scope="module")
def database():
    opened = open_database("sqlite", DatabaseLimits())
    yield opened
    opened.close()


def run(database, task, sql):
    session = database.open(task.tables)
    result = session.execute(sql)
    assert result.error is None, f"{result.error}: {sql}"
    rows = session.read_table(task.tables[0].name).rows if task.is_write else result.rows
    session.close()
    return list(rows)


@pytest.mark.parametrize("skill", SKILLS)
def test_a_single_skill_task_has_no_skills_but_the_unavoidable(skill):
    for task in Taskset.generate(DBBenchGenerator([skill]), 40, seed=1):
        assert task.skills == detect_skills(task.gold_sql)
        others = set(task.skills) - {skill, "select"}
        assert skill in task.skills
        assert others <= UNAVOIDABLE.get(skill, set())


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_a_task_for_two_skills_has_both(pair):
    generator = DBBenchGenerator(pair, skill_mode="all")
    task = generator.draw(np.random.default_rng(3))
    assert task.skills == detect_skills(task.gold_sql)
    assert set(pair) <= set(task.skills)


def test_sets_of_skills_have_every_skill_that_goes_with_others():
    generator = DBBenchGenerator(skill_mode="all", num_skills=2)
    tasks = Taskset.generate(generator, 600, seed=13)
    drawn = {skill for task in tasks for skill in task.task_id.split("/")[0].split("+")}
    assert drawn == set(SKILLS) - {"insert"}


@pytest.mark.parametrize("skill", SKILLS)
def test_the_label_is_what_the_gold_sql_gives_with_types(skill, database):
    for task in Taskset.generate(DBBenchGenerator([skill]), 15, seed=2):
        rows = run(database, task, task.gold_sql)
        if task.is_write:
            assert Counter(rows) != Counter(task.tables[0].rows)
            assert rows
            continue
        assert Counter(map(repr, rows)) == Counter(map(repr, task.label))
        if "order_by" in " ".join(task.skills):
            assert rows == list(task.label)


def leave_one_out(sql):
    """Yields the statement without its WHERE, HAVING, ORDER BY, LIMIT or one condition of them."""
    tree = sqlglot.parse_one(sql, read="mysql")
    for part in ("where", "having", "order", "limit", "offset"):
        if tree.args.get(part):
            copy = tree.copy()
            copy.set(part, None)
            copy.set("offset", None if part == "limit" else copy.args.get("offset"))
            yield copy.sql(dialect="mysql")
    connectors = len(list(tree.find_all(exp.Connector)))
    for index, side in itertools.product(range(connectors), ("left", "right")):
        copy = tree.copy()
        connector = list(copy.find_all(exp.Connector))[index]
        connector.replace(getattr(connector, side).copy())
        yield copy.sql(dialect="mysql")


@pytest.mark.parametrize("skill", [s for s in SKILLS if "_" in s and "group" not in s])
def test_leaving_out_any_part_changes_the_answer(skill, database):
    for task in Taskset.generate(DBBenchGenerator([skill]), 4, seed=4):
        gold = run(database, task, task.gold_sql)
        for sql in leave_one_out(task.gold_sql):
            rows = run(database, task, sql)
            if "order_by" not in " ".join(task.skills):
                assert Counter(rows) != Counter(gold), f"{sql} is as good as {task.gold_sql}"
            assert rows != gold, f"{sql} is as good as {task.gold_sql}"


def test_a_task_is_remade_from_its_id_in_another_process():
    tasks = Taskset.generate(DBBenchGenerator(max_phrasings=2), 20, seed=5)
    code = (
        "from agentpeft.envs.db_bench.generator.generator import DBBenchGenerator as G;"
        "import sys; [print(repr(G().get(i))) for i in sys.argv[1:]]"
    )
    ids = [task.task_id for task in tasks]
    command = [sys.executable, "-c", code, *ids]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [repr(task) for task in tasks], done.stderr


@pytest.mark.parametrize(
    "task_id",
    ["", "select", "selec/all/1", "select+select/all/1", "select/0/1", "select/all/x",
     "insert+limit_only/all/1", "limit_only+select/all/1", "select/all/01", "dev#5"],
)  # fmt: skip
def test_what_is_no_id_is_unknown(task_id):
    with pytest.raises(UnknownTaskError):
        DBBenchGenerator().get(task_id)


@pytest.mark.parametrize(
    ("skills", "reason"),
    [
        (["insert", "group_by_single_column"], "INSERT has no such part"),
        (["limit_only", "limit_and_offset"], "a LIMIT has an offset or none"),
        (["delete", "order_by_single_column"], "without limit_only"),
        (["insert", "delete"], "a statement is one of them"),
    ],
)
def test_contradictory_skills_are_an_error_that_says_why(skills, reason):
    with pytest.raises(SettingsError, match=reason):
        DBBenchGenerator(skills, skill_mode="all")
    DBBenchGenerator(skills)  # one at a time they are fine


@pytest.mark.parametrize(
    "settings",
    [
        {"skills": []},
        {"skills": ["sleect"]},
        {"skill_mode": "some"},
        {"num_skills": 2},
        {"num_skills": 23, "skill_mode": "all"},
        {"max_phrasings": 0},
        {"skill_mode": "all"},
    ],
)
def test_wrong_settings_are_errors(settings):
    with pytest.raises(SettingsError):
        DBBenchGenerator(**settings)


def test_one_phrasing_says_a_thing_in_one_way_and_all_in_several():
    def openings(limit):
        generator = DBBenchGenerator(["select"], max_phrasings=limit)
        return {t.instruction.split()[0] for t in Taskset.generate(generator, 60, seed=6)}

    assert openings(1) == {"Return"}
    assert len(openings(None)) >= 4


def test_each_thing_is_said_in_at_least_four_ways_that_use_the_same_words():
    for name, phrases in PHRASES.items():
        assert len(set(phrases)) >= 4, name
        blanks = [Counter(re.findall(r"{\w+}", phrase)).keys() for phrase in phrases]
        assert all(blank == blanks[0] for blank in blanks), name


@pytest.mark.parametrize("skill", [s for s in SKILLS if "order_by" in s or "limit" in s])
def test_an_ordered_answer_is_not_the_same_backwards(skill):
    for task in Taskset.generate(DBBenchGenerator([skill]), 60, seed=11):
        assert len(task.label) == 1 or task.label != task.label[::-1]


def test_an_instruction_has_a_word_for_each_selected_column():
    for task in Taskset.generate(DBBenchGenerator(["column_alias", "select"]), 60, seed=12):
        for column in sqlglot.parse_one(task.gold_sql, read="mysql").find_all(exp.Column):
            spoken = column.name.replace("num_", "number of ").replace("_", " ")
            assert f"the {spoken}" in task.instruction
            if column.parent.alias:
                assert column.name in column.parent.alias


@pytest.mark.parametrize("max_columns", [3, 4])
@pytest.mark.parametrize("skill", [skill for skill in SKILLS if skill not in WRITES])
def test_who_is_asked_for_all_columns_is_right_with_those_of_the_table(skill, max_columns):
    generator = DBBenchGenerator([skill], max_columns=max_columns)
    for task in Taskset.generate(generator, 100, seed=5):
        if "all columns" in task.instruction:
            outputs = sqlglot.parse_one(task.gold_sql, read="mysql").expressions
            if not isinstance(outputs[0], exp.Star):
                names = [output.unalias().name for output in outputs]
                assert names == [column.name for column in task.tables[0].columns]


def test_tasks_vary():
    tasks = Taskset.generate(DBBenchGenerator(), 400, seed=7)
    assert len({task.tables[0].name for task in tasks}) > 200
    assert len({tuple(c.name for c in task.tables[0].columns) for task in tasks}) > 200
    types = Counter(c.type.partition("(")[0] for t in tasks for c in t.tables[0].columns)
    assert set(types) == {"INT", "VARCHAR", "TEXT", "DECIMAL", "FLOAT", "DOUBLE", "DATE"}
    assert all(6 <= len(task.tables[0].rows) <= 14 for task in tasks)
    assert len({task.instruction for task in tasks}) == 400


def test_the_same_rng_state_draws_the_same_task():
    first, second = (DBBenchGenerator().draw(np.random.default_rng(8)) for _ in "ab")
    assert first == second
    assert DBBenchGenerator().draw(np.random.default_rng(9)) != first


def test_no_task_depends_on_the_order_of_the_rows(database):
    for task in Taskset.generate(DBBenchGenerator(["limit_only"]), 20, seed=10):
        table = task.tables[0]
        backwards = replace(task, tables=(replace(table, rows=table.rows[::-1]),))
        assert run(database, backwards, task.gold_sql) == list(task.label)


@pytest.mark.parametrize(
    "order", ["order_by_single_column", "limit_only", "where_single_condition"]
)
def test_an_alias_is_in_gold_sql_where_all_columns_are_asked_for(order):
    """With few columns a query often has all of them, and `SELECT *` can name none."""
    generator = DBBenchGenerator(["column_alias", order], skill_mode="all", max_columns=3)
    for task in Taskset.generate(generator, 60, seed=0):
        alias = re.search(r" AS (\w+)", task.gold_sql)
        assert alias, task.gold_sql
        assert f"`{alias[1]}`" in task.instruction


def test_threads_make_the_same_tasks_as_one():
    rng = np.random.default_rng(3)
    ids = [DBBenchGenerator().draw(rng).task_id for _ in range(60)]
    generator = DBBenchGenerator()
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(generator.get, ids * 2))
    assert together == [generator.get(task_id) for task_id in ids * 2]


def test_what_a_query_computes_is_what_sqlite_computes():
    rng = TaskRandom("queries")
    database = sqlite3.connect(":memory:")
    for _ in range(200):
        sample = make_sample(rng, ("order_by_single_column",), TableOptions())
        attempt = Attempt(rng, Speaker(PHRASES, rng, None), sample, frozenset())
        row_mask = 1 + rng.below(sample.full_mask)
        order = tuple(
            (column_output(attempt, field), rng.random() < 0.5)
            for field in rng.sample(sample.fields, rng.below(3))
        )
        first, count = rng.below(4), rng.below(6)
        columns = ", ".join(
            f"{field.name} {'REAL' if field.is_number else 'TEXT COLLATE NOCASE'}"
            for field in sample.fields
        )
        marks = ", ".join("?" * len(sample.fields))
        database.execute(f"CREATE TABLE t ({columns})")
        database.executemany(f"INSERT INTO t VALUES ({marks})", sample.stored_rows)
        ids = [str(index + 1) for index in range(len(sample.table.rows)) if row_mask >> index & 1]
        terms = [f"{out.sql} {'DESC' if is_descending else 'ASC'}" for out, is_descending in order]
        query = Selection(row_mask, order=order, cut=slice(first, first + count))
        assert query.select_groups() == [
            [index]
            for (index,) in database.execute(
                f"SELECT rowid - 1 FROM t WHERE rowid IN ({', '.join(ids)}) "
                f"ORDER BY {', '.join([*terms, 'rowid'])} LIMIT {count} OFFSET {first}"
            )
        ]
        group = sample.categories[0]
        measures = [make_aggregate(attempt)]
        measures += [make_calculation(attempt)] if len(sample.numbers) > 1 else []
        grouped = Selection(row_mask, ([text.lower() for text in sample.stored(group)],))
        computed = [
            tuple(out.compute(rows) for out in measures) for rows in grouped.select_groups()
        ]
        assert (
            computed
            == database.execute(
                f"SELECT {', '.join(out.sql for out in measures)} FROM t "
                f"WHERE rowid IN ({', '.join(ids)}) GROUP BY {group.name}"
            ).fetchall()
        )
        database.execute("DROP TABLE t")


def test_a_curriculum_goes_from_one_skill_to_several():
    stream = DBBenchGenerator.curriculum(0, tasks_per_stage=5, max_skills=3)
    wanted = [len(task.task_id.split("/")[0].split("+")) for task in stream]
    assert wanted == [1] * 5 + [2] * 5 + [3] * 5
