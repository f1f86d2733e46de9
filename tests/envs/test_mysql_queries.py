"""MySQL queries on SQLite: values as mysql-connector returns them from a MySQL server."""

# ruff: noqa: E501 (a table of statements has one a line)

import time
from datetime import date
from decimal import Decimal

import pytest
from translated_mysql import TranslatedMySQL


@pytest.fixture(scope="module")
def mysql():
    return TranslatedMySQL()


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 / 3", Decimal("0.3333")),
        ("2 / 3 * 3", Decimal("2.0000")),
        ("5 / 2.50", Decimal("2.0000")),
        ("1.00 / 3", Decimal("0.333333")),
        ("1 / 0", None),
        ("-10 % 3", -1),
        ("0.1 + 0.2", Decimal("0.3")),
        ("1.50 * 2.00", Decimal("3.0000")),
        ("3 - 1.55", Decimal("1.45")),
        ("1e0 / 4", 0.25),
        ("'3.7abc' + 1", 4.7),
        ("5 || 0", 1),
        ("NULL <=> NULL", 1),
        ("2 NOT IN (1, NULL)", None),
        ("-5", -5),
        ("9223372036854775807", 9223372036854775807),
        ("TRUE", 1),
        ("1 = '1.0'", 1),
        ("'a' = 0", 1),
        ("'10' > '9'", 0),
    ],
)
def test_arithmetic_has_the_types_of_mysql(mysql, expression, value):
    [(got,)] = mysql.rows(f"SELECT {expression}")
    assert repr(got) == repr(value)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("ROUND(2.345, 2)", Decimal("2.35")),
        ("ROUND(2.5)", Decimal("3")),
        ("ROUND(-1.5)", Decimal("-2")),
        ("ROUND(2.5e0)", 2.0),
        ("ROUND(1234.5, -2)", Decimal("1200")),
        ("ROUND(7, 1)", 7),
        ("CEIL(1.2)", 2),
        ("FLOOR(-2.5)", -3),
        ("IF(1 > 2, 'x', 2.50)", "2.50"),
        ("IFNULL(NULL, 7)", 7),
        ("NULLIF('a', 'A')", None),
        ("COALESCE(NULL, NULL, 1.5)", Decimal("1.5")),
        ("CASE WHEN 0 THEN 1 ELSE 2.5 END", Decimal("2.5")),
        ("CAST('3.456' AS DECIMAL(5,2))", Decimal("3.46")),
        ("CAST(1.5 AS SIGNED)", 2),
        ("CAST('1.9' AS SIGNED)", 1),
        ("CAST(12.50 AS CHAR)", "12.50"),
    ],
)
def test_functions_of_numbers(mysql, expression, value):
    [(got,)] = mysql.rows(f"SELECT {expression}")
    assert repr(got) == repr(value)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("CONCAT('a', 1, 2.50, NULL)", None),
        ("CONCAT('a', 1, 2.50)", "a12.50"),
        ("SUBSTRING('abcdef', 2, 3)", "bcd"),
        ("SUBSTRING('abcdef', -2)", "ef"),
        ("SUBSTRING('abcdef', 0)", ""),
        ("LEFT('abc', 2)", "ab"),
        ("RIGHT('abc', 2)", "bc"),
        ("REPLACE('banana', 'a', 'o')", "bonono"),
        ("REPEAT('ab', 3)", "ababab"),
        ("INSTR('banana', 'nan')", 3),
        ("LENGTH('é')", 2),
        ("CHAR_LENGTH('é')", 1),
        ("UPPER('é')", "É"),
        ("'it''s' 'x'", "it'sx"),
        (r"'a\'b\\c\n\%'", "a'b\\c\n\\%"),
        ('"double"', "double"),
    ],
)
def test_functions_of_texts(mysql, expression, value):
    assert mysql.rows(f"SELECT {expression}") == [(value,)]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("DATEDIFF('2020-03-01', '2020-02-28')", 2),
        ("TIMESTAMPDIFF(MONTH, '2020-01-31', '2020-02-29')", 0),
        ("TIMESTAMPDIFF(YEAR, '2020-02-29', '2021-02-28')", 0),
        ("YEAR('2020-05-06')", 2020),
        ("MONTH('2020-02-29 10:00:00')", 2),
        ("DAY('2020-03-01')", 1),
        ("DAYNAME('2020-02-29')", "Saturday"),
        ("DAYOFWEEK('2020-03-01')", 1),
        ("WEEKDAY('2020-03-01')", 6),
        ("DAYOFYEAR('2020-12-31 10:00:00')", 366),
        ("QUARTER('2020-04-01')", 2),
        ("HOUR(CAST('2020-04-01 23:59:58' AS DATETIME) + INTERVAL 2 SECOND)", 0),
        ("MINUTE(CAST('2020-04-01' AS DATE))", 0),
        ("DATE_FORMAT('2020-02-09 15:04:05', '%e %M %Y, %r')", "9 February 2020, 03:04:05 PM"),
        ("CAST('2020-1-5' AS DATE) - INTERVAL -26 DAY + INTERVAL 1 MONTH", date(2020, 2, 29)),
        ("DATE('garbage')", None),
        ("CAST('2020-1-5' AS DATE)", date(2020, 1, 5)),
    ],
)  # fmt: skip
def test_functions_of_dates(mysql, expression, value):
    assert mysql.rows(f"SELECT {expression}") == [(value,)]


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT name FROM staff WHERE team = 'SALES'", [("Alice",), ("bob",)]),
        ("SELECT id FROM staff WHERE name = 'eve'", [(5,)]),
        ("SELECT id FROM staff WHERE name LIKE 'E%'", [(5,)]),
        ("SELECT id FROM staff WHERE name LIKE '_ob'", [(2,)]),
        ("SELECT id FROM staff WHERE note = 12", [(3,)]),
        ("SELECT id FROM staff WHERE age > '29' AND pay >= '5000'", [(1,), (3,)]),
        ("SELECT id FROM staff WHERE hired > '2019-6-30'", [(1,), (5,)]),
        ("SELECT id FROM staff WHERE score = 3.5", [(1,)]),
        ("SELECT id FROM staff WHERE score = 4.1", []),
        ("SELECT id FROM staff WHERE pay = 4200.50", [(2,)]),
        ("SELECT id FROM staff WHERE NOT age > 30", [(1,), (2,)]),
        ("SELECT id FROM staff WHERE age IN (25, 41)", [(2,), (3,)]),
        ("SELECT id FROM staff ORDER BY age, id LIMIT 1, 2", [(2,), (1,)]),
        ("SELECT name FROM staff ORDER BY name DESC LIMIT 2", [("Éve",), ("dave",)]),
        ("SELECT team t FROM staff GROUP BY t ORDER BY t", [("HR",), ("IT",), ("Sales",)]),
        ("SELECT COUNT(DISTINCT team) FROM staff", [(3,)]),
        ("SELECT DISTINCT UPPER(team) AS u FROM staff ORDER BY u", [("HR",), ("IT",), ("SALES",)]),
        ("SELECT id FROM staff e WHERE pay > (SELECT AVG(pay) FROM staff x WHERE x.team = e.team)", [(1,)]),
        ("SELECT id FROM staff WHERE age = ANY (SELECT 25 UNION SELECT 41)", [(2,), (3,)]),
        ("SELECT id FROM staff WHERE age NOT IN (SELECT age FROM staff)", []),
        ("SELECT e.id, t.boss FROM staff e LEFT JOIN team t ON e.team = t.label WHERE t.boss IS NULL", [(5, None)]),
        ("SELECT e.id, t.label FROM staff e RIGHT JOIN team t ON e.team = t.label WHERE e.id IS NULL", [(None, "Legal")]),
        ("SELECT d.t, d.n FROM (SELECT team t, COUNT(*) n FROM staff GROUP BY team) d WHERE n = 1", [("IT", 1)]),
        ("WITH c AS (SELECT id AS x FROM staff) SELECT MAX(x) FROM c", [(5,)]),
        ("SELECT boss FROM team UNION SELECT 'Alice' ORDER BY 1", [("Alice",), ("Carol",), ("Zed",)]),
        ("(SELECT id FROM staff ORDER BY id DESC LIMIT 1) UNION ALL SELECT 9", [(5,), (9,)]),
        ("SELECT id, RANK() OVER (ORDER BY pay DESC) FROM staff WHERE age < 31", [(1, 1), (2, 2)]),
        ("SELECT `COUNT(*)` FROM (SELECT COUNT(*) FROM staff) x", [(5,)]),
        ("SELECT 1 FROM DUAL", [(1,)]),
        ("SELECT shop.staff.id FROM shop.staff WHERE staff.id = 1", [(1,)]),
        ("SELECT COUNT(*) FROM staff HAVING COUNT(*) > 9", []),
        ("SELECT COUNT(ALL age), SUM(ALL age) FROM staff", [(4, Decimal(131))]),
        ("SELECT id / 3 IN (0.6667), id / 3 NOT IN (0.6667) FROM staff WHERE id = 2", [(1, 0)]),
        ("SELECT team, SUM(age) AS s FROM staff GROUP BY team ORDER BY (s) DESC LIMIT 1", [("Sales", 55)]),
    ],
)  # fmt: skip
def test_queries(mysql, sql, rows):
    assert mysql.rows(sql) == rows


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("AVG(age)", Decimal("32.7500")),
        ("SUM(age)", Decimal("131")),
        ("SUM(pay)", Decimal("21402.00")),
        ("AVG(pay)", Decimal("5350.500000")),
        ("FLOOR(AVG(CASE WHEN id < 4 THEN id * id END) * 3)", 13),  # of 4.666666666
        ("ROUND(AVG(age), 1)", Decimal("32.8")),
        ("MAX(pay) - MIN(pay)", Decimal("1900.25")),
        ("SUM(age) / COUNT(*)", Decimal("26.2000")),
        ("SUM(age > 30)", Decimal("2")),
        ("SUM(score)", 8.799999929964542),
        ("MAX(score)", 4.1),
        ("MIN(hired)", date(2018, 11, 5)),
        ("SUM(NULL)", None),
    ],
)
def test_aggregates_have_the_types_of_mysql(mysql, expression, value):
    [(got,)] = mysql.rows(f"SELECT {expression} FROM staff")
    assert repr(got) == repr(value)


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SHOW TABLES", [("staff",), ("team",)]),
        ("DESCRIBE team", [("label", "varchar(20)", "YES", "", None, ""), ("boss", "varchar(20)", "YES", "", None, ""), ("budget", "int", "YES", "", None, "")]),
    ],
)  # fmt: skip
def test_the_catalog_shows_the_schema(mysql, sql, rows):
    assert mysql.rows(sql) == rows


