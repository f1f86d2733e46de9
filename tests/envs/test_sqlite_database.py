"""The embedded backend's own defences, below and above the translation from MySQL."""

import gc
import os
import signal
import sqlite3
import subprocess
import sys
import sysconfig
import threading
import time
import venv
from pathlib import Path

import pytest

from agentpeft.envs.db_bench.backends.protocol import Column, DatabaseLimits, Table
from agentpeft.envs.db_bench.backends.sqlite.connection import (
    GuardedConnection,
    StatementInterrupted,
    Transaction,
    TransactionResult,
)
from agentpeft.envs.db_bench.backends.sqlite.database import SqliteDatabase
from agentpeft.envs.db_bench.backends.sqlite.worker import Request, WorkerPool

SHOP = Table("shop", (Column("item", "TEXT"), Column("price", "DOUBLE")), (("pen", 1.5),))
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
TEXT_200K = "printf('%.*c', 200000, 'x')"
DOUBLING = "WITH c0 AS (SELECT 1 AS x), " + ", ".join(
    f"c{n} AS (SELECT a.x AS x FROM c{n - 1} a, c{n - 1} b)" for n in range(1, 30)
)


def transaction(sql: str, timeout_s: float = 0.3) -> Transaction:
    return Transaction((sql,), is_ddl=False, timeout_s=timeout_s, max_rows=100)


def bare(sql: str = "CREATE TABLE t (a INTEGER, b TEXT)") -> GuardedConnection:
    connection = GuardedConnection(4)
    connection.fill(sql, "INSERT INTO t VALUES (?, ?)", [(n, f"row {n}") for n in range(10)])
    return connection


@pytest.fixture(scope="module")
def pool():
    workers = WorkerPool()
    yield workers
    workers.close()


@pytest.fixture
def database():
    backend = SqliteDatabase(DatabaseLimits(statement_timeout_s=1.0, max_database_mib=4))
    yield backend
    backend.close()


def in_worker(pool: WorkerPool, sql: str, timeout_s: float = 0.3) -> TransactionResult:
    connection = bare()
    try:
        return pool.run(Request(transaction(sql, timeout_s), connection.image(), 4)).result
    finally:
        connection.close()


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH ':memory:' AS other",
        "ATTACH '/tmp/agentpeft-attached.db' AS other",
        "PRAGMA max_page_count = 1000000",
        "SELECT * FROM pragma_database_list",
        "SELECT sql FROM sqlite_master",
        "SELECT * FROM sqlite_schema",
        "SELECT load_extension('libm.so')",
        "CREATE TEMP TABLE t (a)",
        "CREATE TABLE u (a)",
        "CREATE VIEW v AS SELECT 1",
        "CREATE TRIGGER tr AFTER INSERT ON t BEGIN DELETE FROM t; END",
        "CREATE VIRTUAL TABLE f USING fts5(x)",
        "VACUUM INTO '/tmp/agentpeft-vacuumed.db'",
        "BEGIN",
        "SELECT zeroblob(4e8)",
        "SELECT readfile('/etc/passwd')",
        "INSERT INTO sqlite_master VALUES (1, 2, 3, 4, 5)",
        "DETACH main",
    ],
)
def test_sqlite_itself_refuses(sql):
    connection = bare()
    with pytest.raises(sqlite3.Error):
        connection.run(transaction(sql))
    assert connection.run(transaction("SELECT count(*) FROM t")).rows == [(10,)]
    connection.close()


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT replace({TEXT_200K}, 'x', {TEXT_200K})",
        f"SELECT {TEXT_200K} || {TEXT_200K}",
        f"SELECT group_concat(s) FROM (SELECT {TEXT_200K} AS s FROM t)",
        f"SELECT hex({TEXT_200K})",
    ],
)
def test_values_cannot_grow_without_bound(sql):
    connection = bare()
    start_s = time.process_time()
    with pytest.raises(sqlite3.Error):
        connection.run(transaction(sql))
    assert time.process_time() - start_s < 1
    connection.close()


@pytest.mark.parametrize(
    "sql", [ENDLESS, "SELECT count(*) FROM t a, t b, t c, t d, t e, t f, t g, t h"]
)
def test_a_deadline_interrupts_a_query(sql):
    connection = bare()
    with pytest.raises(StatementInterrupted):
        connection.run(transaction(sql))
    connection.close()


