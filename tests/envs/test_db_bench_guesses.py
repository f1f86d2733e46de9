"""Guessed statements: valid, about the same things, and blind to what the words mean."""

import re
from collections import Counter
from random import Random

import numpy as np
import pytest

from agentpeft.envs import Outcome
from agentpeft.envs.db_bench.env import DBBenchEnv
from agentpeft.envs.db_bench.guesses import guess_statement
from agentpeft.envs.db_bench.skills import SKILLS

COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
CHOICES = [
    ("SELECT a FROM t WHERE b > 3", [f"SELECT a FROM t WHERE b {op} 3" for op in COMPARISONS]),
    ("SELECT a FROM t WHERE b = 'x'", [f"SELECT a FROM t WHERE b {op} 'x'" for op in COMPARISONS]),
    (
        "SELECT a FROM t ORDER BY b",
        ["SELECT a FROM t ORDER BY b", "SELECT a FROM t ORDER BY b DESC"],
    ),
    (
        "SELECT a, SUM(b) FROM t GROUP BY a",
        [f"SELECT a, {name}(b) FROM t GROUP BY a" for name in ("SUM", "AVG", "MIN", "MAX")],
    ),
    ("SELECT COUNT(*) FROM t", ["SELECT COUNT(*) FROM t"]),
    (
        "DELETE FROM t WHERE b LIKE 'x%'",
        [f"DELETE FROM t WHERE b LIKE '{p}'" for p in ("x%", "%x", "%x%")],
    ),
    (
        "DELETE FROM t WHERE b BETWEEN 1 AND 2",
        ["DELETE FROM t WHERE b BETWEEN 1 AND 2", "DELETE FROM t WHERE NOT b BETWEEN 1 AND 2"],
    ),
    (
        "DELETE FROM t WHERE NOT b IN (1, 2)",
        ["DELETE FROM t WHERE b IN (1, 2)", "DELETE FROM t WHERE NOT b IN (1, 2)"],
    ),
    ("UPDATE t SET b = b + 4", [f"UPDATE t SET b = {v}" for v in ("4", "b + 4", "b - 4")]),
    ("UPDATE t SET b = 'x'", ["UPDATE t SET b = 'x'"]),
    ("INSERT INTO t (b) VALUES (4)", ["INSERT INTO t (b) VALUES (4)"]),
    ("no SQL at all (", ["no SQL at all ("]),
]


@pytest.mark.parametrize(("sql", "guesses"), CHOICES)
def test_each_choice_is_drawn_as_often_as_the_others(sql, guesses):
    drawn = Counter(guess_statement(sql, Random(seed)) for seed in range(600))
    assert set(drawn) == set(guesses)
    assert max(drawn.values()) < 1.5 * min(drawn.values())


def test_choices_of_a_statement_are_drawn_one_by_one():
    sql = "SELECT a FROM t WHERE b > 3 AND c = 'x' ORDER BY a LIMIT 2"
    drawn = {guess_statement(sql, Random(seed)) for seed in range(2000)}
    assert len(drawn) == 6 * 6 * 2 * 2


@pytest.mark.parametrize("skill", SKILLS)
def test_the_guessing_oracle_plays_valid_sql_about_its_task(skill):
    env = DBBenchEnv(skills=[skill], oracle_guesses=1.0)
    for seed in range(10):
        env.reset(seed=seed)
        first, *_, last = env.oracle_actions(env.task)
        assert "error" not in env.step(first)[0].lower()
        assert env.step(last)[4]["outcome"] in (Outcome.SUCCESS, Outcome.FAILURE)
        words = set(re.findall(r"[a-z_]{3,}", env.task.gold_sql))
        assert words <= set(re.findall(r"[a-z_]{3,}", first)), "names and values stay"
    env.close()


def test_an_answer_is_what_its_guessed_query_gives():
    env = DBBenchEnv(skills=["order_by_single_column"], oracle_guesses=1.0)
    outcomes = []
    for seed in range(40):
        env.reset(seed=seed)
        query, answer = env.oracle_actions(env.task)
        rows = env.step(query)[0]
        assert answer.endswith(f"Final Answer: {rows}")
        outcomes.append(env.step(answer)[4]["outcome"])
    assert 10 < outcomes.count(Outcome.SUCCESS) < 30
    env.close()


def test_a_share_of_the_tasks_is_guessed_the_same_ones_each_time():
    tasks = DBBenchEnv(skills=["order_by_single_column"]).task_source
    drawn = [tasks.draw(np.random.default_rng(seed)) for seed in range(300)]
    right, guessing = DBBenchEnv(), DBBenchEnv(oracle_guesses=0.4)
    differ = [right.oracle_actions(task) != guessing.oracle_actions(task) for task in drawn]
    assert differ == [right.oracle_actions(t) != guessing.oracle_actions(t) for t in drawn]
    assert np.mean(differ) == pytest.approx(0.2, abs=0.07), "half of the guesses are right"
