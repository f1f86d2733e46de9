"""A control run learns from rewards that mean nothing, and says truly how it fares."""

from dataclasses import replace

from learner_parts import (
    flat_weights,
    make_group,
    make_learner,
    make_trajectory,
    random_groups,
)

from agentpeft.policies.learning.options.control import draw_rewards, shuffle_rewards


def returns(groups):
    return [t.episode_return for group in groups for t in group.trajectories]


def test_rewards_are_dealt_out_anew_among_all_episodes():
    groups = random_groups(num_groups=8)
    shuffled = shuffle_rewards(groups, (0, 3))
    assert returns(shuffled) != returns(groups)
    assert sorted(returns(shuffled)) == sorted(returns(groups))
    assert returns(shuffle_rewards(groups, (0, 3))) == returns(shuffled)
    assert returns(shuffle_rewards(groups, (0, 4))) != returns(shuffled)
    for group, other in zip(groups, shuffled, strict=True):
        for own, moved in zip(group.trajectories, other.trajectories, strict=True):
            assert moved.token_ids is own.token_ids
            assert len(moved.turn_rewards) == len(own.turn_rewards)
            assert not any(moved.turn_rewards[:-1])


def test_the_branches_of_an_episode_share_the_return_that_it_is_dealt():
    def group(number, reward):
        episode = make_trajectory([1], [2], reward)
        branch = replace(episode, is_branch=True)
        return make_group(number, [episode, branch, branch] * 2)

    def of_episodes(groups):
        dealt = [t.episode_return for g in groups for t in g.trajectories]
        assert dealt[::3] == dealt[1::3] == dealt[2::3]
        return dealt[::3]

    groups = [group(number, float(number)) for number in range(4)]
    shuffled = of_episodes(shuffle_rewards(groups, (0, 3)))
    assert sorted(shuffled) == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    assert shuffled != sorted(shuffled)
    assert sorted(of_episodes(draw_rewards(groups, 0))) == [0.0] * 4 + [1.0] * 4


def test_a_control_learns_something_else_and_reports_the_true_rewards():
    groups = random_groups()
    learners = [make_learner(shuffle_rewards=is_control) for is_control in (False, True)]
    metrics = [learner.update(groups) for learner in learners]
    assert flat_weights(learners[0]).tobytes() != flat_weights(learners[1]).tobytes()
    assert metrics[0]["train/avg_reward"] == metrics[1]["train/avg_reward"]
    assert metrics[0]["train/accuracy"] == metrics[1]["train/accuracy"]


def test_a_control_drops_the_groups_that_the_run_drops():
    groups = [*random_groups(), make_group(9, [make_trajectory([1], [2], 1)] * 4)]
    dropped = [
        make_learner(dynamic_sampling=True, shuffle_rewards=is_control).update(groups)[
            "train/num_dropped_groups"
        ]
        for is_control in (False, True)
    ]
    assert dropped == [1, 1]


def test_rewards_that_differ_are_not_replaced():
    def group(number, *returns):
        return make_group(number, [make_trajectory([1], [2], reward) for reward in returns])

    assert draw_rewards([group(0, 1.0, 1.0), group(1, 0.0, 0.5)], 0) is None
    assert draw_rewards([group(0, 1.0), group(1, 0.0)], 0) is None
    for equal in ([group(0, 1.0, 1.0), group(1, 0.0, 0.0)], [group(0, 1.0), group(1, 1.0)]):
        drawn = draw_rewards(equal, 0)
        returns = [t.episode_return for each in drawn for t in each.trajectories]
        assert len(set(returns)) == 2 and min(returns) >= 0 and max(returns) <= 1
