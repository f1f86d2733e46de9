import asyncio
import gc
import itertools
import threading
import time
import weakref

import pytest

from agentpeft.apps.serve.patient_threads import PatientThreads


def carry_out(num_places, patience_s, seconds, rest_s):
    """Returns when each of several calls began and ended, the most at a time, and the threads."""
    threads, began_s, ended_s, names = PatientThreads(num_places, patience_s, rest_s), {}, {}, set()
    lock, at_once, most = threading.Lock(), [], []

    def call(number, call_s):
        began_s[number] = time.monotonic()
        names.add(threading.current_thread().name)
        with lock:
            at_once.append(1)
            most.append(len(at_once))
        time.sleep(call_s)
        with lock:
            at_once.pop()
        ended_s[number] = time.monotonic()
        return number

    async def carry_out_all():
        calls = (threads.run(lambda each=each: call(*each)) for each in enumerate(seconds))
        return await asyncio.gather(*calls)

    numbers = list(range(len(seconds)))
    assert asyncio.run(carry_out_all()) == numbers
    return [began_s[n] for n in numbers], [ended_s[n] for n in numbers], max(most), names


@pytest.mark.parametrize("rest_s", [0, 0.01])
@pytest.mark.parametrize("num_places", [1, 3])
def test_so_many_calls_are_carried_out_at_a_time_in_the_order_they_came(num_places, rest_s):
    began_s, _, most, names = carry_out(num_places, 20, [0.02] * 12, rest_s)
    assert most == num_places == len(names)
    assert all(later >= first - 0.01 for first, later in itertools.pairwise(began_s))


@pytest.mark.parametrize("rest_s", [0, 0.02])
def test_a_call_that_takes_long_keeps_its_place_for_a_while_alone(rest_s):
    began_s, ended_s, most, _ = carry_out(1, 0.2, [3, 0, 0, 3, 0], rest_s)
    assert began_s == sorted(began_s) and began_s[1] - began_s[0] > 0.15
    assert began_s[4] - began_s[3] > 0.15 and began_s[4] < ended_s[0]
    assert most == 3


def test_threads_that_were_late_are_used_again():
    threads, names = PatientThreads(1, 0.05, 0.02), []

    def call(call_s):
        time.sleep(call_s)
        names.append(threading.current_thread().name)

    async def carry_out_all():
        for _ in range(3):
            await asyncio.gather(*(threads.run(lambda s=s: call(s)) for s in (0.5, 0.5, 0)))

    asyncio.run(carry_out_all())
    assert len(names) == 9 and len(set(names)) == 3


@pytest.mark.parametrize("num_places", [1, 4])
def test_bursts_of_calls_need_no_more_threads_than_places(num_places):
    before = threading.active_count()
    threads = PatientThreads(num_places, 20, 0.02)

    async def burst():
        for _ in range(20):
            await asyncio.gather(*(threads.run(lambda: None) for _ in range(64)))

    asyncio.run(burst())
    assert threading.active_count() - before <= num_places


def test_what_is_done_is_not_kept():
    class Big:
        pass

    big, threads = Big(), PatientThreads(1, 20, 0.02)
    is_there = weakref.ref(big)
    asyncio.run(threads.run(lambda big=big: big and None))
    del big
    time.sleep(0.05)
    gc.collect()
    assert is_there() is None


def test_where_no_thread_can_be_started_a_call_is_refused_and_others_go_on(monkeypatch):
    threads, called = PatientThreads(2, 0.05, 0), []

    def refuse(_):
        raise RuntimeError("can't start new thread")

    async def call():
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="cannot start a thread"):
                await threads.run(lambda: called.append("refused"))
        await threads.run(lambda: called.append("first"))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            slow = asyncio.create_task(threads.run(lambda: time.sleep(0.3)))
            await asyncio.sleep(0.01)
            await threads.run(lambda: called.append("after the slow one"))
            await slow
        late = asyncio.create_task(threads.run(lambda: time.sleep(1)))
        await asyncio.sleep(0.2)
        await asyncio.wait_for(threads.run(lambda: called.append("beside a late one")), 0.5)
        await late

    asyncio.run(call())
    assert called == ["first", "after the slow one", "beside a late one"]


def test_what_no_future_takes_is_told_too():
    def stop():
        raise StopIteration("no more")

    with pytest.raises(RuntimeError, match="StopIteration: no more"):
        asyncio.run(asyncio.wait_for(PatientThreads(1, 20, 0.02).run(stop), 5))


def test_what_fails_tells_it_and_leaves_its_place():
    threads = PatientThreads(1, 20, 0.02)

    async def divide_twice():
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await threads.run(lambda: 1 / 0)
        return await threads.run(lambda: 3)

    assert asyncio.run(asyncio.wait_for(divide_twice(), 5)) == 3


def test_a_call_that_is_given_up_goes_on_where_it_has_begun_and_is_left_out_where_not():
    threads, called, may_end = PatientThreads(1, 20, 0.02), [], threading.Event()

    def begin():
        called.append("begun")
        may_end.wait(5)
        called.append("ended")

    async def give_up():
        calls = [begin, lambda: called.append("left out"), lambda: called.append("last")]
        tasks = [asyncio.create_task(threads.run(call)) for call in calls]
        while not called:
            await asyncio.sleep(0.01)
        for task in tasks[:2]:
            task.cancel()
        await asyncio.sleep(0.01)
        may_end.set()
        await asyncio.wait_for(tasks[2], 5)

    asyncio.run(give_up())
    assert called == ["begun", "ended", "last"]


def test_a_loop_that_has_ended_stops_no_thread():
    threads, may_end = PatientThreads(1, 20, 0.02), threading.Event()

    async def leave():
        asyncio.create_task(threads.run(lambda: may_end.wait(5)))  # noqa: RUF006
        await asyncio.sleep(0.05)

    asyncio.run(leave())
    may_end.set()
    assert asyncio.run(asyncio.wait_for(threads.run(lambda: 3), 5)) == 3


@pytest.mark.parametrize("waits", [False, True])
def test_steps_that_wait_have_more_places(waits):
    threads, may_end, num = PatientThreads.of_steps(that_wait=waits), threading.Event(), []

    async def count():
        def call():
            num.append(1)
            may_end.wait(5)

        tasks = [asyncio.create_task(threads.run(call)) for _ in range(200)]
        await asyncio.sleep(0.05)
        num_at_once = len(num)
        may_end.set()
        await asyncio.gather(*tasks)
        return num_at_once

    assert (asyncio.run(count()) > 1) is waits


async def turn_while(threads, calls):
    """Returns the times at which the event loop came round while calls were carried out."""
    turns_s, tasks = [], [asyncio.create_task(threads.run(call)) for call in calls]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        turns_s.append(time.monotonic())
    return turns_s


def test_the_event_loop_rests_while_calls_compute():
    threads = PatientThreads.of_steps(that_wait=False)
    turns_s = asyncio.run(turn_while(threads, [lambda: sum(range(100_000))] * 64))
    assert len(turns_s) < 50


def test_a_call_that_takes_long_holds_the_event_loop_for_moments():
    threads = PatientThreads.of_steps(that_wait=False)
    turns_s = asyncio.run(turn_while(threads, [lambda: time.sleep(2)]))
    assert max(later - first for first, later in itertools.pairwise(turns_s)) < 1
    in_the_end = [turn_s for turn_s in turns_s if turn_s > turns_s[-1] - 1]
    assert len(in_the_end) > 200  # as it is late by now, the loop rests no more
