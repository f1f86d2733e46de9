"""Statements whose work multiplies by nesting end in time on a server, or are not sent."""

# ruff: noqa: E501 (a table of statements has one a line)

import time
from collections.abc import Callable, Iterator

import pytest

from agentpeft.envs.db_bench.backends.protocol import Column, DatabaseLimits, DatabaseSession, Table
from agentpeft.envs.db_bench.backends.server.client import Address, MySQLClient
from agentpeft.envs.db_bench.backends.server.database import MySQLDatabase
from agentpeft.envs.db_bench.backends.server.statement_growth import StatementGuard

LIMIT_S = 1.0
SLACK_S = 4.0
DEPTHS = (6, 14, 17, 22, 40, 200)
PETS = Table(
    "pets",
    (Column("name", "VARCHAR(20)"), Column("age", "INT"), Column("weight", "DECIMAL(6,2)")),
    (("Rex", 3, "12.50"), ("Tom", 5, "4.00"), ("Kit", 7, None)),
)
EXPRESSIONS = {
    "null if": "NULLIF(@, name)",
    "null if on the right": "NULLIF(age, @)",
    "in a list": "(@ IN (name, age, 1))",
    "in a list without brackets": "@ IN (name, age, 1)",
    "in a list of constants": "(@ IN ('a', 1))",
    "not in a list": "(@ NOT IN (name, 1))",
    "list of it": "(age IN (@, name, 1))",
    "rows in a list": "((@, age) IN ((name, 1), (1, 2)))",
    "rows": "((@, age) = (name, 1))",
    "between": "(@ BETWEEN name AND 1)",
    "case": "CASE @ WHEN name THEN 1 WHEN 1 THEN 2 END",
    "case of many types": "CASE @ WHEN name THEN 1 WHEN 1 THEN 2 WHEN weight THEN 3 WHEN NOW() "
    "THEN 4 WHEN 1e0 THEN 5 END",
    "case of conditions": "CASE WHEN @ THEN 1 ELSE 2 END",
    "decode": "DECODE_ORACLE(@, name, 1, 2, 3, 4)",
    "coalesce": "COALESCE(@, name)",
    "field": "FIELD(@, name, age, 1)",
    "greatest": "GREATEST(@, name, NOW())",
    "interval": "INTERVAL(@, 1, 2, 3)",
    "like with an escape": "(@ LIKE name ESCAPE 'a')",
    "comparison": "(@ = name)",
    "truth": "(@ IS NOT TRUE)",
    "in a query": "(@ IN (SELECT a.age FROM pets a))",
    "in a union": "(@ IN (SELECT a.age FROM pets a UNION SELECT 2))",
    "query of it": "(age IN (SELECT @ FROM pets a WHERE a.age > 3))",
    "any": "(@ > ANY (SELECT a.age FROM pets a))",
    "all of it": "(age > ALL (SELECT @ FROM pets a))",
    "exists": "EXISTS (SELECT 1 FROM pets a WHERE @)",
    "scalar query": "(SELECT @)",
}
QUERIES = {
    "derived": "SELECT x + x AS x FROM (@) t",
    "derived and subquery": "SELECT x, (SELECT x) FROM (SELECT x + x AS x FROM (@) a) b",
    "all": "SELECT age AS x FROM pets WHERE age > ALL (@)",
    "not in": "SELECT age AS x FROM pets WHERE age NOT IN (@)",
}
COMMON_TABLES = {
    "joined": "SELECT a.x FROM @ a JOIN @ b ON a.x = b.x LIMIT 1",
    "crossed": "SELECT a.x FROM @ a, @ b",
    "united": "SELECT x FROM @ UNION SELECT x FROM @",
    "summed": "SELECT x + x AS x FROM @ WHERE x > 0",
    "queried": "SELECT (SELECT MAX(x) FROM @) + (SELECT MIN(x) FROM @) AS x",
}


def nest(pattern: str, innermost: str, depth: int) -> str:
    """Returns a pattern in itself, in place of its `@`."""
    before, after = pattern.split("@")
    return before * depth + innermost + after * depth


def chain(pattern: str, depth: int) -> str:
    """Returns common tables, each of which names the one before in place of `@`."""
    tables = [f"c{i} AS ({pattern.replace('@', f'c{i - 1}')})" for i in range(1, depth + 1)]
    first = "WITH c0 AS (SELECT age AS x FROM pets)"
    return f"{', '.join([first, *tables])} SELECT COUNT(*) FROM c{depth}"


