"""MySQL's errors on SQLite: numbers, SQLSTATEs and texts as MySQL 8 gives them."""

# ruff: noqa: E501 (a table of statements has one a line)

import pytest
from translated_mysql import TranslatedMySQL

from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import MySQLError
from agentpeft.envs.db_bench.backends.sqlite.mysql.parse.statements import parse_statements

SYNTAX = (
    "1064 (42000): You have an error in your SQL syntax; check the manual that corresponds to your "
    "MySQL server version for the right syntax to use near '{}' at line {}"
)


@pytest.fixture(scope="module")
def mysql():
    return TranslatedMySQL()


@pytest.mark.parametrize("name", ["id AS x", "id INT", "id NOT NULL"])
def test_a_definition_is_no_name_of_a_column_to_insert(mysql, name):
    error = mysql.error(f"INSERT INTO staff ({name}) VALUES (1)")
    assert "1064 (42000)" in error


@pytest.mark.parametrize(
    ("sql", "near", "line"),
    [
        ("SELEC 1", "SELEC 1", 1),
        ("SELECT * FORM staff", "FORM staff", 1),
        ("SELECT name FROM staff WHRE id = 1", "id = 1", 1),
        ("SELECT name,\nFROM staff", "FROM staff", 2),
        ("SELECT name FROM staff WHERE", "", 1),
        ("SELECT (1", "", 1),
        ("SELECT 'abc", "'abc", 1),
        ("SELECT * FROM staff WHERE id = = 3", "= 3", 1),
        ("SELECT COUNT (*) FROM staff", "*) FROM staff", 1),
        ("SELECT key FROM staff", "key FROM staff", 1),
        ("SELECT id AS order FROM staff", "order FROM staff", 1),
        ("SELECT id AS rank FROM staff", "rank FROM staff", 1),
        ("SELECT groups FROM staff", "groups FROM staff", 1),
        ('SELECT * FROM "staff" WHERE 1', '"staff" WHERE 1', 1),
        ("SELECT id::int FROM staff", "::int FROM staff", 1),
        ("SELECT CAST(id AS INT) FROM staff", "INT) FROM staff", 1),
        ("SELECT id FROM staff LIMIT 5 FETCH 3", "FETCH 3", 1),
        ("DELETE FROM staff RETURNING id", "id", 1),
        ("PRAGMA table_info(staff)", "PRAGMA table_info(staff)", 1),
        ("ATTACH DATABASE 'x' AS y", "ATTACH DATABASE 'x' AS y", 1),
        ("START", "", 1),
        ("START nothing", "nothing", 1),
        ("START TRANSACTION nothing", "nothing", 1),
        ("BEGIN TRANSACTION", "TRANSACTION", 1),
        ("BEGIN WORK nothing", "nothing", 1),
    ],
)
def test_syntax_errors_cite_the_text_from_the_offending_word(mysql, sql, near, line):
    assert mysql.error(sql) == SYNTAX.format(near, line)


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("", "1065 (42000): Query was empty"),
        ("-- nothing", "1065 (42000): Query was empty"),
        ("SELECT x FROM staff", "1054 (42S22): Unknown column 'x' in 'field list'"),
        ("SELECT e.x FROM staff e", "1054 (42S22): Unknown column 'e.x' in 'field list'"),
        ("SELECT E.id FROM staff e", "1054 (42S22): Unknown column 'E.id' in 'field list'"),
        ("SELECT id FROM staff WHERE x = 1", "1054 (42S22): Unknown column 'x' in 'where clause'"),
        ("SELECT id n FROM staff WHERE n = 1", "1054 (42S22): Unknown column 'n' in 'where clause'"),
        ("SELECT id FROM staff ORDER BY x", "1054 (42S22): Unknown column 'x' in 'order clause'"),
        ("SELECT 1 FROM staff GROUP BY x", "1054 (42S22): Unknown column 'x' in 'group statement'"),
        ("SELECT team FROM staff GROUP BY team HAVING age > 1", "1054 (42S22): Unknown column 'age' in 'having clause'"),
        ("SELECT 1 FROM staff JOIN team ON x = 1", "1054 (42S22): Unknown column 'x' in 'on clause'"),
        ("SELECT id FROM staff ORDER BY 7", "1054 (42S22): Unknown column '7' in 'order clause'"),
        ("SELECT * FROM nope", "1146 (42S02): Table 'shop.nope' doesn't exist"),
        ("SELECT * FROM Staff", "1146 (42S02): Table 'shop.Staff' doesn't exist"),
        ("SELECT * FROM sqlite_master", "1146 (42S02): Table 'shop.sqlite_master' doesn't exist"),
        ("SELECT label FROM team a JOIN team b", "1052 (23000): Column 'label' in field list is ambiguous"),
        ("SELECT 1 FROM team JOIN team", "1066 (42000): Not unique table/alias: 'team'"),
        ("SELECT x.* FROM team", "1051 (42S02): Unknown table 'x'"),
        ("SELECT * FROM (SELECT 1)", "1248 (42000): Every derived table must have its own alias"),
        ("SELECT * FROM (SELECT 1 a, 2 a) t", "1060 (42S21): Duplicate column name 'a'"),
        ("SELECT id FROM staff WHERE COUNT(*) > 1", "1111 (HY000): Invalid use of group function"),
        ("SELECT SUM(COUNT(*)) FROM staff", "1111 (HY000): Invalid use of group function"),
        ("SELECT id FROM staff WHERE id = (SELECT id FROM staff)", "1242 (21000): Subquery returns more than 1 row"),
        ("SELECT id FROM staff WHERE id = (SELECT 1, 2)", "1241 (21000): Operand should contain 1 column(s)"),
        ("SELECT id FROM staff WHERE id IN (SELECT id FROM staff LIMIT 1)", "1235 (42000): This version of MySQL doesn't yet support 'LIMIT & IN/ALL/ANY/SOME subquery'"),
        ("SELECT 1 UNION SELECT 1, 2", "1222 (21000): The used SELECT statements have a different number of columns"),
        ("SELECT team, SUM(age) AS s FROM staff GROUP BY team ORDER BY s IS NULL, s", "1247 (42S22): Reference 's' not supported (reference to group function)"),
        ("SELECT id, s.*, COUNT(*) FROM staff s GROUP BY id", "1055 (42000): Expression #3 of SELECT list is not in GROUP BY clause and contains nonaggregated column 'shop.s.name' which is not functionally dependent on columns in GROUP BY clause; this is incompatible with sql_mode=only_full_group_by"),
        ("SELECT NOPE(1)", "1305 (42000): FUNCTION shop.NOPE does not exist"),
        ("SELECT load_extension('x')", "1305 (42000): FUNCTION shop.load_extension does not exist"),
        ("SELECT LEFT('a')", "1582 (42000): Incorrect parameter count in the call to native function 'LEFT'"),
        ("SELECT id FROM staff WHERE hired = 'x'", "1525 (HY000): Incorrect DATE value: 'x'"),
        ("SELECT 9223372036854775807 + 1", "1690 (22003): BIGINT value is out of range in '9223372036854775808'"),
    ],
)  # fmt: skip
def test_queries_that_mysql_refuses(mysql, sql, error):
    assert mysql.error(sql) == error


