"""The MySQL backend against a real server: limits, traps, wording, leftovers."""

import os
import signal
import socket
import subprocess
import time
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from mysql_episodes import LIMITS, PEOPLE, assert_usable, schema_of

from agentpeft.envs import DataError, EnvFault, SettingsError
from agentpeft.envs.db_bench.backends.protocol import Column, Table
from agentpeft.envs.db_bench.backends.server.client import Address, MySQLClient, ServerError
from agentpeft.envs.db_bench.backends.server.database import MySQLDatabase
from agentpeft.envs.db_bench.backends.server.server import Slot
from agentpeft.envs.db_bench.backends.server.session import MySQLSession


def test_tables_are_loaded_as_given(session: MySQLSession) -> None:
    rows = session.execute("SELECT * FROM people").rows
    assert sorted(rows, key=str) == sorted(PEOPLE.rows, key=str)


def test_values_have_their_python_types(session: MySQLSession) -> None:
    result = session.execute(
        "SELECT 1, 1.50, DATE '2020-02-03', 'é', NULL, 0.5e0, 7/2, CONCAT(1, 'a')"
    )
    expected = (1, Decimal("1.50"), date(2020, 2, 3), "é", None, 0.5, Decimal("3.5000"), "1a")
    assert result.rows == (expected,)
    assert [type(value) for value in result.rows[0]] == [type(value) for value in expected]


def test_set_columns_and_binary_text_are_plain_values(session: MySQLSession) -> None:
    session.execute("CREATE TABLE s (v SET('a', 'b'), w BLOB); INSERT INTO s VALUES ('b,a', 'x')")
    assert session.execute("SELECT * FROM s").rows == (("a,b", b"x"),)


def test_write_gives_no_rows_and_is_graded(session: MySQLSession) -> None:
    result = session.execute("UPDATE people SET age = 26 WHERE name = 'BOB'")
    assert (result.rows, result.error) == ((), None)
    contents = session.read_table("people")
    assert contents is not None
    assert contents.columns == ("name", "age")
    assert ("Bob", 26) in contents.rows


def test_missing_table_reads_as_none(session: MySQLSession) -> None:
    session.execute("DROP TABLE people")
    assert session.read_table("people") is None


def test_statements_run_in_turn_until_an_error(session: MySQLSession) -> None:
    assert session.execute("SELECT ';'; SELECT 'a;b';").rows == (("a;b",),)
    assert session.execute("SELECT '; -- a'; -- the end").rows == (("; -- a",),)
    result = session.execute("DELETE FROM people; SELECT nope; DROP TABLE people")
    assert result.error == "1054 (42S22): Unknown column 'nope' in 'field list'"
    contents = session.read_table("people")
    assert contents is not None
    assert contents.rows == ()


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("SELECT * FROM x", "1146 (42S02): Table 'db.x' doesn't exist"),
        ("SELECT x FROM people", "1054 (42S22): Unknown column 'x' in 'field list'"),
        ("SELECT 1 FROM people WHERE x", "1054 (42S22): Unknown column 'x' in 'where clause'"),
        ("SELECT 1 FROM people ORDER BY x", "1054 (42S22): Unknown column 'x' in 'order clause'"),
        ("UPDATE people SET x = 1", "1054 (42S22): Unknown column 'x' in 'field list'"),
        (
            "SELEC 1",
            "1064 (42000): You have an error in your SQL syntax; check the manual that corresponds "
            "to your MySQL server version for the right syntax to use near 'SELEC 1' at line 1",
        ),
        ("SELECT foo(1)", "1305 (42000): FUNCTION db.foo does not exist"),
        (
            "SELECT age, name FROM people GROUP BY age",
            "1055 (42000): Expression #2 of SELECT list is not in GROUP BY clause and contains "
            "nonaggregated column 'db.people.name' which is not functionally dependent on columns "
            "in GROUP BY clause; this is incompatible with sql_mode=only_full_group_by",
        ),
        (
            "INSERT INTO people VALUES ('a', 'old')",
            "1366 (HY000): Incorrect integer value: 'old' for column 'age' at row 1",
        ),
        (
            "ALTER TABLE people DROP COLUMN x",
            "1091 (42000): Can't DROP 'x'; check that column/key exists",
        ),
        (
            "SELECT name FROM people, people p",
            "1052 (23000): Column 'name' in field list is ambiguous",
        ),
        (
            "CREATE TABLE k (i INT PRIMARY KEY); INSERT INTO k VALUES (1), (1)",
            "1062 (23000): Duplicate entry '1' for key 'k.PRIMARY'",
        ),
        ("DROP TABLE x", "1051 (42S02): Unknown table 'db.x'"),
        ("", "1065 (42000): Query was empty"),
        (
            "SELECT '" + "a" * 20_000 + "'",
            "1153 (08S01): Got a packet bigger than 'max_allowed_packet' bytes",
        ),
    ],
)
def test_mistakes_read_as_in_mysql_8(session: MySQLSession, sql: str, error: str) -> None:
    assert session.execute(sql).error == error
    assert_usable(session)


