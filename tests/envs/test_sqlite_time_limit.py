"""No expression of the agent's, wherever it stands, takes more time than one call of execute may.

Every one of `EXPRESSIONS` stands in every one of `PLACES` (here in a fifth of them, in
`make test-long` in all): an entry of either is one line. `{a}` is
a column, in a default a number; `{e}` and `{d}` are an expression with the one and the other. CPU
time is counted, this process's and its workers', so that a busy machine changes nothing.
"""

import os
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from agentpeft.envs.db_bench.backends.protocol import Column, DatabaseLimits, DatabaseSession, Table
from agentpeft.envs.db_bench.backends.sqlite.database import SqliteDatabase

TIMEOUT_S = 0.2
SHOP = Table("shop", (Column("item", "TEXT"), Column("price", "DOUBLE")), (("pen", 1.5),))

EXPRESSIONS = [
    "CONCAT({a}, 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab') REGEXP '^([0-9]|a+)+$'",
    "CONCAT({a}, 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab') RLIKE '(a|aa)+$'",
    "REGEXP_REPLACE(REPEAT('a', 15000), 'a*b|a', CONCAT({a}, '$0')) = ''",
    "REGEXP_REPLACE(REPEAT('a', 15000), 'a', REPEAT('b', 15000)) IS NULL",
    "REGEXP_INSTR(REPEAT('ab', 7500), '[ab]*a[ab]{400}c|(a|b|ab){1,400}c')",
    "REGEXP_SUBSTR(REPEAT('ab', 7500), '(([ab]{1,30}){1,30}c)+', 1, {a}) IS NULL",
    "REGEXP_LIKE(REPEAT('a', 15000), '(a?){300}a{300}b', 'cmn')",
    "CONCAT(REPEAT('a', 15000), {a}) LIKE CONCAT('%', REPEAT('a_', 4000), 'c%')",
    "CONCAT(REPEAT('a', 15000), {a}) LIKE CONCAT(REPEAT('%a', 4000), '%c')",
    "CONCAT(REPEAT('a', 15000), {a}) LIKE '%a%a%a%a%_a_a_a_a%b'",
    "FIND_IN_SET({a}, REPEAT('é,', 7000))",
    "LENGTH(REPLACE(CONCAT(REPEAT('a', 15000), {a}), CONCAT(REPEAT('a', 7000), 'b'), 'c'))",
    "INSTR(CONCAT(REPEAT('a', 15000), {a}), CONCAT(REPEAT('a', 7000), 'b'))",
    "SUBSTRING_INDEX(CONCAT(REPEAT('a', 15000), {a}), 'aa', -7000) IS NULL",
    "LENGTH(TRIM('a' FROM CONCAT(REPEAT('a', 15000), {a})))",
    "CONCAT(REPEAT('é', 7000), {a}) = CONCAT(REPEAT('É', 7000), {a})",
    "SLEEP(0.04)",
    "STR_TO_DATE(REPEAT(' 1', 7000), REPEAT(' %d', 7000)) IS NULL",
    "DATE_FORMAT('2024-01-01', CONCAT({a}, REPEAT('%W', 5000))) IS NULL",
    "CONCAT(REPEAT('1', 15000), 'x', {a}) + 0",
    "CAST(CONCAT(REPEAT('1', 15000), {a}) AS DECIMAL(10,2))",
    "CAST(CONCAT('2024-01-01', REPEAT(' ', 15000), {a}) AS DATETIME) IS NULL",
    "(SELECT GROUP_CONCAT(DISTINCT REPEAT(x.a, 5000) ORDER BY REPEAT(x.a, 4000)) FROM n x) IS NULL",
    "(SELECT MAX(CONCAT(REPEAT('a', 15000), x.a, y.a)) FROM n x, n y) IS NULL",
    "SHA2(CONCAT(REPEAT('a', 15000), {a}), 256) = MD5(HEX(CONCAT(REPEAT('a', 15000), {a})))",
]
PLACES = [
    "SELECT SUM({e}) FROM n",
    "SELECT a, {e} FROM n",
    "SELECT a FROM n WHERE {e}",
    "SELECT a FROM n ORDER BY {e}",
    "SELECT COUNT(*) FROM n GROUP BY {e}",
    "SELECT COUNT(*) FROM n GROUP BY a HAVING MAX({e})",
    "SELECT COUNT(*) FROM n JOIN k ON {e}",
    "SELECT COUNT(DISTINCT {e}) FROM n",
    "SELECT a FROM n UNION SELECT {e} FROM n",
    "SELECT GROUP_CONCAT({e}) OVER (ORDER BY a) FROM n",
    "SELECT SUM(CASE WHEN a > 0 THEN {e} ELSE 1 END) FROM n",
    "WITH q AS (SELECT {e} AS v FROM n) SELECT MAX(v) FROM q",
    "SELECT a FROM n LIMIT ({e})",
    "CREATE TABLE z AS SELECT {e} AS a FROM n",
    "CREATE TABLE z AS SELECT a FROM n ORDER BY {e}",
    "CREATE VIEW z AS SELECT {e} AS a FROM n; SELECT * FROM z",
    "CREATE TABLE d (x INT, y TEXT DEFAULT ({d})); INSERT INTO d (x) SELECT a FROM n",
    "ALTER TABLE n ADD COLUMN y TEXT DEFAULT ({d})",
    "CREATE TABLE c (a INT CHECK ({e})); INSERT INTO c SELECT a FROM n",
    "CREATE TABLE g (a INT, y TEXT AS ({e})); INSERT INTO g (a) SELECT a FROM n",
    "INSERT INTO k SELECT a, CASE WHEN RAND() < 2 THEN {e} ELSE 0 END FROM n",
    "INSERT INTO k SELECT a + 1000, {e} FROM n",
    "INSERT INTO k SELECT 1, a FROM n ON DUPLICATE KEY UPDATE v = (SELECT {e} FROM n LIMIT 1)",
    "REPLACE INTO k SELECT a, {e} FROM n",
    "UPDATE n SET a = {e}",
    "UPDATE n JOIN k ON n.a >= k.id SET n.a = (SELECT {e} FROM n AS m LIMIT 1)",
    "UPDATE k SET id = 2 WHERE (SELECT COUNT(*) FROM n WHERE {e}) >= 0",
    "DELETE FROM n WHERE {e}",
    "DELETE FROM n ORDER BY {e} LIMIT 3",
    "DELETE n FROM n JOIN k ON {e}",
    "PREPARE s FROM 'SELECT {e} FROM n'; EXECUTE s",
    "SET @v = (SELECT SUM({e}) FROM n)",
    "CREATE TRIGGER t BEFORE INSERT ON k FOR EACH ROW SET @v = {d}",
]