@pytest.mark.parametrize("operator", ["AND", "OR"])
def test_thousands_of_conditions_are_no_recursion(mysql, operator):
    sql = f"SELECT id FROM staff WHERE {f' {operator} '.join(['age = 25'] * 4000)}"
    assert mysql.rows(sql) == [(2,)]


def test_nested_queries_with_groups_are_compiled_in_linear_time(mysql):
    sql, order = "1", ", ".join(["age"] * 8)
    for _ in range(7):
        sql = f"(SELECT id FROM staff WHERE age = {sql} GROUP BY id, age ORDER BY {order} LIMIT 1)"
    start_s = time.process_time()
    assert mysql.rows(f"SELECT {sql}") == [(None,)]
    terms = ", ".join(["id"] * 1_900)
    conditions = " AND ".join(["id = 1"] * 3_000)
    assert mysql.rows(f"SELECT id FROM staff WHERE {conditions} GROUP BY team ORDER BY {terms}")
    assert time.process_time() - start_s < 3


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT DISTINCT s.team FROM staff s ORDER BY s.team", [("HR",), ("IT",), ("Sales",)]),
        (
            "SELECT team FROM staff WHERE id = 2 UNION SELECT label FROM team WHERE budget = 100",
            [("sales",)],
        ),
        ("SELECT age AS `rank` FROM staff WHERE id = 1", [(30,)]),
        ("SELECT CAST(hired AS CHAR) FROM staff WHERE id = 1", [("2020-01-15",)]),
        ("SELECT CAST(1e10 AS DECIMAL(5,2)), FLOOR(1e20), -0e0", [(Decimal("999.99"), 1e20, 0.0)]),
        (
            "SELECT CONCAT(1e-7), CONCAT(15e14)",
            [("0.0000001", "1.5e15")],
        ),
    ],
)
def test_rows_are_those_of_the_server(mysql, sql, rows):
    assert repr(mysql.rows(sql)) == repr(rows)


