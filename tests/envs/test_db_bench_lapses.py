"""Lapses of the oracle: valid statements about the same things, with the commonest choices."""

import re
from collections import Counter
from random import Random

import numpy as np
import pytest

from agentpeft.envs import Outcome
from agentpeft.envs.db_bench.env import DBBenchEnv
from agentpeft.envs.db_bench.lapses import write_with_lapses
from agentpeft.envs.db_bench.skills import SKILLS

CHOICES = [
    *((f"SELECT a FROM t WHERE b {op} 3", "SELECT a FROM t WHERE b = 3") for op in ("<", ">=")),
    ("DELETE FROM t WHERE b <> 'x'", "DELETE FROM t WHERE b = 'x'"),
    ("DELETE FROM t WHERE b LIKE 'x%'", "DELETE FROM t WHERE b LIKE '%x%'"),
    ("DELETE FROM t WHERE NOT b IN (1, 2)", "DELETE FROM t WHERE b IN (1, 2)"),
    ("DELETE FROM t WHERE b NOT LIKE '%x%'", "DELETE FROM t WHERE b LIKE '%x%'"),
    ("DELETE FROM t WHERE a = 1 OR b = 2", "DELETE FROM t WHERE a = 1 AND b = 2"),
    ("SELECT a FROM t ORDER BY b DESC", "SELECT a FROM t ORDER BY b"),
    *((f"SELECT {f}(b) FROM t", "SELECT MAX(b) FROM t") for f in ("SUM", "AVG", "MIN")),
    ("UPDATE t SET b = b + 4", "UPDATE t SET b = 4"),
]
WITHOUT = [
    "SELECT COUNT(*), MAX(a) FROM t WHERE b = 3 AND c BETWEEN 1 AND 2 ORDER BY d LIMIT 2",
    "UPDATE t SET b = 'x', c = 4",
    "INSERT INTO t (b) VALUES (4)",
    "UPDATE t SET b = b + INTERVAL '7' DAY",
    "no SQL at all (",
]


@pytest.mark.parametrize(("sql", "lapse"), CHOICES)
def test_each_choice_lapses_in_its_share(sql, lapse):
    assert write_with_lapses(sql, 0.0, Random(0)) == sql
    assert write_with_lapses(sql, 1.0, Random(0)) == lapse
    written = Counter(write_with_lapses(sql, 0.7, Random(seed)) for seed in range(500))
    assert set(written) == {sql, lapse}
    assert written[lapse] / 500 == pytest.approx(0.7, abs=0.08)


@pytest.mark.parametrize("sql", WITHOUT)
def test_what_is_the_commonest_already_stays(sql):
    assert write_with_lapses(sql, 1.0, Random(0)) == sql


def test_the_choices_of_a_statement_lapse_one_by_one():
    sql = "SELECT AVG(a) FROM t WHERE b > 3 OR NOT c IN (1, 2) ORDER BY a DESC LIMIT 2"
    written = {write_with_lapses(sql, 0.5, Random(seed)) for seed in range(1000)}
    assert len(written) == 2**5


@pytest.mark.parametrize("skill", SKILLS)
def test_with_lapses_the_oracle_plays_valid_sql_about_its_task(skill):
    env = DBBenchEnv(skills=[skill], oracle_lapses=1.0)
    for seed in range(10):
        env.reset(seed=seed)
        first, *_, last = env.oracle_actions(env.task)
        assert "error" not in env.step(first)[0].lower()
        assert env.step(last)[4]["outcome"] in (Outcome.SUCCESS, Outcome.FAILURE)
        words = set(re.findall(r"[a-z_]{3,}", env.task.gold_sql))
        assert words <= set(re.findall(r"[a-z_]{3,}", first)), "names and values stay"
    env.close()


def test_an_answer_is_what_its_own_query_gives():
    env = DBBenchEnv(skills=["order_by_single_column"], oracle_lapses=1.0)
    outcomes = []
    for seed in range(40):
        env.reset(seed=seed)
        query, answer = env.oracle_actions(env.task)
        rows = env.step(query)[0]
        assert answer.endswith(f"Final Answer: {rows}")
        outcomes.append(env.step(answer)[4]["outcome"])
    assert 10 < outcomes.count(Outcome.SUCCESS) < 30
    env.close()


def test_a_task_has_the_same_lapses_each_time():
    tasks = DBBenchEnv(skills=["order_by_single_column"]).task_source
    drawn = [tasks.draw(np.random.default_rng(seed)) for seed in range(300)]
    right, other, same = DBBenchEnv(), DBBenchEnv(oracle_lapses=0.6), DBBenchEnv(oracle_lapses=0.6)
    differ = [right.oracle_actions(task) != other.oracle_actions(task) for task in drawn]
    assert np.mean(differ) == pytest.approx(0.3, abs=0.07), "half of the orders are ascending"
    assert all(other.oracle_actions(task) == same.oracle_actions(task) for task in drawn)
