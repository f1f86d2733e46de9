from contextlib import closing
from decimal import Decimal

import pytest

from agentpeft.envs import DataError
from agentpeft.envs.db_bench.backends.opening import open_database
from agentpeft.envs.db_bench.backends.protocol import Column, DatabaseLimits, Table
from agentpeft.envs.db_bench.grading.gold import compute_gold_rows
from agentpeft.envs.db_bench.grading.grader import Grader, compute_lab_md5
from agentpeft.envs.db_bench.tasks import DBBenchTask

PETS = Table(
    "pets",
    (Column("name", "VARCHAR(20)"), Column("kind", "TEXT"), Column("age", "INT")),
    (
        ("Ada", "cat", 3),
        ("Bo", "dog", 5),
        ("Cy", "cat", 5),
        ("Di", "emu", 1),
        ("Ed", "dog", None),
    ),
)


@pytest.fixture
def database():
    database = open_database("sqlite", DatabaseLimits())
    yield database
    database.close()


def read_task(sql, label=None):
    return DBBenchTask(
        task_id=sql, instruction="?", tables=(PETS,), is_write=False, gold_sql=sql, label=label
    )


def write_task(sql):
    return DBBenchTask(task_id=sql, instruction="!", tables=(PETS,), is_write=True, gold_sql=sql)


BY_KIND = "SELECT name FROM pets WHERE kind = 'cat'"
BY_AGE = "SELECT name FROM pets WHERE age > 1 ORDER BY age"
BY_AGE_DOWN_2 = "SELECT name, age FROM pets ORDER BY age DESC LIMIT 2"
OLDEST = "SELECT name AS n FROM pets ORDER BY age DESC LIMIT 1"
ANY_TWO = "SELECT name FROM pets LIMIT 2"
COUNTS = "SELECT kind, COUNT(*) AS c FROM pets GROUP BY kind ORDER BY c DESC, kind"
AVERAGE = "SELECT AVG(age) FROM pets WHERE age > 1"
IN_BRACKETS = "(SELECT name FROM pets ORDER BY age DESC LIMIT 2)"
BY_ALIAS = "SELECT kind, COUNT(*) AS c FROM pets GROUP BY kind ORDER BY C DESC"


@pytest.mark.parametrize(
    ("sql", "answer"),
    [
        (BY_KIND, "[('Ada',), ('Cy',)]"),
        (BY_KIND, "[('Cy',), ('Ada',)]"),
        (BY_KIND, "['Cy', 'Ada']"),
        (BY_AGE, "[('Ada',), ('Bo',), ('Cy',)]"),
        (BY_AGE, "[('Ada',), ('Cy',), ('Bo',)]"),  # a tie
        (BY_AGE_DOWN_2, "[('Cy', '5'), ('Bo', 5)]"),
        (OLDEST, "Bo"),
        (OLDEST, "Cy"),  # the limit cuts a tie
        (ANY_TWO, "[('Ed',), ('Di',)]"),
        (COUNTS, "[('cat', 2), ('dog', 2), ('emu', 1)]"),
        (AVERAGE, "[(Decimal('4.3333'),)]"),
        (AVERAGE, "4.33333333"),
        (IN_BRACKETS, "[('Cy',), ('Bo',)]"),
        (BY_ALIAS, "[('dog', 2), ('cat', 2), ('emu', 1)]"),
    ],
)
def test_right_answers(database, sql, answer):
    assert Grader(database).is_right_answer(read_task(sql), answer)


