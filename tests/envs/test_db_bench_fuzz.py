"""Random and mutated actions: never an exception, always text in the space, always an end."""

import random

import pytest

from agentpeft.envs import Outcome
from agentpeft.envs.db_bench.actions import operation_action
from agentpeft.envs.db_bench.env import DBBenchEnv

PIECES = (
    "SELECT", "FROM", "WHERE", "(", ")", "((((", "'", '"', "`", ";", "--", "/*", "*/", ",", "*",
    "NULL", "1e999", "0x", "99999999999999999999", "-", "/ 0", "LIKE '%_\\'", "REGEXP", "CASE WHEN",
    "UNION ALL", "GROUP BY", "HAVING", "ORDER BY", "LIMIT -1", "JOIN", "CAST(", "INTERVAL 1 DAY",
    "\x00", "\ud800", "é", "\U0001f600", "@x :=", "?", ":a", "%s", "{}", "\\", "DROP TABLE",
    "ALTER TABLE", "PRAGMA", "ATTACH", "sqlite_master", "COUNT(", "GROUP_CONCAT(", "OVER (", "~",
)  # fmt: skip


def mutate(text: str, rng: random.Random) -> str:
    """Returns `text` with one to four pieces cut, doubled, swapped or put in."""
    for _ in range(rng.randint(1, 4)):
        i, j = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        j = min(j, i + 12)
        kind = rng.randrange(4)
        if kind == 0:
            text = text[:i] + text[j:]
        elif kind == 1:
            text = text[:j] + text[i:]
        elif kind == 2:
            text = text[:i] + f" {rng.choice(PIECES)} " + text[j:]
        else:
            text = text[:i] + chr(rng.randrange(1, 0x3000)) + text[i:]
    return text


def random_action(env: DBBenchEnv, rng: random.Random) -> str:
    kind = rng.randrange(8)
    if kind == 0:
        return env.action_space.sample()
    if kind == 1:
        return operation_action(" ".join(rng.choices(PIECES, k=rng.randint(1, 12))))
    oracle = rng.choice(env.oracle_actions(env.task))
    return mutate(oracle, rng)


@pytest.mark.parametrize("seed", range(4))
def test_no_action_breaks_the_environment(seed):
    rng = random.Random(seed)
    env = DBBenchEnv(invalid_ends=False, statement_timeout_s=1.0)
    env.reset(seed=seed)
    env.action_space.seed(seed)
    for _ in range(5_000):
        action = random_action(env, rng)
        observation, reward, terminated, truncated, info = env.step(action)
        assert env.observation_space.contains(observation), action
        assert "Traceback" not in observation, action
        assert isinstance(reward, float)
        assert not truncated
        assert terminated == (info["outcome"] is not Outcome.ONGOING)
        assert info["num_turns"] <= 4
        if terminated:
            env.reset()
    env.close()
