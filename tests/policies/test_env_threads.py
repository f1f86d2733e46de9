import asyncio
import threading
import time

import pytest

from agentpeft.envs import EnvFault
from agentpeft.policies.errors import EnvironmentBugError
from agentpeft.policies.rollout.env_threads import EnvHangError, EnvThreads


@pytest.fixture
def make_threads():
    made = []

    def make(max_threads=4, timeout_s=5.0):
        made.append(EnvThreads(max_threads, timeout_s))
        return made[-1]

    yield make
    for threads in made:
        threads.close()


@pytest.fixture
def call_all():
    """Calls functions in threads and returns results and exceptions."""

    async def gather(threads, functions):
        return await asyncio.gather(*(threads.call(f) for f in functions), return_exceptions=True)

    with asyncio.Runner() as runner:
        yield lambda threads, functions: runner.run(gather(threads, functions))


def test_results_come_back_to_their_callers(make_threads, call_all):
    threads = make_threads()
    results = call_all(threads, [lambda n=n: n * n for n in range(1000)])
    assert results == [n * n for n in range(1000)]
    assert threads.num_under_way == 0


def test_slow_calls_run_side_by_side_up_to_the_limit(make_threads, call_all):
    running, most = set(), []

    def step():
        running.add(threading.get_ident())
        most.append(len(running))
        time.sleep(0.2)
        running.discard(threading.get_ident())

    start_s = time.monotonic()
    call_all(make_threads(max_threads=4), [step] * 16)
    assert max(most) == 4
    assert time.monotonic() - start_s < 16 * 0.2  # the time of one after the other


def test_a_hanging_call_is_left_behind_and_the_others_go_on(make_threads, call_all):
    threads = make_threads(max_threads=1, timeout_s=0.1)
    released = threading.Event()
    start_s = time.monotonic()
    hung, next_one = call_all(threads, [released.wait, lambda: "next"])
    released.set()
    assert isinstance(hung, EnvHangError)
    assert "more than 0.1 s" in str(hung)
    assert next_one == "next"
    assert time.monotonic() - start_s < 10
    assert call_all(threads, [lambda: "again"]) == ["again"]


def test_waiting_for_a_thread_is_not_hanging(make_threads, call_all):
    threads = make_threads(max_threads=1, timeout_s=1.0)
    results = call_all(threads, [lambda: time.sleep(0.06)] * 20)
    assert results == [None] * 20


def test_a_fault_is_the_callers(make_threads, call_all):
    def step():
        raise EnvFault("gone")

    threads = make_threads()
    (fault,) = call_all(threads, [step])
    assert isinstance(fault, EnvFault)
    assert not isinstance(fault, EnvHangError)


@pytest.mark.parametrize("raised", [ZeroDivisionError(), SystemExit(3), KeyboardInterrupt()])
def test_what_a_broken_environment_raises_is_named_and_ends_no_thread(
    make_threads, call_all, raised
):
    def step():
        raise raised

    threads = make_threads(max_threads=1)
    (error,) = call_all(threads, [step])
    assert isinstance(error, EnvironmentBugError) and error.__cause__ is raised
    assert str(error).startswith(f"the environment raised {type(raised).__name__}")
    assert call_all(threads, [lambda: "next"]) == ["next"]


def test_the_clock_counts_what_overlaps_once(make_threads, call_all):
    threads, start_s = make_threads(max_threads=2), time.monotonic()
    call_all(threads, [lambda: time.sleep(0.05)] * 2)
    most_s = time.monotonic() - start_s
    time.sleep(0.05)
    assert 0.05 <= threads.busy_s <= most_s