MARKS = ["#", "# ", "##", "\U000f0000", "\U000f0000\U000f0000", "my_", "?"]
"""What a name may begin with, and what this translation has set before names of its own."""


@pytest.mark.parametrize("mark", [mark for mark in MARKS if mark < "\U00010000"])
def test_names_keep_their_first_character(mark):
    mysql, name = TranslatedMySQL(), f"{mark}LEFT"
    mysql.rows(f"CREATE TABLE `{name}` (`{name}` INT, `{mark}b` TEXT)")
    mysql.rows(f"INSERT INTO `{name}` (`{name}`, `{mark}b`) VALUES (1, 'x')")
    assert mysql.rows(f"DESCRIBE `{name}`")[0][0] == name
    for sql in (
        f"SELECT `{name}`, UPPER(`{mark}b`) FROM `{name}`",
        f"SELECT `{name}`.`{name}`, UPPER(MAX(`{mark}b`)) FROM `{name}` GROUP BY `{name}`",
        f"SELECT * FROM (SELECT ABS(`{name}`) AS `{mark}n`, 'X' FROM `{name}`) AS `{mark}d`",
        f"WITH `{mark}c` AS (SELECT `{name}` AS `{mark}n`, 'X' FROM `{name}`) SELECT * FROM `{mark}c`",
        f"SELECT ABS(`{name}`) AS `{mark}n`, 'X' FROM `{name}` ORDER BY `{mark}n`",
        f"SELECT `ABS(``{name}``)`, x FROM (SELECT ABS(`{name}`), 'X' AS x FROM `{name}`) AS d",
    ):
        assert mysql.rows(sql) == [(1, "X")], sql


