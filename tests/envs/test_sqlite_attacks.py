"""What an agent may send to the embedded backend to use up its owner's time and memory."""

import time
from collections.abc import Iterator

import pytest

from agentpeft.envs.db_bench.backends.protocol import Column, DatabaseLimits, DatabaseSession, Table
from agentpeft.envs.db_bench.backends.sqlite.database import SqliteDatabase
from agentpeft.envs.db_bench.backends.sqlite.mysql.runtime.collation import collation_key

SHOP = Table("shop", (Column("item", "TEXT"), Column("price", "DOUBLE")), (("pen", 1.5),))
WIDE = "REPEAT('xy', 100000)"
DOUBLING = "WITH c0 AS (SELECT 1 AS x), " + ", ".join(
    f"c{n} AS (SELECT a.x AS x FROM c{n - 1} a, c{n - 1} b)" for n in range(1, 30)
)


@pytest.fixture(scope="module")
def database() -> Iterator[SqliteDatabase]:
    backend = SqliteDatabase(DatabaseLimits(statement_timeout_s=1.0, max_database_mib=4))
    yield backend
    backend.close()


@pytest.fixture
def session(database: SqliteDatabase) -> Iterator[DatabaseSession]:
    opened = database.open([SHOP])
    names = ", ".join(f"({number})" for number in range(1000))
    assert opened.execute(f"CREATE TABLE n (a INT); INSERT INTO n VALUES {names}").error is None
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT SLEEP(30)",
        "SELECT SLEEP(0.04) FROM n",
        "SELECT LENGTH(REPEAT('x', 4000000000))",
        "SELECT REPLACE(REPEAT('x', 200000), 'x', REPEAT('y', 200000))",
        "SELECT LPAD('x', 4000000000, 'y')",
        "SELECT RPAD('x', 4000000000, 'y')",
        f"{DOUBLING} SELECT COUNT(*) FROM c29",
        f"SELECT {WIDE} LIKE CONCAT('%', REPEAT('x_', 50000), 'c%')",
        f"SELECT COUNT(*) FROM n WHERE CONCAT({WIDE}, a) = CONCAT({WIDE}, 'é')",
        f"SELECT SUM(SUBSTRING_INDEX({WIDE}, 'x', -99999) IS NULL) FROM n",
    ],
)
def test_bombs_end_in_time(session: DatabaseSession, sql: str) -> None:
    start_s = time.monotonic()
    session.execute(sql)
    assert time.monotonic() - start_s < 4
    assert session.execute("SELECT item FROM shop").rows == (("pen",),)


def test_copied_expressions_do_not_grow_without_bound(session: DatabaseSession) -> None:
    opening, closing = "(SELECT AVG(", ") FROM shop)"
    result = session.execute(f"SELECT {opening * 25} price {closing * 25} FROM shop")
    assert result.error is not None
    assert result.error.startswith("1436 (HY000): Thread stack overrun")


def test_long_values_work_in_every_lane(session: DatabaseSession) -> None:
    assert session.execute("SELECT LENGTH(REPEAT('x', 100000))").rows == ((100000,),)
    session.execute("INSERT INTO shop VALUES (REPEAT('y', 60000), 2)")
    assert session.execute("SELECT LENGTH(item) FROM shop WHERE price = 2").rows == ((60000,),)
    assert session.execute("SELECT item FROM shop WHERE price = 2").rows == (("y" * 60000,),)


def test_a_query_too_large_for_sqlite_has_mysqls_error(session: DatabaseSession) -> None:
    columns = ", ".join(f"c{number} INT" for number in range(480))
    assert session.execute(f"CREATE TABLE wide ({columns})").error is None
    sources = ", ".join(f"wide w{number}" for number in range(50))
    assert session.execute(f"SELECT * FROM {sources}").error.startswith("1153 (08S01)")


def test_a_table_whose_definition_is_long_is_usable(database: SqliteDatabase) -> None:
    columns = tuple(Column(f"{'column_' * 8}{number}", "DECIMAL(10,2)") for number in range(450))
    session = database.open([Table("wide", columns, (("1.50",) * 450,))])
    assert session.execute("SELECT COUNT(*) FROM wide").rows == ((1,),)
    session.execute(f"UPDATE wide SET {columns[7].name} = 2")
    assert session.execute(f"SELECT SUM({columns[7].name}) FROM wide").error is None
    assert session.read_table("wide").rows[0][6:9:2] == session.read_table("wide").rows[0][:2]
    session.close()


def test_keys_of_long_texts_are_not_kept() -> None:
    assert collation_key("É" * 1000) == collation_key("e" * 1000)
    assert collation_key("É" * 1000) is not collation_key("É" * 1000)
