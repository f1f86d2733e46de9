"""Tables and names as an agent or a task may make them: MySQL's answers, and no exception."""

import random
import re
from itertools import product

import pytest

from agentpeft.envs import DataError
from agentpeft.envs.db_bench.backends.opening import open_database
from agentpeft.envs.db_bench.backends.protocol import (
    Column,
    Database,
    DatabaseLimits,
    Table,
    TableContents,
    UnreadableTable,
)

PETS = Table(
    "pets",
    (Column("name", "VARCHAR(20)"), Column("age", "INT")),
    (("Ada", 3), ("Bo", None)),
)
TYPES = (
    "DATE", "DATETIME", "TIMESTAMP", "TIME", "YEAR", "DECIMAL(5,2)", "DECIMAL(65,30)", "TINYINT",
    "INT", "BIGINT UNSIGNED", "FLOAT", "DOUBLE", "BIT(4)", "CHAR(3)", "VARCHAR(5)", "TEXT",
    "BLOB", "VARBINARY(3)", "JSON", "ENUM('b','a')", "BOOLEAN",
)  # fmt: skip
DEFAULTS = (
    "", "DEFAULT NULL", "DEFAULT CURRENT_TIMESTAMP", "DEFAULT NOW()", "DEFAULT (NOW())",
    "DEFAULT 5", "DEFAULT -1", "DEFAULT 1e30", "DEFAULT 'x'", "DEFAULT ''", "DEFAULT '0000-00-00'",
    "DEFAULT '2020-02-30'", "DEFAULT '-838:59:59'", "DEFAULT (1 / 0)", "DEFAULT (RAND())",
    "DEFAULT (9223372036854775807 + 1)", "DEFAULT 'CURRENT_TIMESTAMP'", "DEFAULT x'ff'",
    "DEFAULT (CAST('x' AS DATE))", "DEFAULT (REPEAT('x', 300))", "DEFAULT (NULL)", "UNIQUE",
    "AUTO_INCREMENT PRIMARY KEY", "DEFAULT TRUE",
)  # fmt: skip
EXPRESSIONS = (
    "9223372036854775807 + 1", "-9223372036854775808 - 1", "9223372036854775807 * age",
    "18446744073709551615", "NULL", "@a", "1e308 * 10", "-1e308 * 10", "1 / 3", "1 / 0", "0 / 1e0",
    "CURRENT_TIMESTAMP", "CURRENT_TIME", "CURDATE()", "CAST('x' AS DATE)", "CAST('' AS DATETIME)",
    "CAST('0000-00-00' AS DATE)", "TIME('838:59:59')", "TIME('x')", "SEC_TO_TIME(999999999)",
    "MAKEDATE(2020, 0)", "DATE_ADD('9999-12-31', INTERVAL 1 DAY)", "FROM_UNIXTIME(-1)", "x'ff'",
    "CAST(x'ff' AS CHAR)", "CAST('x' AS DECIMAL(5, 2))", "CAST(1e300 AS DECIMAL(65, 30))",
    "POW(10, 400)", "EXP(1000)", "LOG(0)", "ABS(-9223372036854775808)", "CASE WHEN age THEN 1 ELSE "
    "'a' END", "IF(age, CURDATE(), 5)", "COALESCE(NULL, NULL)", "(SELECT CURDATE() UNION SELECT 1 "
    "LIMIT 1)", "REPEAT('x', 100000)", "BIT_XOR(age)", "AVG(age)", "SUM(age * 1e300 * 1e300)",
    "GROUP_CONCAT(age)", "~0", "1 << 63", "-age", "age DIV 0", "MOD(age, 0)", "TRUE", "DATE(age)",
    "STR_TO_DATE('x', '%Y')", "LAST_DAY('2020-00-00')", "TIMESTAMPDIFF(YEAR, 'x', age)",
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab' REGEXP '^(a+)+$'",
)  # fmt: skip
SQLITES_WORDS = re.compile(
    r"no such|syntax error|near \"|constraint failed|Unknown error|sqlite(?!_x)|there is already|"
    r"reserved for internal|circular reference|is not unique|ambiguous column|may not be|"
    r"\U000f0000",
    re.IGNORECASE,
)
MYSQL_ERROR = re.compile(r"\d{4} \(\w{5}\): .+", re.DOTALL)


@pytest.fixture(scope="module")
def embedded():
    backend = open_database("sqlite", DatabaseLimits(statement_timeout_s=5.0))
    yield backend
    backend.close()


