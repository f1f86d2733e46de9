"""The tables that an episode begins with, and the setting that names a database."""

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal

import pytest

from agentpeft.envs.core.errors import DataError, SettingsError
from agentpeft.envs.db_bench.backends.opening import open_database
from agentpeft.envs.db_bench.backends.protocol import Column, Database, DatabaseLimits, Table, Value

LIMITS = DatabaseLimits()
SHOP = Table("shop", (Column("item", "TEXT"), Column("price", "DOUBLE")), (("pen", 1.5),))


@pytest.fixture
def stored(database: Database) -> Callable[[str, Value], Value]:
    """A function that stores a value in a column of a type and returns what is read back."""

    def store(column_type: str, value: Value) -> Value:
        session = database.open([Table("t", (Column("c", column_type),), ((value,),))])
        contents = session.read_table("t")
        session.close()
        assert contents is not None
        return contents.rows[0][0]

    return store


@pytest.mark.parametrize(
    ("column_type", "value", "expected"),
    [
        ("INT", "42", 42),
        ("INT", True, 1),
        ("INT", 2.5, 3),
        ("BIGINT", 2**62, 2**62),
        ("DECIMAL(10,2)", "3.145", Decimal("3.15")),
        ("DOUBLE", "0.1", 0.1),
        ("TEXT", 5, "5"),
        ("TEXT", 'it\'s \\ "x" \n', 'it\'s \\ "x" \n'),
        ("VARCHAR(5)", "héllo", "héllo"),
        ("DATE", "2024-02-29", date(2024, 2, 29)),
        ("DATETIME", "2024-02-29 10:11:12", datetime(2024, 2, 29, 10, 11, 12)),
        ("INT", None, None),
    ],
)
def test_values_are_stored_as_their_column_stores_them(stored, column_type, value, expected):
    read = stored(column_type, value)
    assert (read, type(read)) == (expected, type(expected))


@pytest.mark.parametrize(
    "name", ["my table", "order", "a-b", "q\"uo'te", "back`tick", "größe", "%s"]
)
def test_strange_names_work(database, name):
    session = database.open(
        [Table(name, (Column(name, "INT"), Column("a b", "TEXT")), ((1, "x"),))]
    )
    quoted = "`" + name.replace("`", "``") + "`"
    assert session.execute(f"SELECT {quoted}, `a b` FROM {quoted}").rows == ((1, "x"),)
    table = session.read_table(name)
    assert (table.columns, list(table.rows)) == ((name, "a b"), [(1, "x")])
    session.close()


@pytest.mark.parametrize(
    "table",
    [
        Table("t", (Column("", "INT"),), ()),
        Table("", (Column("a", "INT"),), ()),
        Table("t", (Column("a", "INT"), Column("A", "INT")), ()),
        Table("t", (Column("a", "NOSUCHTYPE"),), ()),
        Table("t", (), ()),
        Table("t", (Column("a", "INT"),), (("word",),)),
        Table("t", (Column("a", "INT"),), ((1, 2),)),
        Table("t", (Column("a", "VARCHAR(2)"),), (("abc",),)),
        Table("t", (Column("a", "DATE"),), (("2024-13-01",),)),
        Table("t", (Column("a", "TINYINT"),), ((300,),)),
    ],
)
def test_tables_that_no_server_could_hold_are_a_data_error(database, table):
    with pytest.raises(DataError) as caught:
        database.open([table])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("sqlit", "did you mean 'sqlite'"),
        ("mysq://root:secret@host", "did you mean 'mysql'"),
        ("sqlite:///tmp/x.db", "takes no such address"),
        ("docker://", "takes no such address"),
        ("", "known: docker, mysql, sqlite"),
        (None, "database must be a name or a URL, got None"),
    ],
)
def test_an_unknown_database_is_a_settings_error_without_the_password(spec, words):
    with pytest.raises(SettingsError) as caught:
        open_database(spec, LIMITS)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_mysql_without_a_url_says_what_to_set(monkeypatch):
    monkeypatch.delenv("AGENTPEFT_MYSQL_URL", raising=False)
    with pytest.raises(SettingsError, match="set AGENTPEFT_MYSQL_URL to mysql://user"):
        open_database("mysql", LIMITS)


def test_a_backend_lives_until_its_last_user_closes_it():
    limits = DatabaseLimits(max_rows=7)
    first, second = open_database("sqlite", limits), open_database("sqlite", limits)
    first.close()
    first.close()
    session = second.open([SHOP])
    assert session.execute("SELECT item FROM shop WHERE item LIKE 'p%'").rows == (("pen",),)
    session.close()
    second.close()


@pytest.mark.parametrize(
    ("end", "num_rows"), [("", 2), ("; COMMIT", 0), ("; SET autocommit = 1", 0), ("; ROLLBACK", 2)]
)
def test_what_is_not_committed_is_not_graded(database: Database, end: str, num_rows: int) -> None:
    table = Table("t", (Column("a", "INT"),), ((1,), (2,)))
    session = database.open([table])
    assert session.execute(f"SET autocommit = 0; DELETE FROM t{end}").error is None
    contents = session.read_table("t")
    session.close()
    assert contents is not None
    assert len(contents.rows) == num_rows
