"""What SQLite does not do exactly is refused as not supported (1235); what is no MySQL is 1064."""

from pathlib import Path

import pytest
from translated_mysql import TranslatedMySQL

from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.words import FUNCTIONS

_STATEMENTS = Path(__file__).with_name("mysql_refusals.sql").read_text(encoding="utf-8")
_REFUSED, _, _FOREIGN = _STATEMENTS.partition("\n-- No MySQL\n")


def statements(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("-- ")]


@pytest.fixture(scope="module")
def mysql():
    return TranslatedMySQL()


@pytest.mark.parametrize("sql", statements(_REFUSED))
def test_what_is_not_emulated_is_said_to_be_unsupported(mysql, sql):
    assert mysql.error(sql).startswith("1235 (42000): This version of MySQL doesn't yet support '")


@pytest.mark.parametrize("sql", statements(_FOREIGN))
def test_what_is_no_mysql_is_a_syntax_error(mysql, sql):
    assert mysql.error(sql).startswith("1064 (42000): You have an error in your SQL syntax;")


def test_no_function_of_mysql_is_said_to_be_missing(mysql):
    for name in FUNCTIONS:
        calls = (f"SELECT {name}({arguments})" for arguments in ("", "1", "'a', 2", "1, 2, 3"))
        numbers = {mysql.error(sql)[:4] for sql in calls}
        assert "1235" in numbers, name
        assert numbers <= {"1235", "1064"}, name


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT UPPER('straße'), LOWER('ÉÀ')", [("STRAßE", "éà")]),
        (
            "SELECT 'ø' = 'O', 'ħ' = 'h', 'é' = 'E', '½' > '1', 'œ' = 'OE', '…' > '.'",
            [(1, 1, 1, 1, 1, 1)],
        ),
        ("SELECT CHAR_LENGTH('a\\0b'), LEFT('a\\0b', 2), 'a\\0b' = 'AB'", [(3, "a\0", 1)]),
        ("SELECT 1, 1 UNION SELECT 2, 2 ORDER BY 1 DESC", [(2, 2), (1, 1)]),
        ("SELECT RANK() OVER (), DENSE_RANK() OVER () FROM team", [(1, 1)] * 3),
        ("SELECT 'é' LIKE 'E', 'ß' LIKE 'ss', 'añb' LIKE 'A_B'", [(1, 0, 1)]),
        (
            "SELECT 'aé' LIKE '\uff05É', 'a%é' LIKE 'A\\\\%É', 'a_' LIKE '_\uff3f', 'é' LIKE '%É%'",
            [(0, 1, 1, 1)],
        ),
        ("SELECT 1.5e-3 + 1, 1e1+2", [(1.0015, 12.0)]),
        (
            "UPDATE team SET budget = budget + 1 ORDER BY budget; SELECT MAX(budget) FROM team",
            [(301,)],
        ),
        ("SELECT ISNULL(NULL), ISNULL(5)", [(1, 0)]),
        ("SELECT id FROM staff ORDER BY id LIMIT 1 OFFSET 2", [(3,)]),
        ("SELECT age IS NOT TRUE FROM staff WHERE id = 4", [(1,)]),
        ("SELECT 1.1e0 * 3", [(3.3000000000000003,)]),
        ("SELECT CASE 'b' WHEN 2.5 THEN 1 WHEN 'é' THEN 2 WHEN 'B' THEN 3 END", [(3,)]),
        ("SELECT -id AS age FROM staff WHERE age < 40 ORDER BY age + 0", [(-2,), (-1,), (-5,)]),
        (
            "SELECT MAX(id) AS age FROM staff GROUP BY age HAVING age > 29 ORDER BY 1",
            [(1,), (3,), (5,)],
        ),
    ],
)
def test_what_was_wrong_once_is_right(mysql, sql, rows):
    assert mysql.rows(sql) == rows


@pytest.mark.parametrize(
    ("sql", "number"),
    [
        ("SELECT id FROM staff HAVING age > 1", 1054),
        ("SELECT id AS n FROM staff HAVING id > 1", 1054),
        ("SELECT ISNULL(id, 5) FROM staff", 1582),
        ("SELECT other.f(1)", 1370),
        ("SELECT 1 FROM staff WHERE ROW_NUMBER() OVER () = 1", 3593),
        ("INSERT INTO team (label) VALUES (1), (2, 3)", 1136),
        ("SELECT id FROM staff WHERE (team, age) IN ('hr', 'IT')", 1235),
        ("CREATE TABLE z", 1113),
        ("SELECT staff.id", 1109),
        ("SELECT missing FROM staff WHERE 1e400 > 1", 1235),
        ("SELECT 1 FROM staff GROUP BY SUM(id)", 1111),
        ("SELECT COUNT(*) FROM staff GROUP BY 1", 1056),
        ("SELECT YEAR(DATE(hired)) FROM staff GROUP BY YEAR(hired)", 1055),
        ("UPDATE staff SET age = 1 WHERE age / 0 > 1", 1365),
        ("DELETE FROM staff WHERE hired < 3", 1235),
        ("DELETE FROM staff ORDER BY TRUE", 1235),
        ("SELECT IFNULL(CAST(age AS UNSIGNED), 0) FROM staff", 1235),
        ("UPDATE staff SET hired = hired + INTERVAL 9000 YEAR", 1235),
        ("SELECT 1 FROM staff ORDER BY -1", 1235),
        ("; SELECT 1", 1064),
        ("SELECT 1 AS a, 2 AS a UNION SELECT 2, 3 ORDER BY a", 1052),
        ("SELECT IF(1, 9223372036854775807, 1) + 1", 1690),
        ("SELECT v + 1 FROM (SELECT 1 AS v UNION SELECT 9223372036854775807) x", 1690),
        ("SELECT 1 FROM staff WHERE INTERVAL 1 DAY + hired > '2020-01-01'", 1235),
        ("SELECT 1; ; SELECT 2", 1064),
    ],
)
def test_mistakes_have_mysqls_number(mysql, sql, number):
    assert mysql.error(sql).startswith(f"{number} ")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 9007199254740993 * 1.5",
        "SELECT SUM(pay * 10000000000) FROM staff",
        "SELECT 1234567890123.4567",
        "SELECT AVG(id * 100000000000000) FROM staff",
    ],
)
def test_digits_that_sqlite_lacks_are_refused(mysql, sql):
    assert "decimals of more than 15 digits" in mysql.error(sql)
