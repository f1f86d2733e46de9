"""What hostile episodes leave in the trainer's memory: caches are bounded in bytes.

Run as a script with a kind of episode, it plays them and prints how many KiB the process grew.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentpeft.envs.db_bench.backends.protocol import Column, DatabaseLimits, Table
from agentpeft.envs.db_bench.backends.sqlite.database import SqliteDatabase
from agentpeft.envs.db_bench.backends.sqlite.mysql.byte_cache import ByteCache

pytestmark = pytest.mark.slow

NUM_EPISODES = 120
NUM_FIRST_EPISODES = 40
MAX_GROWTH_KIB = 40 * 1024
SHOP = Table("shop", (Column("item", "TEXT"),), (("pen",), ("Stift",)))


def block(statement: str, count: int) -> str:
    """Returns a statement that many times, with a number in the place of `?`."""
    return ";".join(statement.replace("?", str(number)) for number in range(count))


def columns(count: int) -> str:
    return ",".join(f"c{number} INT" for number in range(count))


# `i` is another number in each episode, so that nothing is ever asked for again.
EPISODES: dict[str, Callable[[int], str]] = {
    "tokens after an error": lambda i: f"SELECT nope{i}; SELECT 1{',1' * 9900}",
    "many statements": lambda i: f"SELECT {i}; {block('SELECT 1', 2000)}",
    "a large tree behind an error": lambda i: f"SELECT {i}{',1' * 9000}, nope",
    "a large translation": lambda i: f"SELECT {i}{',CONCAT(1,1)' * 450}",
    "wide tables": lambda i: f"CREATE TABLE t{i} ({columns(480)}); SELECT c1 FROM t{i} AS u{i}",
    "long defaults": lambda i: (
        f"CREATE TABLE t (a LONGTEXT DEFAULT '{i}{'x' * 18000}'); SELECT 1; SELECT 2"
    ),
    "long declarations": lambda i: f"CREATE TABLE t{i} (a ENUM({i}{',1' * 9000}))",
    "columns refused": lambda i: block(f"CREATE TABLE t{i}_? (a YEAR)", 100),
    "long aliases": lambda i: f"SELECT 1 FROM shop AS `{i}{'a' * 250}`",
    "dates": lambda i: f"SELECT CAST(CONCAT('2024-01-01', REPEAT(' ', {i + 9000})) AS DATE)",
    "formats": lambda i: f"SELECT DATE_FORMAT(NOW(), CONCAT({i}, REPEAT('x', 15000)))",
    "patterns of LIKE": lambda i: f"SELECT 'abc' LIKE CONCAT({i}, REPEAT('%a_', 5000))",
    "short patterns of LIKE": lambda i: block(
        f"SELECT item LIKE '%_{i}_?{'%a' * 40}' FROM shop", 100
    ),
    "texts compared": lambda i: block(f"SELECT item = '{i} ? {'😀' * 80}' FROM shop", 40),
}


LONG = ("a large tree behind an error", "long declarations", "columns refused")


def rss_kib() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmRSS")).split()[1])


def play(kind: str) -> int:
    """Returns by how much the process grows after the first episodes of a kind."""
    database = SqliteDatabase(DatabaseLimits(statement_timeout_s=2))
    before_kib = 0
    for number in range(NUM_EPISODES):
        if number == NUM_FIRST_EPISODES:
            before_kib = rss_kib()
        session = database.open([SHOP])
        session.execute(EPISODES[kind](1000 + number))
        session.close()
    grown_kib = rss_kib() - before_kib
    database.close()
    return grown_kib


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.long if kind in LONG else ()) for kind in EPISODES],
)
def test_hostile_episodes_leave_memory_flat(kind: str) -> None:
    command = [sys.executable, __file__, kind]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < MAX_GROWTH_KIB


def test_a_byte_cache_holds_no_more_than_its_bytes() -> None:
    cache: ByteCache[int, str] = ByteCache(1000)
    for number in range(100):
        cache.keep(number, "seen once", 100)
    kept = [number for number in range(100) if cache.find(number) is not None]
    assert 99 in kept
    assert len(kept) <= 10
    cache.keep(100, "large", 501)
    assert cache.find(100) is None


if __name__ == "__main__":
    sys.stdout.write(str(play(sys.argv[1])))
