"""What every database backend does alike; each test runs on each backend."""

from collections.abc import Iterator, Sequence
from decimal import Decimal

import pytest

from agentpeft.envs.db_bench.backends.protocol import Column, Database, DatabaseSession, Row, Table

MAX_ROWS = 100
STAFF = Table(
    "staff",
    (Column("id", "INT"), Column("name", "VARCHAR(20)"), Column("pay", "DECIMAL(8,2)")),
    ((1, "Ann", "10.50"), (2, "bob", "7"), (3, "Cy", None)),
)
SHOP = Table("shop", (Column("item", "TEXT"), Column("price", "DOUBLE")), (("pen", 1.5),))


@pytest.fixture
def session(database: Database) -> Iterator[DatabaseSession]:
    opened = database.open([STAFF, SHOP])
    yield opened
    opened.close()


def rows(session: DatabaseSession, sql: str) -> Sequence[Row]:
    result = session.execute(sql)
    assert result.error is None, result.error
    return result.rows


def contents(session: DatabaseSession, name: str) -> list[Row]:
    table = session.read_table(name)
    assert table is not None
    return sorted(table.rows, key=repr)


def test_a_query_gives_rows_with_mysql_types(session):
    assert rows(session, "SELECT id, name, pay FROM staff WHERE id < 3 ORDER BY id") == (
        (1, "Ann", Decimal("10.50")),
        (2, "bob", Decimal("7.00")),
    )


def test_a_write_gives_no_rows_and_is_seen_by_the_reader(session):
    result = session.execute("UPDATE shop SET price = 2 WHERE item = 'PEN'")
    assert (result.rows, result.error) == ((), None)
    assert session.read_table("shop").columns == ("item", "price")
    assert contents(session, "shop") == [("pen", 2.0)]


@pytest.mark.parametrize(
    ("sql", "number"),
    [
        ("SELECT * FROM nothing", "1146 (42S02)"),
        ("SELECT nothing FROM staff", "1054 (42S22)"),
        ("SELEC 1", "1064 (42000)"),
        ("SELECT nothing(1)", "1305 (42000)"),
        ("INSERT INTO shop VALUES (1)", "1136 (21S01)"),
        ("SELECT name, COUNT(*) FROM staff", "1140 (42000)"),
        ("CREATE TABLE shop (a INT)", "1050 (42S01)"),
        ("DROP TABLE nothing", "1051 (42S02)"),
        (" ; ", "1065 (42000)"),
    ],
)
def test_common_mistakes_have_mysql_numbers(session, sql, number):
    result = session.execute(sql)
    assert result.error is not None
    assert result.error.startswith(number), result.error
    assert (result.rows, result.is_timeout) == ((), False)


def test_statements_run_in_turn_and_the_last_result_counts(session):
    script = "INSERT INTO shop VALUES ('a;b', 3); SELECT item FROM shop WHERE price = 3;"
    assert rows(session, script) == (("a;b",),)


def test_a_script_stops_at_its_first_error(session):
    result = session.execute(
        "DELETE FROM shop; SELECT * FROM nothing; INSERT INTO shop VALUES ('late', 1)"
    )
    assert result.error.startswith("1146")
    assert contents(session, "shop") == []


def test_a_failed_statement_leaves_no_partial_effect(session):
    rows(session, "CREATE TABLE k (a TINYINT)")
    result = session.execute("INSERT INTO k SELECT 100 UNION SELECT 200")
    assert result.error.startswith("1264 (22003): Out of range value for column 'a' at row ")
    assert contents(session, "k") == []


def test_rollback_undoes_and_commit_keeps(session):
    rows(session, "BEGIN; DELETE FROM shop; ROLLBACK")
    assert len(contents(session, "shop")) == 1
    rows(session, "START TRANSACTION; DELETE FROM shop; COMMIT")
    assert contents(session, "shop") == []


def test_an_open_transaction_is_rolled_back_at_grading(session):
    rows(session, "BEGIN; DELETE FROM shop")
    assert rows(session, "SELECT COUNT(*) FROM shop") == ((0,),)
    assert len(contents(session, "shop")) == 1


def test_sessions_see_nothing_of_each_other(database, session):
    other = database.open([SHOP])
    rows(session, "DELETE FROM shop; CREATE TABLE mine (a INT)")
    assert len(contents(other, "shop")) == 1
    assert other.execute("SELECT * FROM mine").error.startswith("1146")
    other.close()


def test_a_missing_table_reads_as_none(session):
    assert session.read_table("nothing") is None
    rows(session, "DROP TABLE shop")
    assert session.read_table("shop") is None