def aliases(depth: int) -> str:
    items = (f"(SELECT x{i} + x{i}) AS x{i + 1}" for i in range(depth))
    return f"SELECT age AS x0, {', '.join(items)} FROM pets"


def defaults(depth: int) -> str:
    columns = (f"c{i} INT DEFAULT (DEFAULT(c{i - 1}) - DEFAULT(c{i - 1}))" for i in range(1, depth))
    return (
        f"CREATE TABLE d (c0 INT DEFAULT (1 + 1), {', '.join(columns)}); INSERT INTO d () VALUES ()"
    )


def cases_in_aliases(depth: int) -> str:
    items = (
        f"(SELECT {nest(EXPRESSIONS['case of many types'], f'x{i}', 4)}) AS x{i + 1}"
        for i in range(depth)
    )
    return f"SELECT age AS x0, {', '.join(items)} FROM pets"


def lists_in_cases(depth: int) -> str:
    lists = nest(EXPRESSIONS["in a list without brackets"], "age", depth)
    return f"SELECT {nest(EXPRESSIONS['case of many types'], lists, 6)} FROM pets"


def case_of_an_alias(depth: int) -> str:
    case = EXPRESSIONS["case of many types"]
    return f"SELECT {nest(case, 'age', depth)} AS x FROM pets ORDER BY {nest(case, 'x', depth)}"


def joins(depth: int) -> str:
    return f"SELECT COUNT(*) FROM {', '.join(f'pets p{i}' for i in range(depth))}"


FAMILIES: dict[str, Callable[[int], str]] = {
    **{
        f"{name} in {clause.split()[0]}": (
            lambda depth, pattern=pattern, clause=clause: clause.format(nest(pattern, "age", depth))
        )
        for name, pattern in EXPRESSIONS.items()
        for clause in ("SELECT {} FROM pets", "DELETE FROM pets WHERE {}")
    },
    **{
        name: lambda depth, query=query: nest(query, "SELECT age AS x FROM pets", depth)
        for name, query in QUERIES.items()
    },
    **{
        f"common table {name}": lambda depth, query=query: chain(query, depth)
        for name, query in COMMON_TABLES.items()
    },
    "aliases": aliases,
    "defaults": defaults,
    "joins": joins,
    "cases in aliases": cases_in_aliases,
    "lists in cases": lists_in_cases,
    "case of an alias": case_of_an_alias,
}


@pytest.fixture(scope="module")
def database(mysql_url: str) -> Iterator[MySQLDatabase]:
    made = MySQLDatabase(mysql_url, DatabaseLimits(statement_timeout_s=LIMIT_S))
    yield made
    made.close()


@pytest.fixture(scope="module")
def administrator(mysql_url: str) -> Iterator[MySQLClient]:
    client = MySQLClient(Address.parse(mysql_url), 10)
    yield client
    client.close()


@pytest.fixture
def session(database: MySQLDatabase) -> Iterator[DatabaseSession]:
    made = database.open([PETS])
    yield made
    made.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_statements_end_however_deep_they_are(
    family: str, session: DatabaseSession, administrator: MySQLClient
) -> None:
    for depth in DEPTHS:
        start_s = time.monotonic()
        session.execute(FAMILIES[family](depth))
        assert time.monotonic() - start_s < LIMIT_S + SLACK_S, depth
        assert find_running(administrator, session) == [], depth


def find_running(administrator: MySQLClient, session: DatabaseSession) -> list:
    """Returns what of the session's still runs after two seconds."""
    for _ in range(20):
        running = administrator.query(
            "SELECT COMMAND, LEFT(INFO, 60) FROM information_schema.PROCESSLIST "
            f"WHERE USER = '{session.slot.name}' AND COMMAND <> 'Sleep'"
        )
        if not running:
            break
        time.sleep(0.1)
    return running


