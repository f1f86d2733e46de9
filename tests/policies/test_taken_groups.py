"""Groups that a runner has taken, with players that end episodes when a test says so."""

import asyncio
import threading
import time
from contextlib import closing

import pytest

from agentpeft.envs import Task
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.rollout.taken_groups import OpenGroup, TakenGroups


class Table:
    """Players whose episodes end when they are told to."""

    def __init__(self, max_episodes):
        self.taken = TakenGroups(max_episodes, self.open, self.play)
        self.in_play = {}

    def open(self, requests):
        return [
            OpenGroup(request, Task(task_id=f"task {request.group_id}", instruction=""))
            for request in requests
        ]

    async def play(self, episodes):
        for group, sample in episodes:
            ended = self.in_play[group.request.group_id, sample] = asyncio.Event()
            await ended.wait()
            self.taken.end_episode(group)

    def end(self, *names):
        async def end_all():
            for name in names:
                self.in_play.pop(name).set()

        self.taken.run(end_all())

    def await_play(self, *names):
        deadline_s = time.monotonic() + 10
        while set(self.in_play) != set(names) and time.monotonic() < deadline_s:
            time.sleep(0.001)
        assert set(self.in_play) == set(names)


@pytest.fixture
def table():
    made = Table(max_episodes=3)
    with closing(made.taken):
        yield made


def ids(groups):
    return [group.request.group_id for group in groups]


def test_an_episode_that_ends_makes_place_for_the_next_one(table):
    table.taken.take([GroupRequest(0, 2), GroupRequest(1, 2)])
    table.await_play((0, 0), (0, 1), (1, 0))
    table.end((0, 1))
    table.await_play((0, 0), (1, 0), (1, 1))
    table.end((1, 0), (1, 1))
    groups, num_ended = table.taken.collect(4, until_room=False)
    assert (ids(groups), num_ended) == ([1], 3)
    table.end((0, 0))
    assert ids(table.taken.collect(4, until_room=False)[0]) == [0]


def test_room_is_told_of_where_more_work_waits(table):
    table.taken.take([GroupRequest(0, 3)])
    table.await_play((0, 0), (0, 1), (0, 2))
    table.end((0, 2))
    assert table.taken.collect(4, until_room=True) == ([], 1)
    table.taken.take([GroupRequest(1, 2)])
    table.await_play((0, 0), (0, 1), (1, 0))


def test_no_more_groups_are_returned_than_asked_for(table):
    table.taken.take([GroupRequest(position, 1) for position in range(3)])
    table.await_play((0, 0), (1, 0), (2, 0))
    table.end((2, 0), (1, 0), (0, 0))
    first, _ = table.taken.collect(1, until_room=False)
    rest = []
    while len(rest) < 2:
        rest += table.taken.collect(2, until_room=False)[0]
    assert sorted(ids(first + rest)) == [0, 1, 2]


def test_who_waits_can_be_woken(table):
    table.taken.take([GroupRequest(0, 1)])
    threading.Timer(0.05, table.taken.wake).start()
    assert table.taken.collect(1, until_room=False) == ([], 0)


def test_a_failure_is_raised_while_others_play_and_lets_no_episode_begin(table):
    begun = []

    async def fail(episodes):
        for group, sample in episodes:
            begun.append((group.request.group_id, sample))
            if group.request.group_id:
                raise ZeroDivisionError("of a later group")
            await asyncio.sleep(60)

    taken = TakenGroups(3, table.open, fail)
    with closing(taken):
        taken.take([GroupRequest(0, 2), GroupRequest(1, 2)])
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="of a later group"):
                taken.collect(1, until_room=True)
        assert begun == [(0, 0), (0, 1), (1, 0)]


def test_what_cannot_be_opened_is_raised_too(table):
    taken = TakenGroups(1, lambda requests: [1 / 0], table.play)
    with closing(taken):
        taken.take([GroupRequest(0, 1)])
        with pytest.raises(ZeroDivisionError):
            taken.collect(1, until_room=False)
