"""Closed means closed: for every environment, in the middle of a step, after Ctrl-C."""

import os
import subprocess
import sys
import threading
import time

import gymnasium
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from process_parts import children_of, read_processes, wait_until
from toy_env import EchoEnv

from agentpeft.envs import TextVectorEnv
from agentpeft.envs.core.text_env import Turn
from agentpeft.envs.db_bench.actions import operation_action
from agentpeft.envs.db_bench.backends.opening import open_database
from agentpeft.envs.db_bench.backends.protocol import Column, DatabaseLimits, Table
from agentpeft.envs.db_bench.backends.server.server import MySQLServer
from agentpeft.envs.os_interaction.actions import command_action

SLOW_QUERY = "SELECT SUM(a.n * b.n * c.n) FROM t a, t b, t c"
NUMBERS = Table("t", (Column("n", "INT"),), tuple((n,) for n in range(200)))
DIGITS = "SELECT 0 AS n" + "".join(f" UNION ALL SELECT {digit}" for digit in range(1, 10))
ROWS = f"WITH d AS ({DIGITS}), t AS (SELECT a.n + 10 * b.n + 100 * c.n AS n FROM d a, d b, d c)"
ON_SQLITE = {
    "sqlite": f"{ROWS} SELECT COUNT(*) FROM t a, d WHERE a.n * d.n > 5",
    "sqlite, a function": f"{ROWS} SELECT SUM(LENGTH(REPEAT('x', n % 9))) FROM t",
    "sqlite, an aggregate": f"{ROWS} SELECT MAX(CONCAT(n, 'x')) FROM t",
    "sqlite, a sort": f"{ROWS} SELECT CONCAT('x', n % 97) AS x FROM t ORDER BY x LIMIT 1",
}
OWN = {"statement_timeout_s": 6.0}
"""Limits that no other test has: environments of the same limits share processes."""
KINDS = ("arithmetic", "gsm8k", *ON_SQLITE, "mysql", "docker database", "bubblewrap", "docker")


@pytest.fixture(params=KINDS)
def settings(request):
    """What `make` takes for each environment with each of its backends, and a slow action."""
    value = request.getfixturevalue
    slow_sql = operation_action("SELECT SLEEP(0.4)")
    match request.param:
        case "arithmetic":
            return "AgentPEFT/Arithmetic-v0", {}, "0"
        case "gsm8k":
            return "AgentPEFT/GSM8K-v0", {}, "#### 0"
        case kind if kind in ON_SQLITE:
            return "AgentPEFT/DBBench-v0", OWN, operation_action(ON_SQLITE[kind])
        case "mysql":
            return "AgentPEFT/DBBench-v0", {"database": value("mysql_url"), **OWN}, slow_sql
        case "docker database":
            url = f"docker://{value('docker_image')}"
            return "AgentPEFT/DBBench-v0", {"database": url, **OWN}, slow_sql
    value("docker_sandbox_works" if request.param == "docker" else "any_sandbox")
    return "AgentPEFT/OSInteraction-v0", {"sandbox": request.param}, command_action("sleep 0.4")


@pytest.fixture
def env(settings):
    env = gymnasium.make(settings[0], **settings[1], timeout_ends=False, invalid_ends=False)
    yield env
    env.close()


def test_a_closed_environment_answers_nothing_and_leaves_nothing(env, settings):
    before = {*children_of(os.getpid())}

    def left():
        own = {*children_of(os.getpid())} - before
        return [each for each in read_processes("cmdline") if each[0] in own]

    env.reset(seed=0)
    env.step(settings[2])
    task = env.unwrapped.task
    env.close()
    calls = [env.reset, lambda: env.step(""), lambda: env.unwrapped.oracle_actions(task)]
    for call in calls:
        with pytest.raises(ClosedEnvironmentError, match="has been closed"):
            call()
    env.close()
    if settings[1].get("sandbox") != "docker":  # its pool's containers have a process of their own
        wait_until(lambda: not left(), 10)  # another test's may start, and end, in the meantime
        assert left() == []


def test_threads_are_for_steps_that_wait_outside(env, settings):
    is_elsewhere = bool(settings[1].keys() & {"database", "sandbox"})
    assert env.unwrapped.has_waiting_steps is is_elsewhere


def test_closing_in_the_middle_of_a_step_waits_for_it(env, settings):
    env.reset(seed=0)
    raised, end_s = [], time.monotonic() + 30

    def play():
        try:
            while time.monotonic() < end_s:
                env.step(settings[2])
                env.reset()
        except ClosedEnvironmentError as error:
            raised.append(error)

    player = threading.Thread(target=play)
    player.start()
    time.sleep(0.2)
    env.close()
    player.join(timeout=30)
    assert len(raised) == 1


