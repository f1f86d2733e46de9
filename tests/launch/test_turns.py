import asyncio
import time

import pytest

from agentpeft.launch.serving.turns import Turns


def play(num_places, patience_s, seconds):
    """Returns when each of several steps began and ended, and the most at a time."""
    turns, began_s, ended_s, at_once = Turns(num_places, patience_s), {}, {}, []

    async def step(number, step_s):
        async with turns.take():
            began_s[number] = time.monotonic()
            at_once.append(1)
            most.append(len(at_once))
            await asyncio.sleep(step_s)
            at_once.pop()
            ended_s[number] = time.monotonic()

    async def play_all():
        await asyncio.gather(*(step(*each) for each in enumerate(seconds)))

    most = []
    asyncio.run(play_all())
    numbers = range(len(seconds))
    return [began_s[n] for n in numbers], [ended_s[n] for n in numbers], max(most)


@pytest.mark.parametrize("num_places", [1, 3])
def test_so_many_steps_are_carried_out_at_a_time_in_the_order_they_came(num_places):
    began_s, _, most = play(num_places, 20, [0.01] * 12)
    assert most == num_places and began_s == sorted(began_s)


def test_a_step_that_takes_long_keeps_its_place_for_a_while_alone():
    began_s, ended_s, most = play(1, 0.2, [3, 0, 0, 3, 0])
    assert began_s == sorted(began_s) and began_s[1] - began_s[0] > 0.15
    assert began_s[4] - began_s[3] > 0.15 and began_s[4] < ended_s[0]
    assert most == 3


def test_what_fails_or_is_given_up_leaves_its_place():
    async def play_all():
        turns = Turns(1, 20)
        with pytest.raises(ZeroDivisionError):
            async with turns.take():
                raise ZeroDivisionError
        async with turns.take():
            waiting = asyncio.create_task(turns.take().__aenter__())
            await asyncio.sleep(0.01)
            waiting.cancel()
        async with asyncio.timeout(5), turns.take():
            return True

    assert asyncio.run(play_all())


@pytest.mark.parametrize("waits", [False, True])
def test_steps_that_wait_have_more_places(waits):
    async def count():
        turns, num = Turns.of_steps(that_wait=waits), 0
        places = [turns.take() for _ in range(200)]
        try:
            for place in places:
                await asyncio.wait_for(place.__aenter__(), 0.02)
                num += 1
        except TimeoutError:
            return num
        return num

    assert (asyncio.run(count()) > 1) is waits
