"""Learners that hold a frozen base in shares, against one that holds it whole."""

import sys
import time

import numpy as np
import pytest
import ray.cloudpickle
import torch
from learner_parts import act, make_group, make_policy, make_trajectory, random_groups
from torch.distributed.tensor import DTensor
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
    make_anew,
    make_settings,
    warm_start,
)

from agentpeft.envs import SettingsError
from agentpeft.policies.errors import TrainingError
from agentpeft.policies.learning.passes.sharded_base import ShardedBase
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides
from agentpeft.policies.workers.learner_group import LearnerActor, LearnerGroup

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster(num_cpus=3),
    pytest.mark.usefixtures("cluster"),
]
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it

TWO = ("learners.num_learners=2", "learners.shard_base=true")
THREE = ("learners.num_learners=3", "learners.shard_base=true")
DEEP = ("tiny.num_layers=3",)
LAYERS = ("layers.0.mlp", "layers.1.mlp", "layers.2.mlp")


def count_bytes(learner):
    """Returns what a learner holds of the layers' frozen weights, and what all hold of them."""
    layers = learner.policy.base.model.base_model.layers
    frozen = [p for name, p in layers.named_parameters() if ".lora_" not in name]
    held = sum((p.to_local() if isinstance(p, DTensor) else p).nbytes for p in frozen)
    return held, sum(p.numel() * p.element_size() for p in frozen)


def run_all(learner, batch):
    """Returns what learners do between updates: an adapter with its proof, records, files."""
    actor = act(learner)
    learner.update(batch)
    _, _, probe = actor.pack()
    scores = [logprobs for _, _, logprobs in learner.score_extremes()]
    return probe, scores, sorted(actor.to_files())


class ShardedTrialLearner(TrialLearner):
    """Also tells what it holds, and does what learners do between updates."""

    def count_all_bytes(self, overrides):
        learner = make_anew(self.learner.peers, overrides)
        return self.learner.peers.gather(count_bytes(learner))

    def run_all_anew(self, overrides, batch):
        return run_all(make_anew(self.learner.peers, overrides), batch)

    def has_learner_on_sharded_base(self):
        return count_bytes(self.learner)

    def shard_nothing(self):
        policy = make_policy()
        policy.base.model._no_split_modules = None
        ShardedBase(policy, self.learner.peers, torch.device("cpu"))


@pytest.fixture(scope="module")
def pair(cluster):
    group = LearnerGroup(make_settings(*TWO), ShardedTrialLearner)
    yield group
    group.close()


@pytest.fixture
def trio(cluster):
    group = LearnerGroup(make_settings(*THREE), ShardedTrialLearner)
    group.call_all(ShardedTrialLearner.ping)  # tests count seconds, without those of its start
    yield group
    group.close()


@pytest.mark.parametrize(
    "terms",
    [
        ("training.algorithm=grpo",),
        ("training.algorithm=grpo", "learners.gradient_checkpointing=true"),
        ("training.algorithm=grpo", "learners.max_tokens_per_micro_batch=1"),
        ("training.algorithm=grpo", "training.num_minibatches=2", "training.num_epochs=2"),
        ("training.algorithm=gspo", "training.kl_coeff=0.1", "training.entropy_coeff=0.01"),
        ("training.algorithm=rloo", "training.kl_coeff=0.1"),
        ("training.algorithm=ppo", "training.critic=shared", "training.kl_coeff=0.1"),
        ("training.algorithm=ppo", "training.critic=separate"),
        ("training.algorithm=sft",),
        ("training.algorithm=grpo", "training.teacher=tiny", "model.dtype=float32"),
    ],
    ids=" ".join,
)
def test_two_learners_with_a_sharded_base_equal_one_with_a_whole_base(pair, terms):
    metrics = assert_several_equal_one(pair, terms, batches_of_different_sizes(), sharing=TWO)
    assert metrics["train/grad_norm"] > 1e-3


def test_three_learners_with_a_sharded_base_equal_one_and_each_holds_a_third(trio):
    overrides = ("training.algorithm=ppo", "training.critic=separate", "training.kl_coeff=0.1")
    assert_several_equal_one(trio, overrides, batches_of_different_sizes(), sharing=THREE)
    held = trio.call_all(ShardedTrialLearner.count_all_bytes, THREE)
    whole = count_bytes(make_anew(ALONE, ()))[0]
    assert sum(part for part, _ in held) == whole
    assert max(part for part, _ in held) <= 1.04 * whole / 3  # 32 rows: 11, 11, 10


def test_each_of_two_learners_holds_half_of_the_layers(pair):
    whole = count_bytes(make_anew(ALONE, ()))[0]
    assert pair.call_all(ShardedTrialLearner.count_all_bytes, TWO) == [(whole / 2, whole)] * 2
    assert pair.call(ShardedTrialLearner.has_learner_on_sharded_base) == (whole / 2, whole)


def test_shares_of_a_sharded_base_may_be_uneven_or_empty(pair):
    rng = np.random.default_rng(0)
    long = [make_trajectory([1] * 40, rng.integers(0, 300, 80), i % 2) for i in range(4)]
    short = [make_trajectory([1], [2 + i], i) for i in range(2)]
    uneven = [make_group(0, long), make_group(1, short)]
    one_counts = [equal_group(0, 1), make_group(1, long), equal_group(2, 0)]
    nothing = [equal_group(0, 1), equal_group(1, 0)]
    overrides = ("learners.max_tokens_per_micro_batch=70",)  # three micro-batches, none, one
    batches = [uneven, one_counts, nothing, uneven]
    metrics = assert_several_equal_one(pair, overrides, batches, sharing=TWO)
    assert metrics["train/num_skipped_updates"] == 1