def test_real_names_do_not_show(session: MySQLSession) -> None:
    texts = [
        session.execute(sql).to_text(100_000)
        for sql in (
            "SELECT DATABASE(), USER(), CURRENT_USER()",
            "SHOW DATABASES",
            "SHOW GRANTS",
            "SHOW CREATE TABLE people",
            "SELECT * FROM information_schema.columns WHERE table_schema = DATABASE()",
            "CREATE DATABASE x",
            "SELECT * FROM nowhere",
        )
    ]
    assert texts[0] == "[('db', 'agent@localhost', 'agent@localhost')]"
    assert texts[5] == "1044 (42000): Access denied for user 'agent'@'localhost' to database 'x'"
    assert not any("agentpeft" in text for text in texts)


def test_settings_are_those_of_mysql_8(session: MySQLSession) -> None:
    result = session.execute("SELECT @@sql_mode, @@autocommit, 'a' = 'Á', 'a' = 'a '")
    assert result.rows == (
        (
            "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,"
            "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION",
            1,
            1,
            0,
        ),
    )


@pytest.mark.parametrize(
    "table",
    [
        Table("t", (Column("a", "NOTYPE"),), ()),
        Table("t", (Column("a", "INT"),), (("x",),)),
        Table("t", (Column("a", "INT"),), ((1, 2),)),
        Table("t", (), ()),
    ],
)
def test_impossible_table_is_a_data_error(database: MySQLDatabase, table: Table) -> None:
    with pytest.raises(DataError, match="table 't' cannot be made"):
        database.open([table])


def test_close_removes_everything(mysql_url: str, administrator: MySQLClient) -> None:
    database = MySQLDatabase(mysql_url, LIMITS)
    session = database.open([PEOPLE])
    token = schema_of(session).rpartition("_")[0]
    assert token in str(administrator.query("SHOW DATABASES"))
    database.close()
    session.close()
    database.close()
    assert token not in str(administrator.query("SHOW DATABASES"))
    assert token not in str(administrator.query("SELECT User FROM mysql.user"))


def test_leftovers_of_the_dead_are_removed_and_the_living_spared(
    mysql_url: str, administrator: MySQLClient, session: MySQLSession
) -> None:
    dead = "agentpeft_00000000_0"
    administrator.query(f"CREATE DATABASE {dead}")
    administrator.query(f"CREATE USER {dead}@`%`")
    MySQLDatabase(mysql_url).close()
    assert dead not in str(administrator.query("SHOW DATABASES"))
    assert dead not in str(administrator.query("SELECT User FROM mysql.user"))
    assert_usable(session)


def test_lost_connections_are_made_again(
    database: MySQLDatabase, administrator: MySQLClient
) -> None:
    database.open([PEOPLE]).close()
    me = administrator.connection_id
    for (other,) in administrator.query("SELECT ID FROM information_schema.PROCESSLIST"):
        if other != me:
            try:
                administrator.query(f"KILL {other}")
            except ServerError:
                continue
    session = open_when_back(database)
    assert_usable(session)
    session.close()


def test_server_that_dies_is_a_fault_not_an_observation(mysql_url: str) -> None:
    script, name = Path(__file__).parents[3] / ".ci" / "mysql_server.sh", f"dying-{os.getpid()}"
    url = subprocess.run([script, "start", name], stdout=subprocess.PIPE, check=True).stdout
    database = MySQLDatabase(url.decode().strip(), LIMITS)
    session = database.open([PEOPLE])
    subprocess.run([script, "stop", name], check=True)
    with pytest.raises(EnvFault, match="mysql://root@"):
        session.execute("SELECT 1")
    with pytest.raises(EnvFault, match="mysql://root@"):
        session.read_table("people")
    with pytest.raises(EnvFault, match="mysql://root@"):
        database.open([PEOPLE])
    session.close()
    database.close()


