"""Which runner is handed which groups, and what batches are made of those that are finished."""

from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.workers.runner_queue import RunnerJobs, RunnerQueue


def groups(*positions, num_episodes=4):
    return [GroupRequest(position, num_episodes) for position in positions]


def positions(jobs):
    return [request.group_id for request in jobs.requests]


def test_groups_go_to_the_runner_with_most_room_and_the_rest_waits():
    queue, runners = RunnerQueue(2, 8, is_deterministic=False), [RunnerJobs(8), RunnerJobs(16)]
    queue.add_groups(groups(*range(9)))
    given = queue.assign_groups(dict(enumerate(runners)))
    assert {runner: [request.group_id for request in own] for runner, own in given.items()} == {
        0: [2, 4],
        1: [0, 1, 3, 5],
    }
    # room: 8, 16 → 8, 12 → 8, 8 → 4, 8 → 4, 4 → 0, 4 → 0, 0
    assert [positions(jobs) for jobs in runners] == [[2, 4], [0, 1, 3, 5]]
    assert [jobs.room for jobs in runners] == [0, 0] and queue.wants_room
    runners[0].num_ended = 1  # an episode is over, its group is not
    assert list(queue.assign_groups(dict(enumerate(runners)))) == [0]
    assert positions(runners[0]) == [2, 4, 6] and runners[0].room == -3
    assert queue.assign_groups(dict(enumerate(runners))) == {}


def test_what_comes_first_is_played_before_what_waits():
    queue, jobs = RunnerQueue(1, 4, is_deterministic=False), RunnerJobs(4)
    queue.add_groups(groups(5, 6))
    queue.add_groups(groups(1, 2), is_first=True)
    for ended in range(4):
        jobs.num_ended = 4 * ended
        queue.assign_groups({0: jobs})
    assert positions(jobs) == [1, 2, 5, 6]


def test_a_deterministic_run_has_one_block_for_each_runner_whoever_plays_it():
    queue, runners = RunnerQueue(2, 256, is_deterministic=True), [RunnerJobs(256), RunnerJobs(256)]
    queue.add_groups(groups(0, 1, 2, 3, 4))
    queue.assign_groups({0: runners[0]})
    assert positions(runners[0]) == [0, 2, 4]
    runners[0].requests.pop()
    assert queue.assign_groups({0: runners[0]}) == {}  # not before the whole block is played
    runners[0].requests.clear()
    queue.assign_groups({0: runners[0]})
    assert positions(runners[0]) == [1, 3]
    assert not queue.wants_room


def test_a_block_that_comes_back_stays_a_block():
    for is_deterministic, expected in ((True, [[0, 2], [1, 3]]), (False, [[0], [1, 3, 2]])):
        queue = RunnerQueue(2, 4, is_deterministic)
        runners = [RunnerJobs(4), RunnerJobs(4)]
        queue.add_groups(groups(0, 1, 2, 3, num_episodes=2))
        queue.assign_groups(dict(enumerate(runners)))
        queue.return_groups(list(runners[0].requests))
        queue.return_groups([])
        runners[0] = RunnerJobs(1)
        runners[1].num_ended = 1
        queue.assign_groups(dict(enumerate(runners[:1] if is_deterministic else runners)))
        assert [positions(jobs) for jobs in runners] == expected


def test_a_deterministic_block_is_what_is_played_at_once():
    queue, runners = RunnerQueue(2, 9, is_deterministic=True), [RunnerJobs(9), RunnerJobs(9)]
    queue.add_groups(groups(*range(6)))  # 6 groups of 4 episodes, of which 2 are played at once
    queue.assign_groups(dict(enumerate(runners)))
    assert [positions(jobs) for jobs in runners] == [[0, 3], [1, 4]]
    runners[1].requests.clear()
    queue.assign_groups(dict(enumerate(runners)))
    assert [positions(jobs) for jobs in runners] == [[0, 3], [2, 5]]