def run_out(*_):
    raise torch.OutOfMemoryError("out of memory")


def lack_memory(direction, place, num_tokens=40):
    """Returns what has learner 1 run out of memory at more tokens than that, in a module."""

    def forward(module, args, output):
        if output.shape[:-1].numel() > num_tokens:
            run_out()

    def backward(module, args, output):
        if output.shape[:-1].numel() > num_tokens and output.requires_grad:
            output.register_hook(run_out)

    def prepare(learner):
        if learner.peers.rank == 1:
            module = learner.policy.base.model.base_model.get_submodule(place)
            module.register_forward_hook(forward if direction == "forward" else backward)

    return prepare


@pytest.mark.parametrize(
    ("direction", "place"),
    [
        *[("forward", name) for name in ("embed_tokens", *LAYERS, "norm")],
        *[("backward", name) for name in ("norm", *reversed(LAYERS))],
    ],
)
@pytest.mark.parametrize(
    "terms",
    [
        pytest.param((), marks=pytest.mark.long),
        ("learners.gradient_checkpointing=true", "training.kl_coeff=0.1"),
    ],
    ids=len,
)
def test_memory_that_one_learner_lacks_halves_the_micro_batches_of_all(
    pair, direction, place, terms
):
    batches = [random_groups(6, 4, seed, vocab=300) for seed in range(2)]
    overrides = (*terms, *DEEP, "learners.max_tokens_per_micro_batch=128")
    plain = learn(ALONE, overrides, batches)
    halved = learn_in(pair, (*overrides, *TWO), batches, lack_memory(direction, place))
    assert np.abs(plain[-1][2] - halved[-1][2]).max() <= ROUNDING
    assert halved[-1][0]["train/num_oom_retries"] == 2  # 128, 64, 32; then it has learnt it


def test_memory_that_never_suffices_is_one_error_in_all_learners(pair):
    with pytest.raises(MemoryError, match="out of memory"):
        learn_in(pair, TWO, [random_groups(vocab=300)], lack_memory("forward", "layers.0", 1))
    assert_several_equal_one(pair, (), batches_of_different_sizes(1), sharing=TWO)


@pytest.mark.long
def test_memory_for_less_than_a_layer_and_a_token_ends_the_run(trio):
    lack = lack_memory("forward", "layers.1", 0)
    with pytest.raises(TrainingError, match="too little memory for one layer of the sharded base"):
        learn_in(trio, THREE, [random_groups(vocab=300)], lack)


def test_a_sharded_base_imitates_and_warm_starts_as_a_whole_one_does(pair):
    weights, losses = imitate(ALONE)
    others, theirs = pair.call_all(TrialLearner.imitate_anew, TWO)
    assert np.abs(weights - others).max() <= ROUNDING
    assert losses == pytest.approx(theirs, rel=1e-5)
    version, weights = warm_start(ALONE)
    other, theirs = pair.call_all(TrialLearner.warm_start_anew, TWO)
    assert version == other == 2
    assert np.abs(weights - theirs).max() <= ROUNDING


def test_learners_with_a_sharded_base_are_repeatable_and_resume_to_the_bit(pair):
    batches = batches_of_different_sizes(2)
    metrics, _, weights = learn_in(pair, TWO, batches)[-1]
    assert learn_in(pair, TWO, batches)[-1][2].tobytes() == weights.tobytes()
    resumed = pair.call_all(TrialLearner.resume_anew, batches, TWO)
    assert resumed == (metrics, weights.tobytes())


def test_between_updates_all_take_part_and_say_what_one_does(pair):
    batch = random_groups(vocab=300)
    probe, scores, files = run_all(make_anew(ALONE, ()), batch)
    other, theirs, others = pair.call_all(ShardedTrialLearner.run_all_anew, TWO, batch)
    np.testing.assert_allclose(probe.logprobs, other.logprobs, rtol=0, atol=1e-5)
    np.testing.assert_allclose(probe.base_logprobs, other.base_logprobs, rtol=0, atol=1e-5)
    assert np.abs(probe.logprobs - probe.base_logprobs).max() > 1e-3
    for one, another in zip(scores, theirs, strict=True):
        np.testing.assert_allclose(one, another, rtol=0, atol=1e-5)
    assert files == others


def test_a_group_of_learners_delivers_and_records_with_all_of_them(pair):
    shipment = pair.pack_adapter()
    assert shipment.receipt.version == 0
    assert len(shipment.probe.logprobs) == len(shipment.probe.base_logprobs) > 0
    assert pair.call_all(LearnerActor.read_token_records) == []


def test_a_model_that_does_not_name_its_layers_is_refused(pair):
    with pytest.raises(SettingsError, match="Qwen2ForCausalLM does not name its layers"):
        pair.call_all(ShardedTrialLearner.shard_nothing)


@pytest.mark.long
def test_a_killed_learner_of_a_sharded_base_is_one_clear_error_within_seconds(trio):
    start_s = time.monotonic()
    with pytest.raises(TrainingError, match=r"of the learners is gone|lost the other learners"):
        trio.call_all(TrialLearner.die_in_first)
    assert time.monotonic() - start_s < 10


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("learners.num_learners=1",), "learners.num_learners must be >= 2, got 1"),
        (("lora.rank=0",), "trains all weights: set it to false"),
        (("model.name=a/b", "model.dtype=nf4"), "set model.dtype to 'bfloat16'"),
    ],
)
def test_settings_that_a_sharded_base_contradicts_are_refused(overrides, message):
    with pytest.raises(SettingsError, match=message):
        Settings(**with_overrides({}, [*TWO, *overrides]))