@pytest.mark.slow
def test_stopped_server_is_a_fault_and_costs_its_wait_once(mysql_url: str) -> None:
    script, name = Path(__file__).parents[3] / ".ci" / "mysql_server.sh", f"stopped-{os.getpid()}"
    url = subprocess.run([script, "start", name], stdout=subprocess.PIPE, check=True).stdout
    database = MySQLDatabase(url.decode().strip(), LIMITS)
    session = database.open([PEOPLE])
    client = MySQLClient(Address.parse(url.decode().strip()), read_timeout_s=10)
    pid = int(Path(str(client.query("SELECT @@pid_file")[0][0])).read_text())
    client.close()
    os.kill(pid, signal.SIGSTOP)
    while "\nState:\tT" not in Path(f"/proc/{pid}/status").read_text():
        time.sleep(0.01)  # its threads stop one after the other
    try:
        with pytest.raises(EnvFault, match="accepts connections but does not answer"):
            session.execute("UPDATE people SET age = 1")
        start_s = time.monotonic()
        for _ in range(20):
            with pytest.raises(EnvFault, match="accepts connections but does not answer"):
                session.execute("SELECT 1")
        assert time.monotonic() - start_s < 5
    finally:
        os.kill(pid, signal.SIGCONT)
        session.close()
        database.close()
        subprocess.run([script, "stop", name], check=True)


@pytest.mark.slow
def test_what_accepts_and_says_nothing_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(EnvFault, match="does not answer: is its disk full"):
            MySQLDatabase(f"mysql://root:secret@127.0.0.1:{port}")


def open_when_back(database: MySQLDatabase) -> MySQLSession:
    """Every pooled connection may fail once, each with an EnvFault that a runner retries."""
    for _ in range(10):
        try:
            return database.open([PEOPLE])
        except EnvFault:
            continue
    raise AssertionError("the backend does not recover")


@pytest.mark.parametrize(
    "url", ["postgres://u:secret@h", "mysql://u:secret@h:port", "mysql://u:secret@h/db", "secret"]
)
def test_bad_url_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(SettingsError, match="expected mysql://") as error:
        MySQLDatabase(url)
    assert "secret" not in str(error.value)


def test_unreachable_server_says_what_to_start() -> None:
    with pytest.raises(EnvFault) as error:
        MySQLDatabase("mysql://root:secret@127.0.0.1:1")
    assert "mysql://root@127.0.0.1:1" in str(error.value)
    assert "start" in str(error.value)
    assert "secret" not in str(error.value)


def test_no_representation_tells_a_password() -> None:
    assert "secret" not in repr(Address.parse("mysql://root:secret@localhost"))
    assert "secret" not in repr(Slot("name", "secret"))


def test_wrong_password_is_a_settings_error(mysql_url: str) -> None:
    address = Address.parse(mysql_url)
    with pytest.raises(SettingsError, match="Access denied"):
        MySQLDatabase(f"mysql://root:secret@{address.host}:{address.port}")


class FullServersClient:
    """Answers every statement with one error."""

    def __init__(self, text: str) -> None:
        self._error = ServerError(int(text[:4]), text)

    def query(self, _sql: str) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            '1005 (HY000): Can\'t create table `a`.`b` (errno: 28 "No space left on device")',
            EnvFault,
        ),
        ('1005 (HY000): Can\'t create table `a`.`b` (errno: 135 "No more room")', EnvFault),
        ("1021 (HY000): Disk full (/tmp)", EnvFault),
        ("1114 (HY000): The table 'b' is full", EnvFault),
        ("1041 (HY000): Out of memory.", EnvFault),
        ('1005 (HY000): Can\'t create table `a`.`b` (errno: 150 "Foreign key")', DataError),
        ("1064 (42000): You have an error in your SQL syntax", DataError),
    ],
)
def test_a_server_without_room_is_no_mistake_of_the_task(
    database: MySQLDatabase, text: str, kind: type[Exception]
) -> None:
    full: Any = FullServersClient(text)
    server, watchdog = database._server, database._watchdog
    session = MySQLSession(server, watchdog, Slot("a", ""), full, lambda _: None)
    with pytest.raises(kind, match="table 'people' cannot be made"):
        session.load([PEOPLE])