@pytest.mark.parametrize(
    ("sql", "answer"),
    [
        (BY_KIND, ""),
        (BY_KIND, "[]"),
        (BY_KIND, "[('Ada',)]"),
        (BY_KIND, "[('Ada',), ('Ada',)]"),
        (BY_KIND, "[('Ada',), ('Cy',), ('Cy',)]"),
        (BY_KIND, "[('Ada', 'cat'), ('Cy', 'cat')]"),
        (BY_KIND, "[('ada',), ('cy',)]"),
        (BY_KIND, "['Ada', 'Bo'] or ['Ada', 'Cy']"),
        (BY_AGE, "[('Bo',), ('Ada',), ('Cy',)]"),
        (BY_AGE_DOWN_2, "[(5, 'Cy'), (5, 'Bo')]"),
        (BY_AGE_DOWN_2, "[('Bo', 5), ('Bo', 5)]"),
        (BY_AGE_DOWN_2, "[('Bo', 5), ('Ada', 3)]"),
        (OLDEST, "Ada"),
        (ANY_TWO, "[('Ed',), ('Ed',)]"),
        (ANY_TWO, "[('Ed',), ('Zoe',)]"),
        (COUNTS, "[('dog', 2), ('cat', 2), ('emu', 1)]"),
        (COUNTS, "[('emu', 1), ('cat', 2), ('dog', 2)]"),
        (AVERAGE, "4.3"),
        (AVERAGE, "four"),
        (IN_BRACKETS, "[('Cy',), ('Ada',)]"),
        ("(SELECT name FROM pets ORDER BY name DESC)", str([(row[0],) for row in PETS.rows])),
        (BY_ALIAS, "[('emu', 1), ('cat', 2), ('dog', 2)]"),
        (OLDEST, "('Bo',)\n('Cy',)"),
    ],
)
def test_wrong_answers(database, sql, answer):
    assert not Grader(database).is_right_answer(read_task(sql), answer)


def test_a_label_of_the_data_is_honoured_where_the_query_disagrees(database):
    grader, task = Grader(database), read_task(BY_AGE_DOWN_2, label=(("Zoe", 9), ("Bo", 5)))
    assert grader.is_right_answer(task, "[('Zoe', 9), ('Bo', 5)]")
    assert not grader.is_right_answer(task, "[('Bo', 5), ('Zoe', 9)]")
    assert not grader.is_right_answer(task, "[('Bo', 5), ('Cy', 5)]")


def test_a_label_without_an_order_is_a_bag_also_where_the_query_disagrees(database):
    task = read_task(ANY_TWO, label=(("Zoe",), ("Yan",)))
    assert Grader(database).is_right_answer(task, "[('Yan',), ('Zoe',)]")
    assert not Grader(database).is_right_answer(task, "[('Yan',), ('Yan',)]")


@pytest.mark.parametrize("text", ["(b. 1970)", "'Heroes'", "1,234", "None", "[1]"])
def test_a_single_text_may_be_answered_as_it_is(database, text):
    task = read_task("SELECT name FROM pets LIMIT 1", label=((text,),))
    assert Grader(database).is_right_answer(task, text)


@pytest.mark.parametrize(("is_write", "label"), [(False, None), (True, None), (True, ((1,),))])
def test_a_task_without_a_solution_is_bad_data(is_write, label):
    with pytest.raises(DataError, match="task 7 needs gold SQL"):
        DBBenchTask(task_id="7", instruction="?", tables=(PETS,), is_write=is_write, label=label)


def test_a_gold_result_that_is_cut_is_bad_data():
    database = open_database("sqlite", DatabaseLimits(max_rows=4))
    with pytest.raises(DataError, match="gives more than 4 rows"):
        Grader(database).is_right_answer(read_task("SELECT name FROM pets"), "Ada")
    database.close()


def test_a_label_with_a_query_allows_the_querys_other_ties(database):
    task = read_task(BY_AGE_DOWN_2, label=(("Bo", 5), ("Cy", 5)))
    assert Grader(database).is_right_answer(task, "[('Cy', 5), ('Bo', 5)]")