def check(database: Database, sql: str, table: str = "pets") -> TableContents | UnreadableTable:
    """Runs SQL, then the answer's read: nothing raises, and errors are in MySQL's words."""
    session = database.open([PETS])
    result = session.execute(sql)
    if result.error is not None:
        assert MYSQL_ERROR.fullmatch(result.error), (sql, result.error)
        assert not SQLITES_WORDS.search(result.error), (sql, result.error)
    contents = session.read_table(table)
    session.close()
    return contents


@pytest.mark.parametrize("declared", TYPES)
def test_no_new_column_breaks_the_reading(database: Database, declared: str) -> None:
    for nullability, default in product(("", "NOT NULL"), DEFAULTS):
        column = f"d {declared} {nullability} {default}"
        insert = "INSERT INTO pets (name) VALUES ('Cy')"
        contents = check(database, f"ALTER TABLE pets ADD COLUMN {column}; {insert}")
        assert contents.columns[:2] == ("name", "age"), column
        check(database, f"CREATE TABLE z (a INT, {column}); INSERT INTO z (a) VALUES (1)", "z")
        check(database, f"ALTER TABLE pets MODIFY name {declared} {nullability} {default}")


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_no_table_made_of_a_query_breaks_the_reading(database: Database, expression: str) -> None:
    check(database, f"DROP TABLE pets; CREATE TABLE pets AS SELECT {expression} AS a")
    check(database, f"CREATE TABLE z AS SELECT {expression} AS a FROM pets", "z")
    for declared in TYPES:
        check(
            database,
            f"CREATE TABLE z (a {declared}); INSERT INTO z SELECT {expression} FROM pets;",
            "z",
        )


NAMES = (
    "# of Episodes", "#", "##", "a#b", "`", "``", "a`b", '"', 'a"b', "'", "a'b", "a.b", ".", "a,b",
    "(", ")", "a(b", "--", "/*", ";", "\\", "%", "@", "?", ":a", "$1", "order", "select", "group",
    "key", "index", "count", "sum", "replace", "left", "if", "Ünï", "数", "a b", "  a", "1", "1e5",
    "0x1", "NULL", "DEFAULT", "CURRENT_TIMESTAMP", "rowid", "oid", "_rowid_", "c", "q", "s",
    "i", "c0", "r", "found_key", "my_new_table", "new_table", "my_store", "my_sleep(", " AS (x",
    " ORDER BY x", "excludedx", "main", "temp", "NOCASE", "autocommit", "x" * 64,
)  # fmt: skip


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_column_comes_back(database: Database, name: str) -> None:
    column = quoted(name)
    table = Table("t", (Column("id", "INT"), Column(name, "INT")), ((1, 5), (2, 7)))
    session = database.open([table])

    def rows(sql: str):
        result = session.execute(sql)
        assert result.error is None, (sql, result.error)
        return result.rows

    assert rows(f"SELECT {column} FROM t ORDER BY {column} DESC") == ((7,), (5,))
    assert rows(f"SELECT t.{column} AS {column} FROM t WHERE {column} = 5") == ((5,),)
    assert rows(f"SELECT MAX({column}), COUNT({column}) FROM t GROUP BY id % 1") == ((7, 2),)
    assert rows(f"SELECT a.{column} FROM t a JOIN t b ON a.{column} < b.{column}") == ((5,),)
    assert rows(f"SELECT x.{column} FROM (SELECT {column} FROM t) x ORDER BY 1") == ((5,), (7,))
    assert rows(f"SELECT id FROM t WHERE {column} IN (SELECT {column} FROM t WHERE id = 2)") == (
        (2,),
    )
    rows(f"INSERT INTO t (id, {column}) VALUES (3, 9)")
    rows(f"UPDATE `t` SET {column} = {column} + 1 WHERE {column} = '9'")
    rows(f"UPDATE t a SET a.{column} = a.{column} + 1 WHERE a.id = 3")
    rows("DELETE FROM t WHERE id = 1 ORDER BY id LIMIT 1")
    contents = session.read_table("t")
    assert contents.columns == ("id", name)
    assert sorted(contents.rows) == [(2, 7), (3, 11)]
    rows(f"CREATE TABLE u ({column} INT); INSERT INTO u SELECT id FROM t")
    assert session.read_table("u").columns == (name,)
    session.close()