@pytest.mark.parametrize(
    ("sql", "number"),
    [
        ("SELECT name, COUNT(*) FROM staff", 1140),
        ("SELECT name FROM staff GROUP BY team", 1055),
        ("SELECT team FROM staff GROUP BY team ORDER BY age", 1055),
        ("SELECT UPPER(team), age FROM staff GROUP BY UPPER(team)", 1055),
        ("SELECT DISTINCT team FROM staff ORDER BY age", 3065),
        ("SELECT pay, COUNT(*) FROM staff WHERE team = 5", 1140),
        ("SELECT pay, COUNT(*) FROM staff WHERE pay = (SELECT MAX(pay) FROM staff)", 1140),
        ("SELECT label, COUNT(*) FROM staff, team WHERE budget > id GROUP BY team", 1055),
        (
            "SELECT label, COUNT(*) FROM staff, team WHERE id = 5 OR team = label GROUP BY team",
            1055,
        ),
    ],
)
def test_columns_outside_the_groups_are_refused(mysql, sql, number):
    assert mysql.error(sql).startswith(f"{number} ")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT UPPER(team) FROM staff GROUP BY UPPER(team)",
        "SELECT YEAR(hired) + 1 FROM staff GROUP BY YEAR(hired)",
        "SELECT team, COUNT(*) FROM staff WHERE team = 'HR'",
        "SELECT ANY_VALUE(name) FROM staff GROUP BY team",
        "SELECT s.team, COUNT(*) FROM staff s JOIN team ON s.team = label GROUP BY label",
        "SELECT boss, label FROM staff, team WHERE team = label AND boss = name GROUP BY team, name",
        "SELECT age, COUNT(*) FROM staff WHERE age = -1 + 26",
        "SELECT t.label FROM (SELECT label FROM team) s, team t JOIN staff u ON label = u.team "
        "GROUP BY u.team",
        "SELECT team.label FROM staff JOIN team ON team = label JOIN team x GROUP BY team",
        "SELECT hired, COUNT(*) FROM staff WHERE hired IN (DATE('2020-01-15'))",
        "SELECT label, (SELECT CONCAT(team, COUNT(*)) FROM staff WHERE team = label) FROM team",
    ],
)
def test_columns_that_the_groups_determine_are_allowed(mysql, sql):
    assert mysql.rows(sql)


@pytest.mark.parametrize(
    ("sql", "number"),
    [
        ("SELECT * FROM mysql.user", 1142),
    ],
)
def test_what_reaches_beyond_the_database_is_denied(mysql, sql, number):
    assert mysql.error(sql).startswith(f"{number} ")


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT {'(' * 300}1{')' * 300}",
        f"SELECT {'- ' * 300}1",
        f"SELECT {'NOT ' * 300}1",
        f"SELECT {'+'.join(['1'] * 300)}",
        f"SELECT {'CASE WHEN 1 THEN ' * 300}1{' END' * 300}",
        f"SELECT 1{' UNION SELECT 1' * 300}",
        f"SELECT {'1 = ' * 300}1",
        f"SELECT CASE CONCAT('{'x' * 5000}') {'WHEN 1 THEN 1 ' * 60}END",
    ],
)
def test_deep_nesting_is_an_error_of_mysql(mysql, sql):
    assert mysql.error(sql).startswith("1436 (HY000): Thread stack overrun")


def test_semicolons_in_strings_and_comments_do_not_split():
    texts = [s.text for s in parse_statements("SELECT ';'; SELECT 2 -- a;b\n; /* ; */ SELECT `;`")]
    assert texts == ["SELECT ';'", "SELECT 2", "SELECT `;`"]


def test_a_text_beyond_the_packet_is_refused():
    with pytest.raises(MySQLError, match="1153"):
        parse_statements("SELECT 1" + " " * 200_000)
