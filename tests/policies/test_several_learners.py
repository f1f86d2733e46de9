"""Two learners against one: the same steps from the same batch, however it is shared.

The two are Ray actors of one process group, started once; each test makes new learners in them.
"""

import os
import signal
import sys
import time

import learner_parts
import numpy as np
import pytest
import ray
import ray.cloudpickle
import torch
from learner_parts import act, flat_weights, make_group, make_trajectory, random_groups
from small_model import SMALL

from agentpeft.envs import SettingsError
from agentpeft.policies.errors import PlacementError, TrainingError
from agentpeft.policies.learning.algorithms import ALGORITHMS
from agentpeft.policies.learning.learner import Learner
from agentpeft.policies.learning.peers import Peers, cut_into_shares
from agentpeft.policies.learning.samples import list_members
from agentpeft.policies.models.load import load_base
from agentpeft.policies.models.lora import attach_lora
from agentpeft.policies.settings.config import Settings, with_overrides
from agentpeft.policies.workers.learner_group import LearnerActor, LearnerGroup

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster(num_cpus=3),
    pytest.mark.usefixtures("cluster"),
]
for module in (learner_parts, sys.modules[__name__]):  # workers cannot import them
    ray.cloudpickle.register_pickle_by_value(module)

TINY = (
    *SMALL,
    "lora.rank=4",
    "env_runners.max_new_tokens=8",
    "learners.num_threads=1",
)
ALONE = Peers()


def make_settings(*overrides):
    return Settings(**with_overrides({}, (*TINY, *overrides)))


@pytest.fixture(scope="module")
def pair(cluster):
    group = LearnerGroup(make_settings("learners.num_learners=2"), TrialLearner)
    yield group
    group.close()


@pytest.fixture
def trio(cluster):
    group = LearnerGroup(make_settings("learners.num_learners=3"), TrialLearner)
    yield group
    group.close()


def make_anew(peers, overrides):
    """Returns a new learner with these peers; its adapter is not zero."""
    settings = make_settings(*overrides)
    policy = attach_lora(load_base(make_settings()), settings.lora)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return Learner(settings, policy, peers)


def learn(peers, overrides, batches, prepare=None):
    """Returns the metrics, gradients and weights after each update of a new learner."""
    learner = make_anew(peers, overrides)
    if prepare is not None:
        prepare(learner)
    found = []
    for groups in batches:
        metrics = learner.update(groups)
        grads = [p.grad for p in learner.policy.trainable_parameters() if p.grad is not None]
        gradient = torch.cat([g.flatten() for g in grads]).numpy() if grads else np.zeros(1)
        found.append((metrics, gradient, flat_weights(learner)))
    return found


def imitate(peers):
    learner = make_anew(peers, ("training.algorithm=sft", "lora.rank=8", "training.lr=1e-3"))
    losses = [act(learner).imitate(at, 4)[0]["train/policy_loss"] for at in (0, 4)]
    return flat_weights(learner), losses


def warm_start(peers):
    learner = make_anew(peers, ("warm_start.num_steps=2", "warm_start.batch_size=4"))
    act(learner).warm_start()
    return learner.version, flat_weights(learner)


def resume(peers, batches):
    first, second = make_anew(peers, ()), make_anew(peers, ())
    first.update(batches[0])
    act(second).restore(peers.of_first(act(first).to_files))
    return second.update(batches[1]), flat_weights(second).tobytes()


class TrialLearner(LearnerActor):
    """Does the same as the functions above, with its peers; fails and dies when it is asked to."""

    def learn(self, overrides, batches, prepare):
        return learn(self.learner.peers, overrides, batches, prepare)

    def imitate_anew(self):
        return imitate(self.learner.peers)

    def warm_start_anew(self):
        return warm_start(self.learner.peers)

    def resume_anew(self, batches):
        return resume(self.learner.peers, batches)

    def fail_in_second(self):
        if self.learner.peers.rank == 1:
            raise ZeroDivisionError("of learner 1")
        self.learner.peers.gather(0)

    def die_in_first(self):
        if self.learner.peers.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.learner.peers.gather(0)