@pytest.mark.parametrize("name", [name for name in NAMES if not re.search(r"[./\\]", name)])
def test_any_name_of_a_table_works(database: Database, name: str) -> None:
    table = quoted(name)
    session = database.open([Table(name, (Column("c", "INT"), Column("d", "INT")), ((1, 2),))])

    def rows(sql: str):
        result = session.execute(sql)
        assert result.error is None, (sql, result.error)
        return result.rows

    rows(f"INSERT INTO {table} SELECT c + 1, d FROM {table}")
    assert rows(
        f"SELECT (SELECT MAX(c) FROM {table}), x.a FROM (SELECT c AS a FROM {table}) x"
    ) == (
        (2, 1),
        (2, 2),
    )
    assert rows(f"SELECT {table}.c FROM {table} WHERE c = ANY (SELECT c FROM {table})") == (
        (1,),
        (2,),
    )
    rows(f"CREATE TABLE other (c INT, d INT); INSERT INTO other SELECT * FROM {table}")
    rows(f"UPDATE {table} SET {table}.d = 5 WHERE c IN (SELECT c FROM other)")
    contents = session.read_table(name)
    assert contents.columns == ("c", "d")
    assert sorted(contents.rows) == [(1, 5), (2, 5)]
    rows(f"DROP TABLE {table}")
    assert session.read_table(name) is None
    session.close()


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("WITH pets AS (SELECT name FROM pets) SELECT * FROM pets", (("Ada",), ("Bo",))),
        ("SELECT ROW_NUMBER() OVER (ORDER BY age) FROM pets ORDER BY 1", ((1,), (2,))),
        ("SELECT p.age, (SELECT MAX(q.age) FROM pets q) FROM pets p LIMIT 1", ((3, 3),)),
        ("SELECT 1 FROM pets q WHERE age IN (SELECT age + 0 FROM pets c)", ((1,),)),
    ],
)
def test_internal_names_hide_no_names_of_a_statement(database: Database, sql: str, rows) -> None:
    session = database.open([PETS])
    assert session.execute(sql).rows == rows
    session.close()


@pytest.mark.parametrize("name", ["\U0001f600", "\U000f0000a", "a\U0010ffff"])
def test_a_name_has_no_character_that_mysql_refuses(embedded: Database, name: str) -> None:
    session = embedded.open([PETS])
    for sql in (f"SELECT 1 AS `{name}`", f"CREATE TABLE `{name}` (a INT)", f"SELECT {name}(1)"):
        assert session.execute(sql).error.startswith("1300 (HY000): Invalid utf8mb3 character")
    assert session.execute(f"SELECT '{name}', \"{name}\"").rows == ((name, name),)
    session.close()
    with pytest.raises(DataError):
        embedded.open([Table("t", (Column(name, "INT"),), ())])


def test_no_change_of_odd_tables_is_answered_in_sqlites_words(embedded: Database) -> None:
    rng = random.Random(1)
    others = (
        "nope",
        "sqlite_x",
        "Pets",
        "PETS",
        "a ",
        "",
        "pets",
        "x" * 65,
        "\U0001f600",
        "information_schema",
    )
    actions = (
        "ADD COLUMN {a} INT", "ADD {a} INT NOT NULL AFTER {b}", "MODIFY {a} INT FIRST",
        "MODIFY {a} DATE NOT NULL", "CHANGE {a} {b} INT", "DROP COLUMN {a}", "RENAME TO {a}",
        "RENAME COLUMN {a} TO {b}", "ADD PRIMARY KEY ({a})", "ADD UNIQUE {a} ({b})",
        "ALTER COLUMN {a} SET DEFAULT 5", "ADD CONSTRAINT {a} CHECK ({b} > 0)", "DROP INDEX {a}",
        "ADD INDEX {a} ({b})", "ADD {a} INT UNIQUE", "ADD {a} INT PRIMARY KEY", "CONVERT TO {a}",
    )  # fmt: skip
    for _ in range(1500):
        table, a, b = (quoted(rng.choice((*NAMES, *others, "name", "age"))) for _ in range(3))
        chosen = rng.choice((table, "pets"))
        statements = (
            f"CREATE TABLE {table} (name INT, {a} INT NOT NULL, {b} DATE)",
            f"ALTER TABLE {chosen} {rng.choice(actions).format(a=a, b=b)}",
            f"ALTER TABLE {chosen} {rng.choice(actions).format(a=b, b=a)}",
            f"INSERT INTO {chosen} VALUES (1, 2)",
        )
        for sql in ("; ".join(statements), *statements):
            check(embedded, sql)
