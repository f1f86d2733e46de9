"""What an agent may try on a real server, and what must come of it."""

import threading
import time

import pytest
from mysql_episodes import LIMITS, PEOPLE, SLACK_S, assert_usable, schema_of

from agentpeft.envs.db_bench.backends.server.client import MySQLClient
from agentpeft.envs.db_bench.backends.server.database import MySQLDatabase
from agentpeft.envs.db_bench.backends.server.session import MySQLSession

TIMEOUT = "3024 (HY000): Query execution was interrupted, maximum statement execution time exceeded"


@pytest.mark.parametrize(
    "sql",
    [
        "SET GLOBAL max_connections = 1",
        "SHUTDOWN",
        "CREATE DATABASE other",
        "SELECT 1 INTO OUTFILE '/tmp/x'",
        "LOAD DATA INFILE '/etc/passwd' INTO TABLE people",
        "LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE people",
        "SELECT * FROM mysql.user",
        "CREATE USER x",
        "LOCK TABLES people WRITE",
        "FLUSH TABLES WITH READ LOCK",
        "CREATE TEMPORARY TABLE people (a INT)",
        "CREATE VIEW v AS SELECT 1",
        "CREATE TRIGGER r BEFORE INSERT ON people FOR EACH ROW SET NEW.age = 1",
        "CREATE PROCEDURE p() SELECT 1",
        "CREATE EVENT e ON SCHEDULE EVERY 1 SECOND DO SELECT 1",
        "CREATE TABLE m (a INT) ENGINE = MyISAM",
        "INSTALL SONAME 'ha_connect'",
    ],
)
def test_what_the_game_does_not_need_is_denied(session: MySQLSession, sql: str) -> None:
    assert session.execute(sql).error is not None
    assert_usable(session)


def test_files_cannot_be_read(session: MySQLSession) -> None:
    assert session.execute("SELECT LOAD_FILE('/etc/passwd')").rows == ((None,),)


def test_tables_cannot_be_put_elsewhere(session: MySQLSession) -> None:
    session.execute("CREATE TABLE d (a INT) DATA DIRECTORY '/tmp'")
    assert "DIRECTORY" not in session.execute("SHOW CREATE TABLE d").to_text(1000)


def test_other_episodes_are_invisible(database: MySQLDatabase, session: MySQLSession) -> None:
    other = database.open([PEOPLE])
    seen = session.execute(
        "SELECT COUNT(*) FROM information_schema.tables WHERE table_name = 'people'"
    )
    assert seen.rows == ((1,),)
    assert len(session.execute("SHOW PROCESSLIST").rows) == 1
    assert session.execute(f"SELECT * FROM {schema_of(other)}.people").error is not None
    other.close()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT SLEEP(100)",
        "SET SESSION max_statement_time = 0; SELECT SLEEP(100)",
        "SELECT COUNT(*) FROM information_schema.collations a, information_schema.collations b, "
        "information_schema.collations c, information_schema.collations d",
        "SELECT BENCHMARK(1000000000000, MD5('a'))",
        "DO SLEEP(0.7); DO SLEEP(0.7); DO SLEEP(0.7)",
    ],
)
def test_endless_statement_is_stopped_in_time(session: MySQLSession, sql: str) -> None:
    started = time.monotonic()
    result = session.execute(sql)
    assert time.monotonic() - started < LIMITS.statement_timeout_s + SLACK_S
    assert (result.error, result.is_timeout) == (TIMEOUT, True)
    assert_usable(session)


