"""A backend in a process that has forked, as vector environments of processes do."""

import subprocess
import sys

SCRIPT = """
import multiprocessing, sys
from agentpeft.envs.db_bench.backends.opening import open_database
from agentpeft.envs.db_bench.backends.protocol import Column, DatabaseLimits, Table

def play():
    database = open_database(sys.argv[1], DatabaseLimits())
    session = database.open([Table("items", (Column("name", "TEXT"),), (("pen",),))])
    yield
    for _ in range(20):
        assert session.execute("SELECT name FROM items").rows == (("pen",),)
    assert session.read_table("items").rows == (("pen",),)
    session.close()
    database.close()

parent = play()
next(parent)
child = multiprocessing.get_context("fork").Process(target=lambda: list(play()))
child.start()
child.join()
assert child.exitcode == 0
list(parent)
list(play())
"""


def test_a_forked_child_has_a_backend_of_its_own_and_spares_its_parents(spec: str) -> None:
    command = [sys.executable, "-c", SCRIPT, spec]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
