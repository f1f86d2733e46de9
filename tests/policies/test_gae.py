"""Advantages by GAE and the value loss, against numbers by hand."""

import numpy as np
import pytest
from learner_parts import make_group, make_samples_of, make_trajectory

from agentpeft.envs import Outcome
from agentpeft.policies.learning.critic import compute_critic_metrics, compute_gae
from agentpeft.policies.learning.samples import Scores
from agentpeft.policies.messages import Trajectory


def floats(*values):
    return np.array(values, np.float32)


def two_turns(first, second, outcome=Outcome.FAILURE):
    """Two turns of two tokens each, with these rewards, and an observation of two in between."""
    mask = np.array([1, 1, 0, 0, 1, 1], bool)
    return Trajectory(
        np.array([1, 2, 3]), np.array([4, 5, 6, 7, 8, 9]), mask,
        np.where(mask, -1, 0).astype(np.float32), (2, 6), (first, second), outcome,
    )  # fmt: skip


def make_critic_samples(trajectories, values, algorithm="a2c", **training):
    """The values stand with the first token of each turn; the others do not count."""
    scores = []
    for trajectory, turn_values in zip(trajectories, values, strict=True):
        old = np.full(trajectory.loss_mask.sum(), np.nan, np.float32)
        old[[0, 2][: len(turn_values)]] = turn_values
        scores.append(Scores(values=old))
    groups = [make_group(0, trajectories)]
    return make_samples_of(groups, algorithm, scores=scores, critic="shared", **training)


@pytest.mark.parametrize(
    ("rewards", "values", "gamma", "lambda_", "expected"),
    [
        # delta 1: 1 - .25 = .75; delta 0: .9 * .25 - .5 = -.275; -.275 + .9 * .8 * .75 = .265
        ((0, 1), (0.5, 0.25), 0.9, 0.8, (0.265, 0.75)),
        # deltas: 1 + .5 - .5, -1 - .25 - 1, 2 + .5; then -2.25 + .25 * 2.5, 1 - .25 * 1.625
        ((1, -1, 2), (0.5, 1, -0.5), 0.5, 0.5, (0.59375, -1.625, 2.5)),
        ((1, -1, 2), (0.5, 1, -0.5), 0.5, 0.0, (1, -2.25, 2.5)),
        ((1, -1, 2), (0.5, 1, -0.5), 1.0, 1.0, (1.5, 0, 2.5)),
        ((3,), (1,), 0.5, 0.5, (2,)),
        ((), (), 0.5, 0.5, ()),
    ],
)
def test_gae_is_what_one_computes_by_hand(rewards, values, gamma, lambda_, expected):
    got = compute_gae(floats(*rewards), floats(*values), gamma, lambda_)
    assert got.tolist() == pytest.approx(list(expected), abs=1e-6)


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - {Outcome.ONGOING}))
def test_after_any_end_limits_too_nothing_is_to_come(outcome):
    played = [two_turns(0.0, 1.0, outcome)]
    (sample,) = make_critic_samples(played, [(0.5, 0.25)], gamma=0.9, lambda_=0.8)
    assert sample.advantages.tolist() == pytest.approx([0.265, 0.265, 0.75, 0.75])
    assert sample.critic.targets.tolist() == pytest.approx([0.765, 0.765, 1, 1])
    assert sample.critic.turn_starts.tolist() == [1, 0, 1, 0]


def test_ppo_whitens_over_the_turns_and_a2c_takes_the_advantages_as_they_are():
    empty = make_trajectory([1, 2], [], 0, ends=())
    empty = Trajectory(**{**vars(empty), "turn_rewards": ()})
    trajectories = [two_turns(-1, 2), empty, make_trajectory([1], [7], 6)]
    values = [(0, 0), (), (0,)]  # gamma and lambda 1: the advantages are the returns to go
    whitened, plain = (make_critic_samples(trajectories, values, n) for n in ("ppo", "a2c"))
    scale = np.std([1, 2, 6]) + 1e-4
    assert [s.advantages.tolist() for s in plain] == [[1, 1, 2, 2], [6]]
    assert [s.index for s in whitened] == [0, 2]
    assert whitened[0].advantages.tolist() == pytest.approx([-2 / scale] * 2 + [-1 / scale] * 2)
    assert whitened[1].advantages.tolist() == pytest.approx([3 / scale])
    assert make_critic_samples([empty], [()], "ppo") == []


def test_the_explained_variance_is_1_less_the_share_that_is_left():
    returns = (0.0, 2.0, 4.0)
    samples = make_critic_samples(
        [two_turns(0.0, r) for r in returns], [(r / 2, r / 2) for r in returns]
    )
    metrics = compute_critic_metrics(samples)
    assert metrics["train/value_mean"] == 1
    assert metrics["train/explained_variance"] == pytest.approx(1 - 0.25)
    constant = compute_critic_metrics(samples[:1])["train/explained_variance"]
    assert np.isnan(constant) and compute_critic_metrics([]) == {}