@pytest.mark.parametrize("mark", MARKS)
def test_texts_keep_their_first_character(mark):
    mysql, text = TranslatedMySQL(), f"{mark}LEFT"
    document = f'{{"{mark}a": "{mark}UPPER("}}'
    mysql.rows("CREATE TABLE kept (id INT, document TEXT, word TEXT)")
    mysql.rows(f"INSERT INTO kept VALUES (1, '{document}', '{text}')")
    mysql.rows(f"UPDATE kept SET word = CONCAT('{mark}', 'LEFT') WHERE word = '{text}'")
    assert mysql.rows("SELECT document, word FROM kept") == [(document, text)]
    calls = f"LEFT('{text}', 2), CHAR_LENGTH('{text}'), REPLACE('{text}', '{mark}', '')"
    assert mysql.rows(f"SELECT {calls}") == [(text[:2], len(text), "LEFT")]


@pytest.mark.parametrize("mark", ["\U000f0000", "\U0001f600"])
def test_a_text_with_what_no_name_can_hold_names_no_column_of_a_derived_table(mark):
    mysql = TranslatedMySQL()
    assert mysql.error(f"SELECT 1 FROM (SELECT 1 AS '{mark}x') AS d").startswith("1235")
    assert mysql.error(f"SELECT 1 FROM (SELECT UPPER('{mark}y')) AS d").startswith("1235")
    assert mysql.rows(f"SELECT UPPER('{mark}y') AS '{mark}'") == [(f"{mark}Y",)]


@pytest.mark.parametrize("mark", ["\U000f0000", "\U0001f600"])
def test_no_text_names_a_table(mark):
    mysql = TranslatedMySQL()
    assert mysql.error(f"SELECT c FROM (SELECT 2 AS c) AS '{mark}q'").startswith("1064")
    assert mysql.error(f"SELECT c FROM (SELECT 2 AS c) '{mark}q'").startswith("1064")