def learn_in(several, overrides, batches, prepare=None):
    return several.call_all(TrialLearner.learn, overrides, batches, prepare)


def assert_several_equal_one(several, overrides, batches, prepare=None):
    """Returns the metrics of the last update."""
    one = learn(ALONE, overrides, batches, prepare)
    two = learn_in(several, overrides, batches, prepare)
    for (metrics, gradient, weights), (others, other, theirs) in zip(one, two, strict=True):
        np.testing.assert_allclose(gradient, other, rtol=0, atol=1e-6)
        np.testing.assert_allclose(weights, theirs, rtol=0, atol=1e-6)
        assert metrics == pytest.approx(others, rel=1e-4, abs=1e-6, nan_ok=True)
    return two[-1][0]


def batches_of_different_sizes(num_updates=3):
    return [random_groups(3 + seed, 4, seed, vocab=300) for seed in range(num_updates)]


def equal_group(position, reward):
    return make_group(position, [make_trajectory([1, 2], [3, 4, 5], reward)] * 4)


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - {"distill"}))
def test_two_learners_equal_one_over_several_updates(pair, name):
    metrics = assert_several_equal_one(
        pair, (f"training.algorithm={name}",), batches_of_different_sizes()
    )
    assert metrics["train/grad_norm"] > 1e-3


@pytest.mark.parametrize(
    "terms",
    [
        ("loss_normalization=token",),
        ("loss_normalization=sequence",),
        ("loss_normalization=constant",),
        ("max_grad_norm=1e-3",),
        ("num_minibatches=2", "num_epochs=2"),
        ("kl_coeff=0.1", "entropy_coeff=0.01"),
        ("kl_coeff=0.1", "kl_placement=reward", "kl_estimator=k1"),
        ("algorithm=gspo", "num_epochs=2", "max_token_mismatch=20.0", "max_sequence_mismatch=9.0"),
        ("algorithm=cispo", "num_epochs=2", "clip_range=0.1", "importance_cap=2.0"),
        ("dynamic_sampling=true", "importance_cap=2.0", "weight_decay=0.1"),
    ],
    ids=" ".join,
)
def test_two_learners_equal_one_with_every_term(pair, terms):
    overrides = [f"training.{term}" for term in terms]
    batches = [[*groups, equal_group(9, 1)] for groups in batches_of_different_sizes()]
    assert_several_equal_one(pair, overrides, batches)


@pytest.mark.parametrize("name", ["grpo", "a2c"])
def test_two_learners_equal_one_where_all_weights_are_trained(pair, name):
    terms = (f"training.algorithm={name}", "training.kl_coeff=0.1", "lora.use_lora=false")
    metrics = assert_several_equal_one(pair, terms, batches_of_different_sizes())
    assert metrics["train/kl"] > 0


def test_shares_may_be_uneven_or_empty(pair):
    rng = np.random.default_rng(0)
    long = [make_trajectory([1] * 40, rng.integers(0, 300, 80), i % 2) for i in range(4)]
    short = [make_trajectory([1], [2 + i], i) for i in range(2)]
    void = make_group(2, [make_trajectory([1], [], 0), make_trajectory([1], [5], 1)])
    uneven = [make_group(0, long), make_group(1, short), void]
    one_counts = [equal_group(0, 1), make_group(1, long), equal_group(2, 0)]
    nothing = [equal_group(0, 1), equal_group(1, 0)]
    batches = [uneven, one_counts, nothing, uneven]
    metrics = assert_several_equal_one(pair, ("training.algorithm=grpo",), batches)
    assert metrics["train/num_skipped_updates"] == 1


def test_a_step_that_is_not_finite_in_one_share_is_skipped_by_both(pair):
    bad = [equal_group(0, 1), make_group(1, [make_trajectory([1], [2], float("nan"))] * 2)]
    batches = [random_groups(vocab=300), bad, random_groups(vocab=300)]
    metrics = assert_several_equal_one(pair, (), batches)
    assert metrics["train/num_skipped_updates"] == 1


