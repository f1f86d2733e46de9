"""Each estimator against numbers made by hand or by the statistics module."""

import statistics

import numpy as np
import pytest
from learner_parts import make_trajectory

from agentpeft.policies.learning import advantages
from agentpeft.policies.learning.algorithms import ALGORITHMS


def rewards(*groups):
    """One turn per episode: groups of returns to groups of turn rewards."""
    return [[np.array([value], np.float32) for value in group] for group in groups]


def flat(values):
    return [[float(episode[0]) for episode in group] for group in values]


def test_moving_baseline_is_subtracted():
    assert flat(advantages.moving_baseline(rewards([0, 1]), 0.25)) == [[-0.25, 0.75]]


def test_leave_one_out_compares_with_the_mean_of_the_others():
    returns = [0.0, 0.25, 1.0, 0.5]
    expected = [r - statistics.mean(returns[:i] + returns[i + 1 :]) for i, r in enumerate(returns)]
    assert flat(advantages.leave_one_out(rewards(returns), 9.0))[0] == pytest.approx(expected)


def test_group_centred_subtracts_the_groups_own_mean():
    values = flat(advantages.group_centred(rewards([0, 0, 1, 1], [3, 1]), 9.0))
    assert values == [[-0.5, -0.5, 0.5, 0.5], [1, -1]]


def test_group_standardized_divides_by_the_sample_deviation():
    returns = [0.0, 0.0, 1.0, 2.0]
    scale = statistics.stdev(returns) + 1e-4
    expected = [(r - statistics.mean(returns)) / scale for r in returns]
    assert flat(advantages.group_standardized(rewards(returns), 9.0))[0] == pytest.approx(expected)


def test_whitened_has_mean_0_and_deviation_1_over_all_groups():
    values = flat(advantages.whitened(rewards([0, 1], [1, 2]), 0.3))
    assert values[0] + values[1] == pytest.approx([-(2**0.5), 0, 0, 2**0.5], abs=1e-3)


def test_best_of_group_takes_the_highest_returns_where_they_differ():
    values = flat(advantages.best_of_group(rewards([0, 2, 2], [1, 1], [-1, 0]), 9.0))
    assert values == [[0, 1, 1], [0, 0], [0, 1]]


def test_imitation_weighs_every_turn_alike():
    assert flat(advantages.imitation(rewards([0, 5]), 1.0)) == [[1, 1]]


@pytest.mark.parametrize("name", ["rloo", "grpo", "dr_grpo", "raft"])
def test_group_with_equal_rewards_has_zero_advantages(name):
    values = ALGORITHMS[name].advantage(rewards([0.1] * 7, [0.1]), 0.0)
    assert all(v == 0 for group in flat(values) for v in group)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_turn_gets_an_advantage(name):
    group = [np.array([0, 0, 1], np.float32), np.array([0], np.float32), np.zeros(0, np.float32)]
    values = ALGORITHMS[name].advantage([group], 0.5)
    assert [v.shape for v in values[0]] == [(3,), (1,), (0,)]


def test_tokens_get_the_advantage_of_their_turn():
    trajectory = make_trajectory([1], range(6), 1, [1, 1, 0, 0, 1, 1], (2, 6))
    values = advantages.turns_to_tokens(np.array([3, 5], np.float32), trajectory)
    assert values.tolist() == [3, 3, 5, 5]
