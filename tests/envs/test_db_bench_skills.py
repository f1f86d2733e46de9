"""The skill detector reads skills off the syntax tree."""

import pytest

from agentpeft.envs.core.errors import DataError, SettingsError
from agentpeft.envs.db_bench.skills import SKILLS, check_skills, detect_skills

CASES = {
    "SELECT a FROM t": "select",
    "SELECT 'x WHERE y GROUP BY z LIMIT 1' FROM t": "select",
    "INSERT INTO t (a) VALUES (1), (2)": "insert",
    "INSERT INTO t (a) SELECT a FROM s WHERE b = 1": "select insert where_single_condition",
    "UPDATE t SET a = 1": "update",
    "DELETE FROM t WHERE a = 1 ORDER BY b LIMIT 2": (
        "delete where_single_condition order_by_single_column limit_only"
    ),
    "SELECT a FROM t WHERE a BETWEEN 1 AND 2": "select where_single_condition",
    "SELECT a FROM t WHERE ((a NOT IN (1, 2)))": "select where_single_condition",
    "SELECT a FROM t WHERE a BETWEEN 1 AND 2 AND b LIKE 'x OR y'": (
        "select where_multiple_conditions"
    ),
    "SELECT a FROM t WHERE NOT (a = 1 AND (b = 2 OR c = 3))": "select where_nested_conditions",
    "SELECT t.a FROM t JOIN s ON t.i = s.i AND t.b = 2": "select",
    "UPDATE t JOIN s ON t.i = s.i SET t.a = 1 WHERE s.b = 2": "update where_single_condition",
    "SELECT a FROM t WHERE (a = 1 AND b = 2 AND c = 3)": "select where_multiple_conditions",
    "SELECT a FROM t WHERE NOT (a = 1 OR b = 2)": "select where_multiple_conditions",
    "SELECT a FROM t WHERE a = 1 AND (b = 2 OR c = 3)": "select where_nested_conditions",
    "SELECT a FROM t WHERE a = 1 AND b = 2 OR c = 3": "select where_nested_conditions",
    "SELECT a FROM t GROUP BY a": "select group_by_single_column",
    "SELECT a FROM t GROUP BY a, YEAR(b)": "select group_by_multiple_columns",
    "SELECT a FROM t GROUP BY a HAVING a > 1": "select group_by_single_column",
    "SELECT a FROM t GROUP BY a HAVING COUNT(*) BETWEEN 1 AND 2": (
        "select group_by_single_column having_single_condition_with_aggregate"
    ),
    "SELECT a, COUNT(*) AS n FROM t GROUP BY a HAVING n > 1": (
        "select group_by_single_column having_single_condition_with_aggregate column_alias"
    ),
    "SELECT a FROM t GROUP BY a HAVING COUNT(*) > 1 AND a = 2": (
        "select group_by_single_column having_multiple_conditions_with_aggregate"
    ),
    "SELECT a FROM t GROUP BY a HAVING SUM(b * 2) > 1": (
        "select group_by_single_column having_single_condition_with_aggregate"
    ),
    "SELECT a FROM t GROUP BY a HAVING MAX(b) - MIN(b) > 1": (
        "select group_by_single_column having_single_condition_with_aggregate "
        "having_aggregate_calculation"
    ),
    "SELECT a, SUM(b)/COUNT(*) m FROM t GROUP BY a HAVING M > 3": (
        "select group_by_single_column having_single_condition_with_aggregate "
        "having_aggregate_calculation column_alias"
    ),
    "SELECT a FROM t GROUP BY a HAVING SUM(b) > 2 * 3": (
        "select group_by_single_column having_single_condition_with_aggregate"
    ),
    "SELECT a FROM t GROUP BY a HAVING SUM(b) > (SELECT AVG(b) * 2 FROM t)": (
        "select group_by_single_column having_single_condition_with_aggregate subquery_single"
    ),
    "SELECT a FROM t GROUP BY a HAVING a > (SELECT AVG(b) FROM t)": (
        "select group_by_single_column subquery_single"
    ),
    "SELECT a FROM t ORDER BY a DESC": "select order_by_single_column",
    "SELECT a FROM t ORDER BY a ASC, b": "select order_by_multiple_columns_same_direction",
    "SELECT ROW_NUMBER() OVER (ORDER BY a, b DESC) FROM t": "select",
    "(SELECT a FROM t LIMIT 1) UNION (SELECT b FROM s LIMIT 1)": "select limit_only",
    "SELECT a FROM t ORDER BY a DESC, b DESC": "select order_by_multiple_columns_same_direction",
    "SELECT a FROM t ORDER BY a, b DESC": "select order_by_multiple_columns_different_directions",
    "SELECT GROUP_CONCAT(a ORDER BY b, c) FROM t": "select",
    "SELECT a FROM t LIMIT 5": "select limit_only",
    "SELECT a FROM t LIMIT 5 OFFSET 0": "select limit_and_offset",
    "SELECT a FROM t LIMIT 2, 5": "select limit_and_offset",
    "SELECT a b FROM t": "select column_alias",
    "SELECT e.a FROM t e": "select table_alias",
    "UPDATE t AS e SET e.a = 1": "update table_alias",
    "SELECT a FROM t WHERE a > (SELECT AVG(a) FROM t)": (
        "select where_single_condition subquery_single"
    ),
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM s)": (
        "select where_single_condition subquery_single"
    ),
    "SELECT x.a FROM (SELECT a FROM t UNION SELECT b FROM t) AS x": (
        "select table_alias subquery_single"
    ),
    "SELECT a FROM t UNION ALL SELECT b FROM t": "select",
    "SELECT a FROM t WHERE a IN (SELECT a FROM s) AND b > (SELECT MAX(b) FROM s)": (
        "select where_multiple_conditions subquery_multiple"
    ),
    "SELECT a FROM t WHERE a > (SELECT AVG(a) FROM t WHERE b = (SELECT MAX(b) FROM t))": (
        "select where_single_condition subquery_nested"
    ),
    "SELECT a FROM t WHERE b IN (SELECT b FROM s AS x WHERE x.c = 1)": (
        "select where_single_condition table_alias subquery_single"
    ),
    "DELETE FROM t WHERE a IN (SELECT a FROM (SELECT a FROM t) AS x)": (
        "select delete where_single_condition table_alias subquery_nested"
    ),
    "UPDATE t SET a = (SELECT MAX(b) FROM s)": "select update subquery_single",
    "WITH x AS (SELECT a FROM t) SELECT a FROM x": "select",
}


@pytest.mark.parametrize("sql", CASES)
def test_a_statement_shows_these_skills(sql):
    assert detect_skills(sql) == tuple(CASES[sql].split())


def test_there_are_22_skills_and_the_cases_show_each():
    assert len(set(SKILLS)) == len(SKILLS) == 22
    assert set(" ".join(CASES.values()).split()) == set(SKILLS)


@pytest.mark.parametrize("sql", ["SELECT FROM (", "", "SELECT 'open", "(" * 5000])
def test_what_is_no_statement_is_an_error(sql):
    with pytest.raises(DataError, match="not a MySQL statement"):
        detect_skills(sql)


def test_an_unknown_skill_is_an_error_with_a_hint():
    with pytest.raises(SettingsError, match="'limit_onyl'; did you mean 'limit_only'"):
        check_skills(["select", "limit_onyl"])
