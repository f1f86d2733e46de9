"""MySQL's changes on SQLite: what tables hold after them, and what strict mode refuses."""

# ruff: noqa: E501 (a table of statements has one a line)

from datetime import date
from decimal import Decimal

import pytest
from translated_mysql import TranslatedMySQL


@pytest.fixture
def mysql():
    return TranslatedMySQL()


@pytest.mark.parametrize(
    ("column", "value", "stored"),
    [
        ("age", "'12'", 12),
        ("age", "5.7", 6),
        ("age", "-2.5", -3),
        ("age", "2.5e0", 2),
        ("age", "'7' + 1", 8),
        ("pay", "1.005", Decimal("1.01")),
        ("pay", "'12.345'", Decimal("12.35")),
        ("pay", "1 / 3", Decimal("0.33")),
        ("score", "1.23456789", 1.23457),
        ("name", "5", "5"),
        ("name", "5.50", "5.50"),
        ("name", "1e20", "1e20"),
        ("name", "CONCAT('a', 'b')", "ab"),
        ("name", "'exactly twenty chars  '", "exactly twenty chars"),
        ("hired", "'2020-1-5'", date(2020, 1, 5)),
    ],
)
def test_values_become_the_columns_types(mysql, column, value, stored):
    mysql.rows(f"INSERT INTO staff (id, {column}) VALUES (9, {value})")
    [(got,)] = mysql.rows(f"SELECT {column} FROM staff WHERE id = 9")
    assert repr(got) == repr(stored)


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("INSERT INTO staff (id, age) VALUES (9, 'abc')", "1366 (HY000): Incorrect integer value: 'abc' for column 'age' at row 1"),
        ("INSERT INTO staff (id, age) VALUES (9, 1), (8, '12abc')", "1265 (01000): Data truncated for column 'age' at row 2"),
        ("INSERT INTO staff (id, age) VALUES (9, 2147483648)", "1264 (22003): Out of range value for column 'age' at row 1"),
        ("INSERT INTO staff (id, pay) VALUES (9, 123456789)", "1264 (22003): Out of range value for column 'pay' at row 1"),
        ("INSERT INTO staff (id, pay) VALUES (9, 'x')", "1366 (HY000): Incorrect decimal value: 'x' for column 'pay' at row 1"),
        ("INSERT INTO staff (id, hired) VALUES (9, '2020-13-45')", "1292 (22007): Incorrect date value: '2020-13-45' for column 'hired' at row 1"),
        ("UPDATE staff SET name = REPEAT('x', 21)", "1406 (22001): Data too long for column 'name' at row 1"),
        ("UPDATE staff SET age = 'x' WHERE id = 1", "1366 (HY000): Incorrect integer value: 'x' for column 'age' at row 1"),
        ("UPDATE staff SET age = 'x' WHERE id = 99", "no error: []"),
        ("UPDATE staff SET age = age / 0", "1365 (22012): Division by 0"),
        ("UPDATE staff SET age = MOD(age, 0)", "1365 (22012): Division by 0"),
        ("UPDATE staff SET age = 1 WHERE note > 3", "1292 (22007): Truncated incorrect DOUBLE value: 'hello'"),
        ("UPDATE staff SET x = 1", "1054 (42S22): Unknown column 'x' in 'field list'"),
        ("INSERT INTO team VALUES (1, 2)", "1136 (21S01): Column count doesn't match value count at row 1"),
        ("INSERT INTO team (label, label) VALUES (1, 2)", "1110 (42000): Column 'label' specified twice"),
        ("INSERT INTO nope VALUES (1)", "1146 (42S02): Table 'shop.nope' doesn't exist"),
        ("DELETE FROM staff WHERE id = (SELECT MAX(id) FROM staff)", "1093 (HY000): You can't specify target table 'staff' for update in FROM clause"),
    ],
)  # fmt: skip
def test_strict_mode_refuses(mysql, sql, error):
    assert mysql.error(sql) == error


@pytest.mark.parametrize(
    ("change", "query", "rows"),
    [
        ("UPDATE staff SET age = age + 1, pay = age WHERE id = 1", "SELECT age, pay FROM staff WHERE id = 1", [(31, Decimal("31.00"))]),
        ("UPDATE staff AS s SET s.pay = s.pay * 1.1 WHERE s.id = 2", "SELECT pay FROM staff WHERE id = 2", [(Decimal("4620.55"),)]),
        ("UPDATE staff SET age = 1 ORDER BY id DESC LIMIT 2", "SELECT id FROM staff WHERE age = 1", [(4,), (5,)]),
        ("UPDATE staff SET age = (SELECT budget FROM team WHERE label = team)", "SELECT age FROM staff WHERE id = 3", [(200,)]),
        ("UPDATE staff SET age = 0 WHERE id IN (SELECT * FROM (SELECT MAX(id) FROM staff) t)", "SELECT id FROM staff WHERE age = 0", [(5,)]),
        ("DELETE FROM staff WHERE team = 'HR'", "SELECT COUNT(*) FROM staff", [(3,)]),
        ("DELETE FROM staff AS s WHERE s.id > 2", "SELECT COUNT(*) FROM staff", [(2,)]),
        ("DELETE FROM staff ORDER BY id LIMIT 2", "SELECT MIN(id) FROM staff", [(3,)]),
        ("INSERT INTO team (label, budget) SELECT name, id FROM staff WHERE id = 1", "SELECT label FROM team WHERE budget = 1", [("Alice",)]),
    ],
)  # fmt: skip
def test_changes(mysql, change, query, rows):
    mysql.rows(change)
    assert mysql.rows(query) == rows


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("CREATE TABLE a (v VARCHAR(5), n DECIMAL); INSERT INTO a VALUES ('x', 1.5); DESCRIBE a", [("v", "varchar(5)", "YES", "", None, ""), ("n", "decimal(10,0)", "YES", "", None, "")]),
        ("CREATE TABLE IF NOT EXISTS team (x INT); SELECT COUNT(*) FROM team", [(3,)]),
        ("DROP TABLE IF EXISTS team, nope; SHOW TABLES", [("staff",)]),
    ],
)  # fmt: skip
def test_definitions(mysql, sql, rows):
    assert mysql.rows(sql) == rows


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("CREATE TABLE team (x INT)", "1050 (42S01): Table 'team' already exists"),
        ("CREATE TABLE a (x INT, X INT)", "1060 (42S21): Duplicate column name 'X'"),
        ("DROP TABLE nope", "1051 (42S02): Unknown table 'shop.nope'"),
    ],
)  # fmt: skip
def test_definitions_that_mysql_refuses(mysql, sql, error):
    assert mysql.error(sql) == error