@pytest.mark.parametrize(
    ("sql", "ties", "offset", "count"),
    [
        ("SELECT name FROM pets ORDER BY age", (0, 1, 2, 3, 3), 0, 5),
        ("SELECT * FROM pets ORDER BY kind LIMIT 1, 2", (0, 0, 1, 1, 2), 1, 2),
        ("SELECT kind AS k FROM pets ORDER BY LENGTH(k) LIMIT 9", (0, 0, 0, 0, 0), 0, 5),
        ("SELECT kind, name FROM pets ORDER BY 1, 2 LIMIT 2 OFFSET 4", (0, 1, 2, 3, 4), 4, 1),
        ("SELECT DISTINCT kind FROM pets ORDER BY kind", (0, 1, 2), 0, 3),
        ("SELECT 1 AS a UNION ALL SELECT 1 ORDER BY a", (0, 0), 0, 2),
        ("SELECT name FROM pets LIMIT 3", (0, 0, 0, 0, 0), 0, 3),
        ("SELECT kind FROM pets GROUP BY kind ORDER BY COUNT(*)", (0, 1, 1), 0, 3),
    ],
)
def test_ties_of_gold_queries(database, sql, ties, offset, count):
    gold = compute_gold_rows(sql, [PETS], database)
    assert (gold.ties, gold.offset, gold.count) == (ties, offset, count)


@pytest.mark.parametrize("sql", ["SELEC", "UPDATE pets SET age = 1", "SELECT nope FROM pets"])
def test_what_is_no_gold_query_has_no_gold_rows(database, sql):
    assert compute_gold_rows(sql, [PETS], database) is None


GROW = "UPDATE pets SET age = age + 1 WHERE kind = 'cat'"
WIDEN = (
    "CREATE TABLE p (a TEXT, b TEXT, c INT); INSERT INTO p SELECT * FROM pets; DROP TABLE pets; "
    "CREATE TABLE pets (name VARCHAR(20), kind TEXT, age INT, extra INT); "
    "INSERT INTO pets (name, kind, age) SELECT * FROM p"
)


@pytest.mark.parametrize(
    ("sql", "is_right"),
    [
        (GROW, True),
        ("UPDATE pets SET age = CASE age WHEN 3 THEN 4 ELSE 6 END WHERE kind = 'cat'", True),
        ("UPDATE pets SET age = age + 1", False),
        ("SELECT 1", False),
        (f"{GROW}; INSERT INTO pets VALUES ('Fi', 'cat', 1)", False),
        (f"{GROW}; {WIDEN}", False),
        (f"{GROW}; DROP TABLE pets", False),
        (f"{GROW}; CREATE TABLE notes (a INT)", True),
        (f"{GROW}; UPDATE pets SET age = 0 WHERE age IS NULL", False),
    ],
)
def test_changes_are_graded_by_contents(database, sql, is_right):
    session = database.open([PETS])
    assert session.execute(sql).error is None
    assert Grader(database).is_right_state(write_task(GROW), session) == is_right
    session.close()


def test_a_broken_gold_statement_is_bad_data(database):
    with pytest.raises(DataError, match=r"gold SQL fails with 1054"):
        Grader(database).is_right_answer(read_task("SELECT nope FROM pets"), "1")


def test_lab_md5_joins_20_bit_row_hashes():
    # By coreutils' md5sum: "Ada,3" begins with 09eba, "Bo" with b0d89, and "09eba,b0d89" gives
    assert compute_lab_md5([("Bo", None), ("Ada", 3)]) == "98aa75580ce11780181dd443c541b72c"
    assert compute_lab_md5([]) == "None"
    assert compute_lab_md5([(Decimal("1.50"),)]) != compute_lab_md5([(Decimal("1.5"),)])


WEIGHTS = Table(
    "w",
    (Column("id", "INT"), Column("x", "DOUBLE"), Column("y", "INT")),
    ((1, 0.1, 0), (2, 1000.0, 0), (3, 0.0, 0)),
)