def test_an_interrupted_write_leaves_nothing():
    connection = bare()
    slow = "SELECT count(*) FROM t a, t b, t c, t d, t e, t f, t g WHERE a.b >= t.b"
    with pytest.raises(StatementInterrupted):
        connection.run(transaction(f"UPDATE t SET a = ({slow})"))
    assert connection.run(transaction("SELECT sum(a) FROM t")).rows == [(45,)]
    connection.close()


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        (ENDLESS, StatementInterrupted),
        (f"{DOUBLING} SELECT count(*) FROM c29", (MemoryError, StatementInterrupted)),
        (
            f"WITH RECURSIVE n(x, y) AS (SELECT 1, {TEXT_200K} UNION ALL SELECT x + 1, y FROM n "
            "LIMIT 100000) SELECT length(y) FROM (SELECT x || y AS y FROM n ORDER BY y DESC)",
            MemoryError,
        ),
    ],
)
def test_a_worker_stops_what_a_connection_cannot(pool, sql, error):
    with pytest.raises(error):
        in_worker(pool, sql, timeout_s=30.0 if error is MemoryError else 0.3)
    assert in_worker(pool, "SELECT count(*) FROM t").rows == [(10,)]


def test_a_worker_returns_the_database_as_it_changed_it(pool):
    connection = bare()
    reply = pool.run(Request(transaction("DELETE FROM t WHERE a < 7"), connection.image(), 4))
    connection.restore(reply.image)
    assert connection.run(transaction("SELECT a FROM t")).rows == [(7,), (8,), (9,)]
    connection.close()


def test_a_restored_database_keeps_its_limits(pool):
    connection = bare()
    connection.restore(connection.image())
    with pytest.raises(sqlite3.OperationalError, match="full"):
        connection.run(
            transaction(f"INSERT INTO t SELECT 1, {TEXT_200K} FROM t a, t b", timeout_s=5)
        )
    connection.close()


def worker_pids(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in children for child in path.read_text().split()]


def test_a_killed_worker_is_replaced(pool):
    in_worker(pool, "SELECT 1")
    for pid in worker_pids(os.getpid()):
        os.kill(pid, signal.SIGKILL)
    assert in_worker(pool, "SELECT count(*) FROM t", timeout_s=5).rows == [(10,)]


def test_workers_inherit_no_secrets_and_no_descriptors(pool, monkeypatch, tmp_path):
    monkeypatch.setenv("AGENTPEFT_MYSQL_URL", "mysql://root:secret@localhost")
    fresh = WorkerPool()
    with (tmp_path / "open").open("w"):
        before = set(worker_pids(os.getpid()))
        in_worker(fresh, "SELECT 1")
        (pid,) = set(worker_pids(os.getpid())) - before
        targets = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
    assert len(targets) == 3, targets  # requests, answers, and nowhere
    assert {target.partition(":")[0] for target in targets} == {"pipe", "/dev/null"}
    assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()
    fresh.close()
    assert pid not in worker_pids(os.getpid())


SCRIPT = f"""
import sys, time
from agentpeft.envs.db_bench.backends.sqlite.connection import GuardedConnection, Transaction
from agentpeft.envs.db_bench.backends.sqlite.worker import Request, WorkerPool
image = GuardedConnection(4).image()
pool = WorkerPool()
pool.run(Request(Transaction(("SELECT 1",), False, 9.0, 9), image, 4))
print("started", flush=True)
if sys.argv[1] == "busy":
    pool.run(Request(Transaction(({ENDLESS!r},), False, 2.0, 9), image, 4))
time.sleep(60)
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_workers_end_with_a_killed_parent(state):
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, state], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout.readline() == "started\n"
        (worker,) = worker_pids(parent.pid)
        parent.kill()
    deadline_s = time.monotonic() + 10
    while is_running(worker) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not is_running(worker)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_serve_many_threads_at_once(pool):
    results: list[TransactionResult] = []
    threads = [
        threading.Thread(
            target=lambda: results.append(in_worker(pool, "SELECT count(*) FROM t", 30))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.rows for result in results] == [[(10,)]] * 8


def test_a_slow_write_ends_in_the_worker_with_its_effect(database):
    session = database.open([SHOP])
    session.execute(
        "CREATE TABLE n (a INT); INSERT INTO n VALUES (1),(2),(3),(4),(5),(6),(7),(8),(9),(10)"
    )
    slow = "SELECT COUNT(*) FROM n a, n b, n c, n d, n e, n f"
    assert session.execute(f"UPDATE shop SET price = ({slow})").error is None
    assert session.read_table("shop").rows == (("pen", 1e6),)
    session.close()


def test_a_session_moves_between_threads(database):
    session = database.open([SHOP])
    results = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: results.append(session.execute("SELECT 1").rows))
        thread.start()
        thread.join()
    assert results == [((1,),)] * 3
    session.close()


def test_sessions_leave_no_descriptors_and_little_memory_behind(database):
    def play(num: int) -> tuple[int, int]:
        for _ in range(num):
            session = database.open([SHOP])
            session.execute("SELECT item FROM shop")
            session.close()
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return len(list(Path("/proc/self/fd").iterdir())), pages

    files, pages = play(100)
    files_after, pages_after = play(500)
    assert files_after == files
    assert (pages_after - pages) * os.sysconf("SC_PAGE_SIZE") < 4 * 2**20


UNINSTALLED = """
import sys
sys.path.insert(0, sys.argv[1])
from agentpeft.envs.db_bench.backends.protocol import Column, DatabaseLimits, Table
from agentpeft.envs.db_bench.backends.sqlite.database import SqliteDatabase