@pytest.mark.parametrize(
    ("sql", "number"),
    [
        ("EXECUTE IMMEDIATE CONCAT('SELECT ', 1)", "1295"),
        ("SET @a = 'SELECT 1'; PREPARE s FROM @a; EXECUTE s", "1295"),
        ("BEGIN NOT ATOMIC EXECUTE/**/IMMEDIATE 'SELECT 1'; END", "1295"),
        ("/*! CREATE TABLE t (a INT DEFAULT (1), b INT DEFAULT (DEFAULT(a) - 1)) */", "3773"),
        ("CREATE TABLE t (a INT DEFAULT (1), b INT DEFAULT (ABS(DEFAULT(a)) - 1))", "3773"),
        ("ALTER TABLE t ADD COLUMN b INT DEFAULT DEFAULT(a)", "3773"),
        ("/*!50000 EXECUTE */ IMMEDIATE 'SELECT 1'", "1295"),
        (f"SELECT 1 /*!99999 ' */, {nest('NULLIF(@, name)', 'age', 40)} /*' */", "1436"),
        (f"SET sql_mode = 'NO_BACKSLASH_ESCAPES'; SELECT '\\', {'NULLIF(' * 40}'", "1436"),
        (f"SET NAMES sjis; SELECT 'é\\', {'NULLIF(' * 40}'", "1436"),
        (f"SELECT {nest('NULLIF(@, name)', 'age', 40)} -- )))", "1436"),
        (f"SELECT ')', {nest('NULLIF(@, `)`)', 'age', 40)}", "1436"),
    ],
)
def test_what_hides_statements_is_refused(sql: str, number: str) -> None:
    assert str(StatementGuard().find_refusal(sql)).startswith(number)


def test_a_change_of_how_texts_are_read_is_remembered() -> None:
    guard = StatementGuard()
    hidden = f"SELECT '\\', {'NULLIF(' * 40}'"
    assert guard.find_refusal(hidden) is None
    assert guard.find_refusal("SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES'") is None
    assert str(guard.find_refusal(hidden)).startswith("1436")


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t (a) VALUES "
        + ", ".join(["('It\\'s in the (old) case, (all) of it')"] * 300),
        "SELECT "
        + ", ".join(f"SUM(CASE WHEN m = {i} THEN a * b ELSE 0 END) AS m{i}" for i in range(24))
        + " FROM (SELECT MONTH(d) AS m, IFNULL(a, 0) AS a, b FROM t WHERE a IN (1, 2, 3)) s "
        "GROUP BY y HAVING m1 > 0 ORDER BY m1",
        "SELECT "
        + ", ".join(
            f"(SELECT COUNT(*) FROM u WHERE u.a = t.a AND u.b = {i}) AS n{i}" for i in range(12)
        )
        + " FROM t ORDER BY n1, n2",
        "WITH "
        + ", ".join(
            f"c{i} AS (SELECT t.a AS a, SUM(t.b) / COUNT(*) AS b FROM c{i - 1} t JOIN u USING (a) GROUP BY t.a)"
            for i in range(1, 6)
        ).replace("c0 t", "v t")
        + " SELECT * FROM c5 ORDER BY b",
        nest("SELECT a FROM t WHERE b IN (@)", "SELECT a FROM t", 5),
        nest("SELECT a, b FROM (@) t WHERE b > 1 AND a <> b", "SELECT a, b FROM t", 8),
        "SELECT * FROM t WHERE " + " OR ".join(["(a IN (1, 2) AND b BETWEEN 3 AND 4)"] * 200),
        "SELECT " + nest("REPLACE(@, 'a', 'b')", "name", 30) + " FROM t",
        "CREATE TABLE t (" + ", ".join(f"c{i} INT DEFAULT (1 + 1)" for i in range(50)) + ")",
        "XA PREPARE 'x'",
    ],
    ids=lambda sql: sql[:30],
)
def test_what_is_usual_is_sent(sql: str) -> None:
    assert StatementGuard().find_refusal(sql) is None


@pytest.mark.parametrize(
    "piece",
    [
        "(",
        "CASE ",
        "'",
        "'\\",
        "`",
        '"',
        "/*",
        "/*!",
        "-- ",
        "\\",
        "1.",
        "a.b,",
        "SET ",
        "DEFAULT ",
        "WITH a AS (",
        "SELECT x,",
        "(SELECT x + x) AS x,",
        "IN (",
        "))((",
        "é`",
    ],
)
def test_texts_are_read_in_linear_time(piece: str) -> None:
    text = "SELECT " + piece * (20_000 // len(piece))
    start_s = time.process_time()
    StatementGuard().find_refusal(text)
    assert time.process_time() - start_s < 0.5