def is_right_change(database, gold, sql, table=WEIGHTS):
    task = DBBenchTask(task_id=gold, instruction="!", tables=(table,), is_write=True, gold_sql=gold)
    with closing(database.open(task.tables)) as session:
        assert session.execute(sql).error is None
        return Grader(database).is_right_state(task, session)


SMALL_CHANGES = [
    "UPDATE w SET x = x * (1 + 5e-10)",
    "UPDATE w SET x = x + 5e-14",
    "UPDATE w SET x = x + 5e-14 WHERE id = 1",
    "UPDATE w SET x = 1e-13 WHERE id = 3",
    "UPDATE w SET x = x - 1e-10, y = 1 WHERE id = 2",
]


@pytest.mark.parametrize("gold", SMALL_CHANGES)
def test_a_double_that_the_gold_changes_must_be_changed(database, gold):
    assert is_right_change(database, gold, gold)
    for sql in (
        "SELECT 1",
        "UPDATE w SET y = 1 WHERE id = 2",
        "UPDATE w SET y = 0",
        "UPDATE w SET x = x * (1 + 1e-15)",
    ):
        assert not is_right_change(database, gold, sql), sql


LARGE = Table("w", WEIGHTS.columns, ((1, 1e12, 0), (2, 1e12, 0), (3, 5.0, 0)))
PAY = Table("w", WEIGHTS.columns, ((1, 100.0, 0), (2, 110.0, 0), (3, 0.1, 0), (4, 0.3, 0)))


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE w SET x = x + 2 WHERE id = 1",
        "UPDATE w SET x = x + 500 WHERE id = 1",
        "UPDATE w SET x = x - 1 WHERE id = 1",
        "UPDATE w SET x = x + 1",
        "UPDATE w SET x = x + 1 WHERE id = 2",
    ],
)
def test_a_double_that_the_gold_changes_little_must_be_changed_by_as_much(database, sql):
    gold = "UPDATE w SET x = x + 1 WHERE id = 1"
    assert is_right_change(database, gold, gold, LARGE)
    assert not is_right_change(database, gold, sql, LARGE)


@pytest.mark.parametrize("sql", ["x = x + x * 0.1e0", "x = x * 11 / 10", "x = x / 10e0 * 11"])
def test_a_double_may_be_near_a_number_that_another_row_had(database, sql):
    assert is_right_change(database, "UPDATE w SET x = x * 1.1e0", f"UPDATE w SET {sql}", PAY)
    gold = "UPDATE w SET x = x * 3 WHERE id > 2"
    assert is_right_change(database, gold, "UPDATE w SET x = x / 10 * 30 WHERE id > 2", PAY)


def test_numbers_that_change_places_must_change_them(database):
    gold = "UPDATE w SET x = CASE id WHEN 1 THEN 1000.0 + 1e-7 ELSE 1000.0 END WHERE id < 3"
    table = Table("w", WEIGHTS.columns, ((1, 1000.0, 0), (2, 1000.0 + 1e-7, 0)))
    assert is_right_change(database, gold, gold, table)
    assert not is_right_change(database, gold, "SELECT 1", table)


@pytest.mark.parametrize(
    ("gold", "sql"),
    [
        ("UPDATE w SET x = 0.1 + 0.2 WHERE id = 1", "UPDATE w SET x = 0.3 WHERE id = 1"),
        ("UPDATE w SET x = x + 0.2", "UPDATE w SET x = 0.2 + x"),
        ("UPDATE w SET x = x * 3", "UPDATE w SET x = x + x + x"),
        ("UPDATE w SET x = 1000.0 + 1e-13 WHERE id = 1", "UPDATE w SET x = 1000 WHERE id = 1"),
        ("INSERT INTO w VALUES (4, 0.1e0 + 0.2e0, 1)", "INSERT INTO w VALUES (4, 0.3, 1)"),
    ],
)
def test_a_double_may_differ_in_its_last_bits_where_it_was_computed(database, gold, sql):
    assert is_right_change(database, gold, sql)
