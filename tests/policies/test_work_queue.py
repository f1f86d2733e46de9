"""Which runner is handed which groups, and what batches are made of those that are finished."""

from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.workers.work_queue import Desk, Job, WorkQueue


class Nobody:
    def receive(self, played):
        raise AssertionError(played)


def jobs(*positions, num_episodes=4):
    return [Job(GroupRequest(position, num_episodes), Nobody()) for position in positions]


def positions(desk):
    return [position for _, position in desk.jobs]


def test_groups_go_to_the_runner_with_most_room_and_the_rest_waits():
    queue, desks = WorkQueue(2, 8, is_deterministic=False), [Desk(8), Desk(16)]
    queue.add(jobs(*range(9)))
    given = queue.hand_out(dict(enumerate(desks)))
    assert {runner: [job.request.group_id for job in own] for runner, own in given.items()} == {
        0: [2, 4],
        1: [0, 1, 3, 5],
    }
    # room: 8, 16 → 8, 12 → 8, 8 → 4, 8 → 4, 4 → 0, 4 → 0, 0
    assert [positions(desk) for desk in desks] == [[2, 4], [0, 1, 3, 5]]
    assert [desk.room for desk in desks] == [0, 0] and queue.wants_room
    desks[0].num_ended = 1  # an episode is over, its group is not
    assert list(queue.hand_out(dict(enumerate(desks)))) == [0]
    assert positions(desks[0]) == [2, 4, 6] and desks[0].room == -3
    assert queue.hand_out(dict(enumerate(desks))) == {}


def test_what_comes_first_is_played_before_what_waits():
    queue, desk = WorkQueue(1, 4, is_deterministic=False), Desk(4)
    queue.add(jobs(5, 6))
    queue.add(jobs(1, 2), is_first=True)
    for ended in range(4):
        desk.num_ended = 4 * ended
        queue.hand_out({0: desk})
    assert positions(desk) == [1, 2, 5, 6]


def test_a_deterministic_run_has_one_block_for_each_runner_whoever_plays_it():
    queue, desks = WorkQueue(2, 256, is_deterministic=True), [Desk(256), Desk(256)]
    queue.add(jobs(0, 1, 2, 3, 4))
    queue.hand_out({0: desks[0]})
    assert positions(desks[0]) == [0, 2, 4]
    desks[0].jobs.popitem()
    assert queue.hand_out({0: desks[0]}) == {}  # not before the whole block is played
    desks[0].jobs.clear()
    queue.hand_out({0: desks[0]})
    assert positions(desks[0]) == [1, 3]
    assert not queue.wants_room


def test_a_block_that_comes_back_stays_a_block():
    for is_deterministic, expected in ((True, [[0, 2], [1, 3]]), (False, [[0], [1, 3, 2]])):
        queue = WorkQueue(2, 4, is_deterministic)
        desks = [Desk(4), Desk(4)]
        queue.add(jobs(0, 1, 2, 3, num_episodes=2))
        queue.hand_out(dict(enumerate(desks)))
        queue.put_back(list(desks[0].jobs.values()))
        queue.put_back([])
        desks[0] = Desk(1)
        desks[1].num_ended = 1
        queue.hand_out(dict(enumerate(desks[:1] if is_deterministic else desks)))
        assert [positions(desk) for desk in desks] == expected


def test_a_deterministic_block_is_what_is_played_at_once():
    queue, desks = WorkQueue(2, 9, is_deterministic=True), [Desk(9), Desk(9)]
    queue.add(jobs(*range(6)))  # 6 groups of 4 episodes, of which 2 are played at once
    queue.hand_out(dict(enumerate(desks)))
    assert [positions(desk) for desk in desks] == [[0, 3], [1, 4]]
    desks[1].jobs.clear()
    queue.hand_out(dict(enumerate(desks)))
    assert [positions(desk) for desk in desks] == [[0, 3], [2, 5]]