INTERRUPTED = """
import os, signal, sys, threading, time
import gymnasium
from gymnasium.error import ClosedEnvironmentError
import agentpeft.envs

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
env_id, settings, action, num_threads, delays = eval(sys.argv[1])
for delay in delays:
    envs = gymnasium.make_vec(env_id, num_envs=8, num_threads=num_threads, timeout_ends=False,
                              max_turns=1000, invalid_ends=False, **settings)
    is_caught = threading.Event()

    def interrupt():
        time.sleep(delay)
        while not is_caught.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            is_caught.wait(2.0)

    try:
        envs.reset(seed=0)
        threading.Thread(target=interrupt).start()
        while True:
            envs.step([action] * 8)
    except KeyboardInterrupt:
        is_caught.set()
    start_s = time.monotonic()
    envs.close()
    assert time.monotonic() - start_s < 30
    try:
        envs.step([action] * 8)
    except ClosedEnvironmentError:
        print("closed", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("num_threads", [None, pytest.param(8, marks=pytest.mark.long)])
def test_a_vector_is_closed_after_ctrl_c(settings, num_threads):
    env_id, kwargs, action = settings
    delays = [0.03, 0.11] if "sandbox" in kwargs else [0.01, 0.03, 0.05, 0.11, 0.2]
    case = repr((env_id, kwargs, action, num_threads, delays))
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", INTERRUPTED, case],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["closed"] * len(delays)


def test_an_sqlite_session_is_not_closed_under_its_query():
    limits = DatabaseLimits(statement_timeout_s=1.0)
    database = open_database("sqlite", limits)
    for delay_s in (0.0, 0.01, 0.02, 0.04, 0.3):
        session = database.open([NUMBERS])
        errors = []

        def query(session=session, errors=errors):
            try:
                session.execute(SLOW_QUERY)
            except ClosedEnvironmentError as error:
                errors.append(error)

        thread = threading.Thread(target=query)
        thread.start()
        time.sleep(delay_s)
        session.close()
        thread.join()
        assert len(errors) == 1
    database.close()


def test_a_statement_that_outlives_its_backend_leaves_no_worker():
    before = children_of(os.getpid())
    database = open_database("sqlite", DatabaseLimits(statement_timeout_s=5))
    session = database.open([NUMBERS])
    database.close()
    slow = "SELECT COUNT(*) FROM t a, t b, t c WHERE c.n < 20"
    assert session.execute(slow).rows == ((800_000,),)
    session.close()
    assert set(children_of(os.getpid())) <= set(before)


def test_an_administrator_s_connection_that_ctrl_c_has_hit_is_not_lent_again(mysql_url):
    server = MySQLServer(mysql_url, DatabaseLimits())
    with server.administrator() as client:
        first = client.connection_id
    with pytest.raises(KeyboardInterrupt), server.administrator() as client:
        assert client.connection_id == first
        raise KeyboardInterrupt
    with server.administrator() as client:
        assert client.connection_id != first
    server.close()


class ReleasingEnv(EchoEnv):
    """Counts its releases; an action "close" closes it from within, "wait" waits for `go_on`."""

    def __init__(self, **options):
        super().__init__(**options)
        self.num_released = 0
        self.is_stepping = threading.Event()
        self.go_on = threading.Event()

    def _act(self, action):
        if action == "close":
            self.close()
            assert self.num_released == 0
        if action == "wait":
            self.is_stepping.set()
            assert self.go_on.wait(timeout=20)
        return Turn("")

    def _release(self):
        self.num_released += 1


def test_an_environment_is_released_once_and_after_its_last_call():
    env = ReleasingEnv()
    env.reset()
    env.close()
    env.close()
    assert env.num_released == 1
    inner = ReleasingEnv()
    inner.reset()
    with pytest.raises(ClosedEnvironmentError, match="was closed meanwhile"):
        inner.step("close")
    inner.close()
    assert inner.num_released == 1


class HastyEnv(ReleasingEnv):
    close_timeout_s = 0.05


def test_close_gives_up_waiting_and_the_call_releases_at_its_end():
    env = HastyEnv()
    env.reset()
    raised = []

    def step():
        with pytest.raises(ClosedEnvironmentError):
            env.step("wait")
        raised.append(1)

    thread = threading.Thread(target=step)
    thread.start()
    env.is_stepping.wait(timeout=20)
    env.close()
    assert env.num_released == 0
    env.go_on.set()
    thread.join()
    assert (env.num_released, raised) == (1, [1])


def test_a_vector_closes_them_all_also_where_closing_one_raises():
    class StubbornEnv(ReleasingEnv):
        def _release(self):
            super()._release()
            raise OSError("will not go")

    made = [ReleasingEnv(), StubbornEnv(), ReleasingEnv(), StubbornEnv()]
    envs = TextVectorEnv([lambda env=env: env for env in made], num_threads=2)
    envs.reset()
    with pytest.raises(OSError, match="will not go"):
        envs.close()
    envs.close()
    assert [env.num_released for env in made] == [1] * 4
    for call in (envs.reset, lambda: envs.step([""] * 4)):
        with pytest.raises(ClosedEnvironmentError):
            call()


def test_a_vector_goes_on_after_a_call_that_was_left_behind():
    class Interrupt(BaseException):
        pass

    class InterruptedEnv(ReleasingEnv):
        has_waiting_steps = True

        def _act(self, action):
            if action == "interrupt":
                raise Interrupt
            return super()._act(action)

    envs = TextVectorEnv([InterruptedEnv] * 3)
    envs.reset()
    with pytest.raises(Interrupt):
        envs.step(["interrupt", "", ""])
    with pytest.raises(ResetNeeded):
        envs.step([""] * 3)
    envs.reset()
    envs.step([""] * 3)
    envs.close()
