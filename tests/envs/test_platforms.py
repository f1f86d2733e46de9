"""macOS and Windows, as far as they can be simulated: without the modules that they lack."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SIMULATION = """
import importlib, importlib.abc, multiprocessing.connection, os, signal, subprocess, sys
import asyncio, gymnasium, numpy, sqlglot, urllib.request  # they look at the real platform

for name in os.environ.get("REAL_IMPORTS", "").split():
    importlib.import_module(name)
PLATFORM = open(os.path.dirname(__file__) + "/platform").read()
LACKS = {"darwin": set(), "win32": {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}}

class Lacking(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in LACKS[PLATFORM]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Lacking())
for name in LACKS[PLATFORM]:
    sys.modules.pop(name, None)
sys.platform = PLATFORM

if PLATFORM == "darwin":
    import resource
    original = resource.setrlimit
    def setrlimit(limit, values):
        if limit == resource.RLIMIT_AS:
            raise ValueError("current limit exceeds maximum limit")
        original(limit, values)
    resource.setrlimit = setrlimit
else:
    for module, names in (
        (os, "fork forkpty geteuid getuid getgid getegid register_at_fork setsid killpg mkfifo"),
        (signal, "SIGALRM ITIMER_REAL setitimer alarm pthread_kill"),
    ):
        for name in names.split():
            delattr(module, name)
    import ctypes
    load = ctypes.CDLL.__init__
    def checked_load(self, name, *args, **kwargs):
        if name is None:
            raise TypeError("argument of type 'NoneType' is not iterable")
        load(self, name, *args, **kwargs)
    ctypes.CDLL.__init__ = checked_load
    start = subprocess.Popen.__init__
    def checked_start(self, *args, pass_fds=(), **kwargs):
        if pass_fds:
            raise ValueError("pass_fds not supported on Windows.")
        start(self, *args, **kwargs)
    subprocess.Popen.__init__ = checked_start

real_open = open
def checked_open(path, *args, **kwargs):
    if str(path).startswith("/proc"):
        raise FileNotFoundError(path)
    return real_open(path, *args, **kwargs)
import builtins
builtins.open = checked_open
"""


@pytest.fixture(params=["darwin", "win32"])
def run_there(request, tmp_path):
    """Runs a program, and the programs that it starts, as on another platform."""
    (tmp_path / "sitecustomize.py").write_text(SIMULATION)
    (tmp_path / "platform").write_text(request.param)

    def run(program, **variables):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


PLAY = """
    import json, os, sys
    import gymnasium as gym

    assert sys.platform != "linux"
    outcomes = []
    for env_id, kwargs in {games!r}:
        env = gym.make("agentpeft.envs:AgentPEFT/" + env_id, **kwargs)
        for seed in range(5):
            env.reset(seed=seed)
            for action in env.unwrapped.oracle_actions(env.unwrapped.task):
                outcome = env.step(action)[4]["outcome"]
            outcomes.append(str(outcome))
        env.close()
    print(json.dumps(sorted(set(outcomes))))
"""


def test_arithmetic_gsm8k_and_sqlite_are_played(run_there):
    games = [("Arithmetic-v0", {}), ("GSM8K-v0", {}), ("DBBench-v0", {})]
    assert run_there(PLAY.format(games=games)) == ["success"]


def test_a_mysql_server_is_played_with(run_there, mysql_url):
    games = [("DBBench-v0", {"database": mysql_url})]
    assert run_there(PLAY.format(games=games), REAL_IMPORTS="mysql.connector") == ["success"]


def test_a_slow_statement_runs_in_a_worker_and_ends_in_time(run_there):
    result = run_there("""
        import json, time
        from agentpeft.envs.db_bench.backends.opening import open_database
        from agentpeft.envs.db_bench.backends.protocol import Column, DatabaseLimits, Table

        table = Table("t", (Column("n", "INT"),), tuple((n,) for n in range(200)))
        database = open_database("sqlite", DatabaseLimits(statement_timeout_s=0.5))
        session = database.open([table])
        rows = [session.execute("SELECT COUNT(*) FROM t").rows for _ in range(2)]
        start_s = time.monotonic()
        slow = session.execute("SELECT SUM(a.n * b.n * c.n * d.n) FROM t a, t b, t c, t d")
        print(json.dumps([rows, slow.is_timeout, time.monotonic() - start_s]))
        session.close()
        database.close()
    """)
    assert result[:2] == [[[[200]], [[200]]], True]
    assert result[2] < 20


def test_os_interaction_says_what_it_needs_and_tries_docker(run_there):
    message = run_there(
        """
        import json
        import gymnasium as gym
        from agentpeft.envs import EnvFault

        env = gym.make("agentpeft.envs:AgentPEFT/OSInteraction-v0")
        try:
            env.reset()
        except EnvFault as fault:
            print(json.dumps(str(fault)))
        """,
        DOCKER_HOST="tcp://127.0.0.1:9",
        REAL_IMPORTS="docker",
    )
    assert message.startswith("no sandbox: bubblewrap needs Linux, and this is ")
    assert "; or no docker daemon answers" in message
