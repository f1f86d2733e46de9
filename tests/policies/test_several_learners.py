"""Two learners against one: the same steps from the same batch, however it is shared.

The two are Ray actors of one process group, started once; each test makes new learners in them.
"""

import sys
import time

import numpy as np
import pytest
import ray.cloudpickle
import torch
from learner_parts import make_group, make_trajectory, random_groups
from trial_learners import (
    ALONE,
    ROUNDING,
    TrialLearner,
    assert_several_equal_one,
    batches_of_different_sizes,
    equal_group,
    imitate,
    learn,
    learn_in,
    make_settings,
    warm_start,
)

from agentpeft.envs import SettingsError
from agentpeft.policies.errors import PlacementError, TrainingError
from agentpeft.policies.learning.algorithms import ALGORITHMS
from agentpeft.policies.learning.samples import list_samples
from agentpeft.policies.learning.several_learners import cut_into_shares
from agentpeft.policies.workers.learner_group import LearnerGroup

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster(num_cpus=3),
    pytest.mark.usefixtures("cluster"),
]
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it


@pytest.fixture(scope="module")
def pair(cluster):
    group = LearnerGroup(make_settings("learners.num_learners=2"), TrialLearner)
    yield group
    group.close()


@pytest.fixture
def trio(cluster):
    group = LearnerGroup(make_settings("learners.num_learners=3"), TrialLearner)
    group.call_all(TrialLearner.ping)  # tests count seconds, without those of its start
    yield group
    group.close()


@pytest.mark.parametrize(
    "name",
    [
        *("grpo", "ppo", "sft"),
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in sorted(ALGORITHMS.keys() - {"distill", "grpo", "ppo", "sft"})
        ),
    ],
)
def test_two_learners_equal_one_over_several_updates(pair, name):
    metrics = assert_several_equal_one(
        pair, (f"training.algorithm={name}",), batches_of_different_sizes()
    )
    assert metrics["train/grad_norm"] > 1e-3


@pytest.mark.parametrize(
    "terms",
    [
        ("max_grad_norm=1e-3",),
        ("num_minibatches=2", "num_epochs=2"),
        ("kl_coeff=0.1", "entropy_coeff=0.01"),
        ("algorithm=gspo", "num_epochs=2"),
        ("algorithm=cispo", "num_epochs=2", "clip_range=0.1", "importance_cap=2.0"),
        ("dynamic_sampling=true", "importance_cap=2.0"),
    ],
    ids=" ".join,
)
def test_two_learners_equal_one_with_every_term(pair, terms):
    overrides = [f"training.{term}" for term in terms]
    batches = [[*groups, equal_group(9, 1)] for groups in batches_of_different_sizes()]
    assert_several_equal_one(pair, overrides, batches)


@pytest.mark.parametrize("name", ["grpo", "a2c"])
def test_two_learners_equal_one_where_all_weights_are_trained(pair, name):
    terms = (f"training.algorithm={name}", "training.kl_coeff=0.1", "lora.rank=0")
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
    assert np.abs(plain[-1][2] - found[-1][2]).max() <= ROUNDING
    assert found[-1][0]["train/num_oom_retries"] > 0


def test_two_learners_imitate_what_one_does(pair):
    weights, losses = imitate(ALONE)
    others, theirs = pair.call_all(TrialLearner.imitate_anew)
    assert np.abs(weights - others).max() <= ROUNDING
    assert losses == pytest.approx(theirs, rel=1e-5)


def test_two_learners_warm_start_as_one_does(pair):
    version, weights = warm_start(ALONE)
    other, theirs = pair.call_all(TrialLearner.warm_start_anew)
    assert version == other == 2
    assert np.abs(weights - theirs).max() <= ROUNDING


def test_two_learners_are_repeatable_and_resume_to_the_bit(pair):
    batches = batches_of_different_sizes(2)
    metrics, _, weights = learn_in(pair, (), batches)[-1]
    assert learn_in(pair, (), batches)[-1][2].tobytes() == weights.tobytes()
    assert pair.call_all(TrialLearner.resume_anew, batches) == (metrics, weights.tobytes())


def test_learners_whose_weights_differ_are_an_error(pair):
    def drift(learner):
        with torch.no_grad():
            learner.policy.trainable_parameters()[3][0, 0] += 1e-7 * learner.peers.rank

    with pytest.raises(TrainingError, match="learner 1 has other weights than learner 0"):
        learn_in(pair, (), [random_groups(vocab=300)], drift)


def test_shares_are_balanced_and_keep_groups_whole():
    sizes = [5, 2, 4, 2]
    samples = list_samples(
        [make_group(i, [make_trajectory([1], [2] * (n - 1), 0)]) for i, n in enumerate(sizes)]
    )
    assert cut_into_shares(samples, 2) == [[0, 3], [2, 1]]
    assert [len(share) for share in cut_into_shares(samples, 5)] == [1, 1, 1, 1, 0]


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
        "num_cpus_per_process=1.5",
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
