"""Each estimator against numbers made by hand or by the statistics module."""

import statistics
from dataclasses import replace

import numpy as np
import pytest
from learner_parts import make_group, make_samples_of, make_trajectory

from agentpeft.policies.learning import advantages
from agentpeft.policies.learning.algorithms import ALGORITHMS


def returns(*values):
    return np.array(values, np.float32)


def test_moving_baseline_is_subtracted():
    group = make_group(0, [make_trajectory([1], [2], reward) for reward in (0, 1)])
    samples = make_samples_of([group], "reinforce", baseline=0.25)
    assert [s.advantages.tolist() for s in samples] == [[-0.25], [0.75]]


def test_branches_share_their_episode_s_advantage_and_count_once():
    played = [make_trajectory([1], [2], reward) for reward in (1, 1, 0)]
    played[1] = replace(played[1], is_branch=True)
    groups = [make_group(number, played) for number in range(2)]
    samples = make_samples_of(groups, "dr_grpo")
    assert [s.advantages.tolist() for s in samples] == [[0.5], [0.5], [-0.5]] * 2


def test_leave_one_out_compares_with_the_mean_of_the_others():
    group = [0.0, 0.25, 1.0, 0.5]
    expected = [r - statistics.mean(group[:i] + group[i + 1 :]) for i, r in enumerate(group)]
    assert advantages.leave_one_out(returns(*group)).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("group", "expected"), [((0, 0, 1, 1), [-0.5, -0.5, 0.5, 0.5]), ((3, 1), [1, -1])]
)
def test_group_centred_subtracts_the_groups_own_mean(group, expected):
    assert advantages.group_centred(returns(*group)).tolist() == expected


def test_group_standardized_divides_by_the_sample_deviation():
    group = [0.0, 0.0, 1.0, 2.0]
    scale = statistics.stdev(group) + 1e-4
    expected = [(r - statistics.mean(group)) / scale for r in group]
    assert advantages.group_standardized(returns(*group)).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("group", "expected"), [((0, 2, 2), [0, 1, 1]), ((1, 1), [0, 0]), ((-1, 0), [0, 1])]
)
def test_best_of_group_takes_the_highest_returns_where_they_differ(group, expected):
    assert advantages.best_of_group(returns(*group)).tolist() == expected


def test_imitation_weighs_every_episode_alike():
    assert advantages.imitation(returns(0, 5)).tolist() == [1, 1]


@pytest.mark.parametrize("name", ["rloo", "grpo", "dr_grpo", "gspo", "cispo", "raft"])
@pytest.mark.parametrize("size", [1, 7])
def test_group_with_equal_rewards_has_zero_advantages(name, size):
    assert not ALGORITHMS[name].advantage(returns(*[0.1] * size)).any()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_episode_gets_an_advantage(name):
    for size in (1, 3):
        got = ALGORITHMS[name].advantage(np.arange(size, dtype=np.float32))
        assert got.shape == (size,) and got.dtype == np.float32


def test_ppo_whitens_to_mean_0_and_deviation_1_over_all_groups():
    groups = [
        make_group(i, [make_trajectory([1], [2], r) for r in values])
        for i, values in enumerate([(0, 1), (1, 2)])
    ]
    values = [s.advantages.tolist() for s in make_samples_of(groups, "ppo", baseline=0.3)]
    assert np.concatenate(values) == pytest.approx([-(2**0.5), 0, 0, 2**0.5], abs=1e-3)


def test_every_sampled_token_gets_its_episodes_advantage():
    long = make_trajectory([1], range(6), 1, [1, 1, 0, 0, 1, 1], (2, 6))
    empty = make_trajectory([1], [], 0, ends=())
    groups = [
        make_group(0, [make_trajectory([1], [2], 0), empty, long]),
        make_group(1, [make_trajectory([1], [2, 3], r) for r in (5, 7)]),
    ]
    samples = make_samples_of(groups, "dr_grpo")
    assert [(s.group, s.index) for s in samples] == [(0, 0), (0, 2), (1, 0), (1, 1)]
    for sample, value, num_tokens in zip(
        samples, (-1 / 3, 2 / 3, -1, 1), (1, 4, 2, 2), strict=True
    ):
        assert sample.advantages.tolist() == pytest.approx([value] * num_tokens)