database = SqliteDatabase(DatabaseLimits())
session = database.open([Table("n", (Column("i", "INT"),), tuple((i,) for i in range(1000)))])
result = session.execute("SELECT COUNT(*) FROM n a, n b WHERE a.i + b.i >= 0")  # slow
database.close()
print(result.rows[0][0] == 1000**2, result.error)
"""


def test_a_worker_finds_a_package_that_is_not_installed(tmp_path: Path) -> None:
    venv.create(tmp_path, symlinks=True)
    folder = Path(sysconfig.get_path("purelib"))
    packages = tmp_path / folder.relative_to(sys.prefix) / "packages.pth"
    packages.write_text(f"{folder}\n")  # no editable install: its own .pth files are not read
    python = str(tmp_path / "bin" / "python")
    assert subprocess.run([python, "-c", "import agentpeft"], cwd=tmp_path, check=False).returncode
    command = [python, "-c", UNINSTALLED, str(Path(__file__).parents[2])]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "True None\n", done.stderr


ODD = Table(
    "odd",
    tuple(
        Column(name, declared)
        for name, declared in (
            ("level", "ENUM('low', 'high')"),
            ("founded", "YEAR"),
            ("photo", "BLOB"),
            ("code", "INT(5) ZEROFILL"),
            ("mark", "TEXT(50)"),
            ("sku", "VARCHAR(9) COLLATE utf8mb4_bin"),
        )
    ),
    (
        ("low", 1999, "x", 7, "😀", "a"),
        ("high", 2024, "y", 8, "👍", "A"),
        (None, None, None, None, "か", None),
    ),
)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT level, founded FROM odd WHERE level = 'LOW'", (("low", 1999),)),
        ("SELECT COUNT(DISTINCT level), MAX(founded) FROM odd", ((2, 2024),)),
        ("SELECT founded FROM odd WHERE mark = '👍'", ((2024,),)),
        ("SELECT COUNT(*) FROM odd WHERE mark = 'a'", ((0,),)),
        ("UPDATE odd SET founded = 2000", ()),
        ("SELECT level FROM odd ORDER BY level", "1235"),
        ("SELECT MAX(level) FROM odd", "1235"),
        ("SELECT 1 FROM odd WHERE level = 2", "1235"),
        ("SELECT 1 FROM odd WHERE founded = 99", "1235"),
        ("UPDATE odd SET level = 'low'", "1235"),
        ("UPDATE odd SET founded = 70", "1235"),
        ("SELECT * FROM odd", "1235"),
        ("SELECT 1 FROM odd WHERE photo = 'X'", "1235"),
        ("SELECT CONCAT(code) FROM odd", "1235"),
        ("SELECT 1 FROM odd WHERE sku = 'a'", "1235"),
        ("SELECT mark FROM odd ORDER BY mark", "1235"),
        ("SELECT 1 FROM odd WHERE mark > 'a'", "1235"),
        ("SELECT 1 FROM odd WHERE mark = 'カ'", "1235"),
        ("DELETE FROM odd ORDER BY mark LIMIT 1", "1235"),
    ],
)
def test_types_and_characters_that_are_not_done_exactly_are_refused(database, sql, expected):
    session = database.open((ODD,))
    result = session.execute(sql)
    assert (result.error.split()[0] if result.error else result.rows) == expected
    session.close()


def test_autocommit_that_is_on_already_commits_nothing(database):
    session = database.open((SHOP,))
    result = session.execute("BEGIN; DELETE FROM shop; SET autocommit = 1; ROLLBACK")
    assert result.error is None
    assert session.execute("SELECT COUNT(*) FROM shop").rows == ((1,),)
    session.close()