def test_a_renamed_table_is_read_under_its_new_name_or_stays(session):
    error = session.execute("ALTER TABLE shop RENAME TO market").error
    assert error is None or error.startswith("1235")
    before, after = ("market", "shop") if error else ("shop", "market")
    assert session.read_table(before) is None
    assert contents(session, after) == [("pen", 1.5)]


@pytest.mark.parametrize(
    "attack",
    [
        "CREATE TEMPORARY TABLE shop (item TEXT, price DOUBLE)",
        "CREATE VIEW shop2 AS SELECT 'pen' AS item, 9 AS price",
        "RENAME TABLE shop TO shop_old; CREATE VIEW shop AS SELECT 'pen' AS item, 9 AS price",
        "CREATE TRIGGER tr AFTER INSERT ON staff FOR EACH ROW DELETE FROM shop",
    ],
)
def test_views_triggers_and_temporary_tables_cannot_stand_for_a_table(session, attack):
    assert session.execute(attack).error is not None
    table = session.read_table("shop")
    assert table is None or list(table.rows) == [("pen", 1.5)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*) FROM big a, big b, big c, big d, big e",
        "SELECT COUNT(*) FROM big a, big b, big c, big d WHERE CONCAT(a.n, d.n) = 'x'",
    ],
)
def test_a_statement_over_its_time_is_stopped(session, sql):
    values = ", ".join(f"({number})" for number in range(100))
    rows(session, f"CREATE TABLE big (n INT); INSERT INTO big VALUES {values}")
    result = session.execute(sql)
    # A server may have a depth limit of its own for recursion (3636), or end SLEEP with a 1.
    assert result.is_timeout or result.error or result.rows == ((1,),)
    assert rows(session, "SELECT COUNT(*) FROM big") == ((100,),)


def test_a_long_result_is_cut(session):
    values = ", ".join(f"({number})" for number in range(101))
    rows(session, f"CREATE TABLE big (n INT); INSERT INTO big VALUES {values}")
    result = session.execute("SELECT n FROM big")
    assert (len(result.rows), result.is_cut) == (MAX_ROWS, True)
    exact = session.execute("SELECT n FROM big LIMIT 100")
    assert (len(exact.rows), exact.is_cut) == (MAX_ROWS, False)


def test_a_database_over_its_size_is_refused(session):
    rows(session, "CREATE TABLE big (a TEXT)")
    rows(session, f"INSERT INTO big VALUES ('{'x' * 1000}')")
    errors = [session.execute("INSERT INTO big SELECT a FROM big").error for _ in range(14)]
    assert any(error and error.startswith("1114") for error in errors), errors


@pytest.mark.parametrize(
    "sql",
    [
        "SET GLOBAL max_connections = 1",
        "SELECT LOAD_FILE('/etc/passwd')",
        "SELECT 1 INTO OUTFILE '/tmp/agentpeft-outfile'",
        "LOAD DATA INFILE '/etc/passwd' INTO TABLE shop",
        "SELECT * FROM mysql.user",
        "CREATE DATABASE other",
        "DROP DATABASE mysql",
        "SHUTDOWN",
        "CREATE USER mallory",
        "GRANT ALL ON *.* TO agent",
    ],
)
def test_an_agent_reaches_no_files_settings_or_other_schemas(session, sql):
    result = session.execute(sql)
    assert result.error is not None or result.rows == ((None,),)
    assert len(contents(session, "shop")) == 1


@pytest.mark.parametrize(
    "sql",
    [
        "\ud800",
        "SELECT '\ud800\udfff'",
        "SELECT \0",
        "SELECT 'a\0b'",
        "SELECT " + "(" * 300 + "1" + ")" * 300,
        "SELECT 9" + "9" * 400,
        "SELECT 'unclosed",
        "/* unclosed",
        "`",
        "\\",
        "SELECT \N{GRINNING FACE}",
        "SELECT",
        "SELECT x'ff'",
        "SELECT x'ff' AS a FROM shop GROUP BY item",
        "DELETE shop WHERE item = 1",
        "-" * 500 + "1",
        "SELECT " + "NOT " * 2000 + "1",
        "SELECT 1 " + "UNION SELECT 1 " * 1000,
        "x" * 30_000,
    ],
)
def test_no_bytes_raise(session, sql):
    result = session.execute(sql)
    assert result.error is None or result.error[:4].isdigit(), result.error
    assert rows(session, "SELECT 1") == ((1,),)


def test_close_is_idempotent(database):
    session = database.open([SHOP])
    session.close()
    session.close()