def test_memory_that_one_learner_lacks_changes_nothing(pair):
    def lack(learner):
        def limit(module, args, kwargs):
            if learner.peers.rank == 1 and kwargs["input_ids"].numel() > 40:
                raise torch.OutOfMemoryError("out of memory")

        learner.policy.model.register_forward_pre_hook(limit, with_kwargs=True)

    batches = batches_of_different_sizes()
    plain = learn(ALONE, (), batches)
    found = learn_in(pair, (), batches, lack)
    assert np.abs(plain[-1][2] - found[-1][2]).max() <= 1e-6
    assert found[-1][0]["train/num_oom_retries"] > 0


def test_two_learners_imitate_what_one_does(pair):
    weights, losses = imitate(ALONE)
    others, theirs = pair.call_all(TrialLearner.imitate_anew)
    assert np.abs(weights - others).max() <= 1e-6
    assert losses == pytest.approx(theirs, rel=1e-5)


def test_two_learners_warm_start_as_one_does(pair):
    version, weights = warm_start(ALONE)
    other, theirs = pair.call_all(TrialLearner.warm_start_anew)
    assert version == other == 2
    assert np.abs(weights - theirs).max() <= 1e-6


def test_two_learners_are_repeatable_and_resume_to_the_bit(pair):
    batches = batches_of_different_sizes(2)
    metrics, _, weights = learn_in(pair, (), batches)[-1]
    assert learn_in(pair, (), batches)[-1][2].tobytes() == weights.tobytes()
    assert pair.call_all(TrialLearner.resume_anew, batches) == (metrics, weights.tobytes())


def test_dropout_differs_between_learners_and_follows_from_the_update(pair):
    overrides = ("training.algorithm=sft", "lora.dropout=0.5")
    groups = random_groups(vocab=300)
    weights = [learn_in(pair, overrides, [groups])[-1][2] for _ in range(2)]
    assert weights[0].tobytes() == weights[1].tobytes()
    assert np.abs(weights[0] - learn(ALONE, overrides, [groups])[-1][2]).max() > 1e-6


def test_learners_whose_weights_differ_are_an_error(pair):
    def drift(learner):
        with torch.no_grad():
            learner.policy.trainable_parameters()[3][0, 0] += 1e-7 * learner.peers.rank

    with pytest.raises(TrainingError, match="learner 1 has other weights than learner 0"):
        learn_in(pair, (), [random_groups(vocab=300)], drift)


def test_shares_are_balanced_and_keep_groups_whole():
    sizes = [5, 2, 4, 2]
    members = list_members(
        [make_group(i, [make_trajectory([1], [2] * (n - 1), 0)]) for i, n in enumerate(sizes)]
    )
    assert cut_into_shares(members, 2) == [[0, 3], [2, 1]]
    assert [len(share) for share in cut_into_shares(members, 5)] == [1, 1, 1, 1, 0]


def test_three_learners_equal_one_and_an_error_in_one_is_raised_while_two_wait(trio):
    assert_several_equal_one(trio, ("training.algorithm=ppo",), batches_of_different_sizes())
    start_s = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="of learner 1"):
        trio.call_all(TrialLearner.fail_in_second)
    assert time.monotonic() - start_s < 10


def test_a_killed_learner_is_one_clear_error_within_seconds(trio):
    start_s = time.monotonic()
    with pytest.raises(TrainingError, match=r"of the learners is gone|lost the other learners"):
        trio.call_all(TrialLearner.die_in_first)
    assert time.monotonic() - start_s < 10


def test_learners_that_cannot_be_placed_are_an_error_in_time():
    settings = make_settings(
        "learners.num_learners=3",
        "learners.num_cpus_per_learner=1.5",
        "fault_tolerance.placement_timeout_s=1",
    )
    with pytest.raises(PlacementError, match=r"could not place the learners .* 3 times 1.5 CPU"):
        LearnerGroup(settings)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("env_runners.num_env_runners=0",), "num_env_runners = 0"),
        (("training.num_groups=1",), "must be <= training.num_groups 1"),
        (("learners.num_gpus_per_learner=0.5",), "must be whole"),
    ],
)
def test_settings_that_several_learners_contradict_are_refused(overrides, message):
    with pytest.raises(SettingsError, match=message):
        make_settings("learners.num_learners=2", *overrides)