def test_other_sessions_go_on_while_one_hangs(database: MySQLDatabase) -> None:
    hanging = database.open([PEOPLE])
    thread = threading.Thread(target=hanging.execute, args=("SELECT SLEEP(100)",))
    thread.start()
    session = database.open([PEOPLE])
    for _ in range(20):
        assert_usable(session)
    session.close()
    thread.join()
    hanging.close()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM seq_1_to_1000000000",
        "SELECT REPEAT('a', 1000000) FROM seq_1_to_1000",
        "SELECT a.seq, b.seq FROM seq_1_to_1000000 a, seq_1_to_1000000 b",
    ],
)
def test_result_flood_is_cut_at_once(session: MySQLSession, sql: str) -> None:
    started = time.monotonic()
    result = session.execute(sql)
    assert time.monotonic() - started < LIMITS.statement_timeout_s + SLACK_S
    assert result.is_cut
    assert 0 < len(result.rows) <= LIMITS.max_rows
    assert_usable(session)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM seq_1_to_1000000000",
        "SELECT 1;" * 2000,
        "SELECT * FROM seq_1_to_40;" * 700,
        f"SELECT {', '.join(['1'] * 4000)} FROM seq_1_to_1000000",
        f"SELECT {', '.join(['1'] * 500)} FROM seq_1_to_40;" * 13,
        "SELECT REPEAT('a', 16000000)",
        "SELECT REPEAT('a', 15000000) FROM seq_1_to_100",
        "SELECT REPEAT('a', 1000000);" * 600,
        "SELECT NULL FROM seq_1_to_1000000000",
        "SELECT CAST('x' AS INT) FROM seq_1_to_1000000; SHOW WARNINGS",
        "SELECT seq, SLEEP(0.01) FROM seq_1_to_1000000",
        "SELECT LOCATE(CONCAT(REPEAT('a', 100000), 'b'), REPEAT('a', 300000)) FROM seq_1_to_99",
        "SET max_statement_time = 0; SELECT SHA2(REPEAT('a', 16000000), 512) FROM seq_1_to_9999",
        "ALTER TABLE people ADD COLUMN z INT DEFAULT (SLEEP(9))",
    ],
)
def test_no_statement_goes_on_after_its_time(session: MySQLSession, sql: str) -> None:
    session.execute("START TRANSACTION; DELETE FROM people WHERE name = 'Ann'; COMMIT")
    started = time.monotonic()
    result = session.execute(sql)
    assert time.monotonic() - started < LIMITS.statement_timeout_s + SLACK_S
    assert result.is_cut or result.is_timeout or result.error or result.rows
    assert session.execute("SELECT COUNT(*) FROM people").rows == ((2,),)


def test_result_of_exactly_max_rows_is_not_cut(session: MySQLSession) -> None:
    assert not session.execute("SELECT * FROM seq_1_to_50").is_cut
    assert session.execute("SELECT * FROM seq_1_to_51").is_cut


def test_cut_result_keeps_the_transaction(session: MySQLSession) -> None:
    session.execute("START TRANSACTION; DELETE FROM people WHERE name = 'Ann'")
    assert session.execute("SELECT * FROM seq_1_to_100000").is_cut
    session.execute("COMMIT")
    contents = session.read_table("people")
    assert contents is not None
    assert len(contents.rows) == 2


def test_size_flood_is_stopped(session: MySQLSession) -> None:
    session.execute("CREATE TABLE big (a LONGTEXT)")
    flood = "INSERT INTO big SELECT REPEAT('a', 100000) FROM seq_1_to_100000"
    assert session.execute(flood).error == "1114 (HY000): The table is full"
    assert_usable(session)


def test_many_small_floods_are_stopped(session: MySQLSession) -> None:
    session.execute("CREATE TABLE big (a LONGTEXT)")
    one = "INSERT INTO big SELECT REPEAT('a', 3000000)"
    errors = [session.execute(one).error for _ in range(20)]
    assert errors[-1] == "1114 (HY000): The table is full"


@pytest.mark.parametrize(
    "sql",
    [
        "KILL CONNECTION_ID()",
        "SET PASSWORD = PASSWORD('x'); KILL CONNECTION_ID()",
        "SET autocommit = 0; DELETE FROM people",
        "START TRANSACTION; DELETE FROM people",
        "XA START 'x'; DELETE FROM people",
        "XA START 'x'; DELETE FROM people; XA END 'x'; XA PREPARE 'x'",
        "SET NAMES latin1; SET sql_mode = ''",
        "SET character_set_results = utf16; SELECT 'é' AS 'é'",
        "SELECT GET_LOCK('a', 0)",
        "HANDLER people OPEN",
    ],
)
def test_grader_and_next_episode_do_not_suffer(
    database: MySQLDatabase, session: MySQLSession, sql: str
) -> None:
    session.execute(sql)
    contents = session.read_table("people")
    assert contents is not None
    assert sorted(contents.rows, key=str) == sorted(PEOPLE.rows, key=str)
    session.close()
    after = database.open([PEOPLE])
    assert after.execute("SELECT GET_LOCK('a', 1), @@autocommit").rows == ((1, 1),)
    assert_usable(after)
    after.close()


def test_prepared_xa_transaction_does_not_keep_the_schema(
    mysql_url: str, administrator: MySQLClient
) -> None:
    database = MySQLDatabase(mysql_url, LIMITS)
    session = database.open([PEOPLE])
    xa = "XA START 'y'; DELETE FROM people; XA END 'y'; XA PREPARE 'y'"
    session.execute(f"{xa}; KILL CONNECTION_ID()")
    session.close()
    database.close()
    assert schema_of(session) not in str(administrator.query("SHOW DATABASES"))


def test_dropped_schema_breaks_nothing(session: MySQLSession) -> None:
    result = session.execute(f"DROP DATABASE {schema_of(session)}")
    assert result.error is None
    assert session.execute("SELECT 1 FROM people").error == "1046 (3D000): No database selected"
    session.execute("KILL CONNECTION_ID()")
    assert session.execute("SELECT 1").rows == ((1,),)
    assert session.read_table("people") is None