def cpu_s() -> float:
    """Returns the CPU time of this process and its children, alive or not."""
    ticks = os.sysconf("SC_CLK_TCK")
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread, or a child, that has just ended
            for child in (task / "children").read_text().split():
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / ticks
    return total


@pytest.fixture(scope="module")
def database() -> Iterator[SqliteDatabase]:
    backend = SqliteDatabase(DatabaseLimits(statement_timeout_s=TIMEOUT_S, max_database_mib=4))
    session = backend.open([SHOP])
    session.execute("SELECT LENGTH(REPEAT('x', 100000))")  # starts a worker
    session.close()
    yield backend
    backend.close()


def open_session(database: SqliteDatabase) -> DatabaseSession:
    numbers = ", ".join(f"({number})" for number in range(300))
    session = database.open([SHOP])
    ddl = "CREATE TABLE n (a INT); CREATE TABLE k (id INT, v LONGTEXT)"
    made = session.execute(f"{ddl}; INSERT INTO n VALUES {numbers}; INSERT INTO k VALUES (1, 'x')")
    if made.error and made.error.startswith("3024"):  # the machine is busy elsewhere
        session.close()
        return open_session(database)
    assert made.error is None
    return session


def assert_ends_in_time(session: DatabaseSession, sql: str) -> None:
    start_s = cpu_s()
    session.execute(sql)
    used_s = cpu_s() - start_s
    assert used_s < TIMEOUT_S + 1, (used_s, sql)


@pytest.mark.parametrize(("number", "place"), list(enumerate(PLACES)), ids=PLACES)
def test_no_expression_takes_longer_than_its_statement_may(
    database: SqliteDatabase, number: int, place: str
) -> None:
    """A fifth of the expressions in each place; the test below plays every pair."""
    play_expressions(database, place, EXPRESSIONS[number % 5 :: 5])


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
def test_no_expression_anywhere_takes_longer_than_its_statement_may(
    database: SqliteDatabase, place: str
) -> None:
    play_expressions(database, place, EXPRESSIONS)


def play_expressions(database: SqliteDatabase, place: str, expressions: Sequence[str]) -> None:
    for expression in expressions:
        session = open_session(database)
        sql = place.replace("{e}", expression.replace("{a}", "a"))
        sql = sql.replace("{d}", expression.replace("{a}", "1"))
        assert_ends_in_time(session, sql)
        assert session.execute("SELECT item FROM shop").rows == (("pen",),), sql
        assert session.read_table("shop").rows == (("pen", 1.5),)
        session.close()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_block_of_statements_has_the_time_of_one(
    database: SqliteDatabase, expression: str
) -> None:
    session = open_session(database)
    statement = f"SELECT {expression} FROM n LIMIT 1;".replace("{a}", "a")
    start_s = time.monotonic()
    assert_ends_in_time(session, statement * (19_000 // len(statement)))
    assert time.monotonic() - start_s < TIMEOUT_S + 5
    session.close()


def test_a_sort_of_long_texts_is_stopped_and_leaves_nothing(database: SqliteDatabase) -> None:
    session = open_session(database)
    sql = "INSERT INTO k SELECT x.a + 1000 * y.a, REPEAT('É', 7000) FROM n x, n y ORDER BY 2"
    assert_ends_in_time(session, sql)
    assert session.execute("SELECT COUNT(*) FROM k").rows == ((1,),)
    session.close()


@pytest.mark.parametrize(
    "sql",
    [
        f"INSERT INTO shop (price) VALUES ('{'1' * 19_000}x')",
        f"SELECT price + '{'1' * 19_000}x' FROM shop",
        f"UPDATE shop SET price = price + '{'1' * 19_000}x'",
        "BEGIN; ROLLBACK;" * 1200,
        "SELECT 1;" * 2200,
        f"WITH c AS (SELECT '{'my_' * 4_000}' AS x) SELECT 1 FROM c a"
        + "".join(f", c c{number}" for number in range(18)),
    ],
)
def test_translation_takes_little_time(database: SqliteDatabase, sql: str) -> None:
    session = open_session(database)
    assert_ends_in_time(session, sql)
    session.close()
