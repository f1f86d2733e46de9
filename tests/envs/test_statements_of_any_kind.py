"""No statement leaves the embedded database with an exception, whatever it consists of."""

import random
from contextlib import closing

import pytest

from agentpeft.envs.db_bench.backends.opening import open_database
from agentpeft.envs.db_bench.backends.protocol import (
    Column,
    DatabaseLimits,
    DatabaseSession,
    Table,
)

_WORDS = r"""
SELECT FROM WHERE GROUP BY ORDER HAVING LIMIT OFFSET UNION ALL DISTINCT INSERT INTO VALUES UPDATE
SET DELETE CREATE TABLE PRIMARY KEY UNIQUE DEFAULT NULL NOT DROP SHOW TABLES COLUMNS DATABASES
TRUNCATE USE BEGIN COMMIT ROLLBACK WITH AS IN ANY EXISTS BETWEEN AND OR LIKE ESCAPE REGEXP CASE
WHEN THEN ELSE END IS TRUE JOIN LEFT ON OVER PARTITION INTERVAL DAY MONTH CAST CONVERT SIGNED
UNSIGNED DECIMAL CHAR DATE INT TEXT VARCHAR COUNT SUM AVG MAX GROUP_CONCAT SEPARATOR TRIM LEADING
EXTRACT YEAR DATE_ADD STR_TO_DATE DATE_FORMAT LPAD REPEAT SUBSTRING ROUND POW GREATEST t u a b
( ) ( ) ( ) , , , * + - / % = <> < >= . ; 0 1 -1 2.5 1e308 9223372036854775807 1e999 ''
'a' '%Y' '2024-01-31' '\\' '(' '[' 'é' "x" `t` `a b` @a @@v := ? 0x41 x'zz' _utf8'a' # -- /* */
"""
_TOKENS = _WORDS.split()
_CLAUSES = (
    "SELECT {} FROM t",
    "SELECT a FROM t WHERE {}",
    "SELECT a FROM t ORDER BY {}",
    "SELECT {} FROM t GROUP BY b HAVING {}",
    "INSERT INTO t VALUES ({}, {})",
    "UPDATE t SET a = {} WHERE {}",
    "DELETE FROM t WHERE {}",
    "CREATE TABLE u (a {}, b {})",
    "{}",
)
_ARGUMENTS = (
    "NULL",
    "''",
    "'a'",
    "-1",
    "1.5",
    "1e300",
    "a",
    "b",
    "9223372036854775807",
    "'2024-13-40'",
)
_FUNCTIONS = """
DATE_ADD({}, INTERVAL {} MONTH)|DATE_FORMAT({}, {})|STR_TO_DATE({}, '%d/%m/%Y')|LPAD({}, {}, {})
SUBSTRING_INDEX({}, {}, {})|POW({}, {})|SQRT({})|TRUNCATE({}, 2)|FORMAT({}, 3)|TRIM({} FROM {})
GROUP_CONCAT({} ORDER BY {})|{} REGEXP {}|({}, {}) IN (({}, {}))|({}, {}) = (SELECT {}, {})
{} > ALL (SELECT {} FROM t)|CAST({} AS UNSIGNED)|CAST({} AS DECIMAL(5, 2))|CAST({} AS DATETIME)
{} IN ({}, {}, {})|GREATEST({}, {})|LOCATE({}, {}, {})|REPEAT({}, {})|LAST_DAY({})|{} DIV {}
{} LIKE {} ESCAPE {}|COUNT(DISTINCT {}, {})|FIELD({}, {}, {})|CONCAT_WS({}, {})|ROUND({}, 2)
"""
_CALLS = _FUNCTIONS.strip().replace("\n", "|").split("|")


@pytest.fixture(scope="module")
def session():
    columns = (Column("a", "INT"), Column("b", "VARCHAR(20)"))
    rows = ((1, "x"), (2, None), (None, "😀\0"))
    with closing(open_database("sqlite", DatabaseLimits(statement_timeout_s=1))) as backend:
        opened = backend.open([Table("t", columns, rows)])
        yield opened
        opened.close()


def run(session: DatabaseSession, sql: str) -> str:
    """Returns the number of the error that a statement gives, "" for none."""
    result = session.execute(sql)
    session.execute("ROLLBACK")
    return (result.error or "").split(" ")[0]


def test_tokens_in_any_order_are_answered(session) -> None:
    draw = random.Random(40)
    for _ in range(1500):
        clause = draw.choice(_CLAUSES)
        soup = (" ".join(draw.choices(_TOKENS, k=draw.randint(1, 12))) for _ in range(2))
        run(session, clause.format(*soup))


def test_functions_of_any_values_are_answered(session) -> None:
    draw = random.Random(41)
    for _ in range(1500):
        call = draw.choice(_CALLS)
        values = draw.choices(_ARGUMENTS, k=call.count("{}"))
        assert run(session, f"SELECT {call.format(*values)} FROM t") != "1105", (call, values)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT " + "(" * 5000 + "1" + ")" * 5000,
        "SELECT " + "NOT " * 5000 + "1",
        "SELECT " + "- " * 5000 + "1",
        "SELECT 1" + " + 1" * 5000,
        "SELECT " + "(SELECT " * 300 + "1" + ")" * 300,
        "SELECT 1 FROM " + "(" * 300 + "SELECT 1" + ")" * 300,
        "SELECT " + "CASE WHEN 1 THEN " * 300 + "1" + " END" * 300,
        "SELECT " + "9" * 5000,
        "SELECT 1e" + "9" * 5000,
        "SELECT 0." + "1" * 5000,
        "SELECT 1 LIMIT " + "9" * 5000,
        "SELECT '" + "x" * 90_000 + "'",
        "SELECT CAST(1 AS DECIMAL(" + "9" * 50 + "))",
        "SELECT a IN (" + "(1, 2), " * 5000 + "(1, 2)) FROM t",
        "SELECT (a, b) IN (" + "(1, 2), " * 5000 + "(1, 2)) FROM t",
        "SELECT " + "(" * 20 + "a" + ", 1) IN ((1, a), (a, 2))" * 20 + " FROM t",
        "SELECT " + "(" * 20 + "a" + " > ALL (SELECT a FROM t))" * 20 + " FROM t",
        "SELECT " + "DATE_ADD(" * 40 + "'2024-01-01'" + ", INTERVAL 99999999999 YEAR)" * 40,
        "SELECT \0",
        "\0",
        "SELECT '\0', `\0` FROM t",
        "SELECT '\ud83d', '\udc00\ud83d'",
        "SELECT `\ud83d` FROM `\udc00`",
        "CREATE TABLE `\ud83d` (a INT)",
        "CREATE TABLE u (a VARCHAR(" + "9" * 100 + "))",
        "CREATE TABLE u (a DECIMAL(99999, 99999) DEFAULT 1e400, PRIMARY KEY (a, a, c))",
        ";" * 90_000,
        "",
    ],
)  # fmt: skip
def test_extreme_statements_are_answered(session, sql: str) -> None:
    assert run(session, sql) != "1105"
    assert session.execute("SELECT COUNT(*) FROM t").error is None
