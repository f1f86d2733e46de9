"""What an update does: steps, terms, cuts, faults, and learning itself."""

import io
from dataclasses import replace
from functools import partial, partialmethod

import numpy as np
import pytest
import torch
from learner_parts import (
    flat_weights,
    gradients,
    make_group,
    make_learner,
    make_policy,
    make_trajectory,
    random_groups,
)

from agentpeft.policies.errors import TrainingError
from agentpeft.policies.learning.algorithms import ALGORITHMS
from agentpeft.policies.learning.learner import compute_lr
from agentpeft.policies.learning.passes.micro_batches import CALM_UPDATES
from agentpeft.policies.learning.passes.model_runner import ModelRunner

TERMS = {"kl_coeff": 0.1, "entropy_coeff": 0.01, "max_grad_norm": 1e9}
every_normalization = pytest.mark.parametrize("algorithm", ["grpo", "raft", "dr_grpo"])


@every_normalization
@pytest.mark.parametrize("learners", [{"max_tokens_per_micro_batch": n} for n in (30, 1)])
def test_cutting_into_micro_batches_changes_nothing(algorithm, learners):
    terms = {**TERMS, "algorithm": algorithm}
    whole, cut = (
        gradients(make_learner(make_policy(nonzero=True), part, **terms), random_groups())
        for part in ({}, learners)
    )
    assert torch.allclose(whole, cut, rtol=1e-5, atol=1e-6)
    assert whole.abs().max() > 1e-4


def test_cutting_keeps_the_ratios_of_whole_sequences():
    terms = {"algorithm": "gspo", "num_epochs": 3, "lr": 1e-2, "clip_range": 0.5}
    whole, cut = (
        gradients(make_learner(make_policy(nonzero=True), part, **terms), random_groups())
        for part in ({}, {"max_tokens_per_micro_batch": 30})
    )
    assert torch.allclose(whole, cut, rtol=1e-4, atol=1e-5)
    assert whole.abs().max() > 1e-3


def test_skipping_episodes_without_advantage_changes_nothing():
    groups = random_groups()
    groups[1] = make_group(1, [make_trajectory([1, 2], [3, 4], 1)] * 3)
    skipping = gradients(make_learner(make_policy(nonzero=True), max_grad_norm=1e9), groups)
    terms = {"max_grad_norm": 1e9, "entropy_coeff": 1e-12}
    full = gradients(make_learner(make_policy(nonzero=True), **terms), groups)
    assert torch.allclose(skipping, full, atol=1e-7)


def test_at_the_start_the_ratio_is_1_and_the_kl_is_0():
    metrics = make_learner(kl_coeff=0.1, num_epochs=1).update(random_groups())
    assert metrics["train/clip_fraction"] == 0
    assert metrics["train/kl"] == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - {"distill", "sft"}))
def test_each_algorithm_learns_the_rewarded_answer(name):
    learner = make_learner(algorithm=name, lr=2e-2)
    rng, before = np.random.default_rng(0), probability_of_5(learner)
    for _ in range(20):
        p = probability_of_5(learner)
        answers = [[int(a)] for a in np.where(rng.random((4, 8)) < p, 5, 6).ravel()]
        episodes = [make_trajectory([1, 2, 3], a, a == [5]) for a in answers]
        learner.update([make_group(i, episodes[8 * i : 8 * i + 8]) for i in range(4)])
    assert probability_of_5(learner) > max(0.9, before)


def probability_of_5(learner):
    """Of the two possible answers, 5 and 6, after the prompt."""
    logits = learner.policy.model(input_ids=torch.tensor([[1, 2, 3]])).logits[0, -1]
    return logits[[5, 6]].softmax(-1)[0].item()


@pytest.mark.parametrize("name", ["sft", "grpo"])
def test_supervised_steps_imitate_the_oracle(name):
    learner = make_learner(algorithm=name, lr=2e-2)
    group = make_group(0, [make_trajectory([1, 2, 3], [5, 7], 1)])
    step = learner.update if name == "sft" else learner.sft_update
    losses = [step([group])["train/policy_loss"] for _ in range(30)]
    assert losses[-1] < losses[0] - 0.2
    assert learner.version == 30


def test_a_resumed_learner_equals_an_uninterrupted_one_to_the_bit():
    terms = {"algorithm": "ppo", "num_minibatches": 2, "lr_schedule": "cosine"}
    learner = make_learner(**terms)
    learner.update(random_groups())
    weights, state = learner.policy.adapter_weights(), learner.state_dict()
    resumed = make_learner(**terms)
    resumed.policy.load_weights(weights)
    resumed.load_state_dict(torch.load(save(state), weights_only=False))
    for one in (learner, resumed):
        one.update(random_groups(seed=1))
    assert flat_weights(learner).tobytes() == flat_weights(resumed).tobytes()
    assert (resumed.version, resumed.baseline) == (learner.version, learner.baseline)


def test_a_step_is_adam_s_without_weight_decay():
    learner = make_learner(lr=1e-2)
    parameter = learner.policy.trainable_parameters()[0]
    mean, square, weight = 0.0, 0.0, parameter.detach().double().clone()
    for step, seed in enumerate((0, 1), 1):
        learner.update(random_groups(seed=seed))
        gradient = parameter.grad.double()
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        divisor = (square / (1 - 0.999**step)).sqrt() + 1e-8
        weight -= 1e-2 * mean / (1 - 0.9**step) / divisor
        assert torch.allclose(parameter.double(), weight, atol=1e-6)


def save(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return buffer


def test_steps_that_are_not_finite_are_skipped_counted_and_then_stop_the_run():
    learner = make_learner()
    before = flat_weights(learner)
    bad = [make_group(0, [make_trajectory([1], [2, 3], r) for r in (0, float("nan"))])]
    for number in range(1, 6):
        assert learner.update(bad)["train/num_skipped_updates"] == number
    with pytest.raises(TrainingError, match="6 steps in a row had no finite gradient"):
        learner.update(bad)
    assert flat_weights(learner).tobytes() == before.tobytes()


@pytest.mark.parametrize("vocab", [20, 5000])
def test_the_entropy_is_a_metric_whatever_the_vocabulary(vocab):
    learner = make_learner(make_policy(vocab=vocab))
    entropy = learner.update(random_groups(vocab=vocab))["train/entropy"]
    assert 0 < entropy < np.log(vocab)


def numpy_fails():
    np.empty(1 << 50)


def torch_fails():
    torch.empty(1 << 50)


def raises(error):
    def fail():
        raise error

    return fail


@pytest.mark.parametrize(
    "fail",
    [
        torch_fails,
        numpy_fails,
        raises(torch.OutOfMemoryError("out of memory")),
        raises(RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried")),
        raises(RuntimeError("std::bad_alloc")),
        raises(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")),
    ],
)
def test_out_of_memory_halves_the_micro_batches_and_changes_nothing(fail):
    learner = make_learner(make_policy(nonzero=True), max_grad_norm=1e9)

    def limit(module, args, kwargs):
        if kwargs["input_ids"].numel() > 40:
            fail()

    other = make_learner(make_policy(nonzero=True), max_grad_norm=1e9)
    expected = gradients(other, random_groups())
    learner.policy.model.register_forward_pre_hook(limit, with_kwargs=True)
    assert torch.allclose(gradients(learner, random_groups()), expected, atol=1e-6)
    assert learner.update(random_groups())["train/num_oom_retries"] > 0


def test_another_error_than_of_memory_is_raised():
    learner = make_learner()
    fail = raises(RuntimeError("shapes do not fit"))
    learner.policy.model.register_forward_pre_hook(lambda *_: fail())
    with pytest.raises(RuntimeError, match="do not fit"):
        learner.update(random_groups())


def test_micro_batches_grow_again_once_memory_has_sufficed_for_a_while():
    learner = make_learner(learners={"max_tokens_per_micro_batch": 1024})
    runner, is_short = learner._runner, [True]

    def limit(module, args, kwargs):
        if is_short[0] and kwargs["input_ids"].numel() > 40:
            raise torch.OutOfMemoryError("out of memory")

    learner.policy.model.register_forward_pre_hook(limit, with_kwargs=True)
    learner.update(random_groups())
    smallest, is_short[0] = runner.size.max_tokens, False
    assert smallest < 128
    sizes = []
    for _ in range(2 * CALM_UPDATES):
        learner.update(random_groups(num_groups=1, size=2))
        sizes.append(runner.size.max_tokens)
    calm = CALM_UPDATES - 1
    assert sizes == [smallest] * calm + [2 * smallest] * CALM_UPDATES + [4 * smallest]
    state = learner.state_dict()
    other = make_learner(learners={"max_tokens_per_micro_batch": 2 * smallest})
    other.load_state_dict(state)
    assert other._runner.size.max_tokens == 2 * smallest


@pytest.mark.parametrize("dynamic_sampling", [True, False])
def test_groups_without_spread_teach_nothing(dynamic_sampling):
    learner = make_learner(dynamic_sampling=dynamic_sampling)
    before = flat_weights(learner)
    metrics = learner.update([make_group(0, [make_trajectory([1], [2], 1)] * 2)])
    assert metrics["train/num_dropped_groups"] == dynamic_sampling
    assert metrics["train/num_skipped_updates"] == 1
    assert flat_weights(learner).tobytes() == before.tobytes()
    assert (learner.version, learner.adapter().version) == (1, 1)


def test_the_baseline_moves_by_its_momentum():
    learner = make_learner(algorithm="reinforce")
    group = [make_group(0, [make_trajectory([1], [2], r) for r in (0, 1)])]
    assert learner.update(group)["train/baseline"] == 0.5
    rich = [make_group(0, [make_trajectory([1], [2], 1)] * 2)]
    assert learner.update(rich)["train/baseline"] == pytest.approx(0.9 * 0.5 + 0.1 * 1)


def test_mismatch_is_between_the_engines_and_the_learners_logprobs():
    policy = make_policy(nonzero=True)
    trajectories = [make_trajectory([1, 2], [a], a == 3) for a in (3, 4)]
    logprobs = policy.model(torch.tensor([[1, 2]])).logits[0, -1].log_softmax(-1).tolist()
    deltas = [abs(logprobs[a] + 1) for a in (3, 4)]
    metrics = make_learner(policy).update([make_group(0, trajectories)])
    assert metrics["train/mismatch_mean"] == pytest.approx(np.mean(deltas), abs=1e-5)
    assert metrics["train/mismatch_max"] == pytest.approx(max(deltas), abs=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_gradient_checkpointing_gives_the_same_gradients_whatever_dropout_a_base_has(dropout):
    plain = gradients(make_learner(make_policy(nonzero=True)), random_groups())
    policy = make_policy(nonzero=True, checkpointing=True, dropout=dropout)
    saved = gradients(make_learner(policy, {"gradient_checkpointing": True}), random_groups())
    assert torch.allclose(plain, saved, atol=1e-5)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [0.5, 1, 1, 1]), ("linear", [0.5, 1, 1, 0.5]), ("cosine", [0.5, 1, 1, 0.5])],
)
def test_the_learning_rate_warms_up_and_then_follows_its_schedule(schedule, expected):
    terms = {"num_warmup_iterations": 2, "num_iterations": 4, "lr": 1.0, "lr_schedule": schedule}
    training = make_learner(**terms).settings.training
    assert [compute_lr(training, i) for i in range(4)] == pytest.approx(expected)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS.keys() - {"a2c", "distill", "sft"}))
def test_samples_of_older_adapters_are_weighed_by_their_ratio_unless_told_otherwise(algorithm):
    groups = random_groups()
    own = {"algorithm": algorithm, "num_epochs": 1}
    lagging = make_learner(max_adapter_lag=1, **own)
    capped, other = make_learner(importance_cap=2.0, **own), make_learner(**own)
    weight = lagging.update(groups)["train/importance_weight"]
    assert capped.update(groups)["train/importance_weight"] == weight != 1.0
    assert "train/importance_weight" not in other.update(groups)
    after = [learner.adapter().sha256 for learner in (lagging, capped, other)]
    assert after[0] == after[1] != after[2]


def test_of_fewer_groups_than_minibatches_there_is_a_step_for_each():
    steps = []
    for num_minibatches in (4, 9):
        learner = make_learner(num_minibatches=num_minibatches)
        learner.update(random_groups())  # four groups
        steps.append(learner.policy.adapter_weights())
    assert all((steps[0][name] == steps[1][name]).all() for name in steps[0])


@pytest.mark.parametrize("num_epochs", [1, 2])
@pytest.mark.parametrize("more", [{}, {"kl_coeff": 0.1}, {"entropy_coeff": 0.1}])
def test_only_what_can_learn_and_whose_weights_change_before_is_scored(
    monkeypatch, more, num_epochs
):
    groups = random_groups()
    equal = [replace(t, turn_rewards=(0.0,) * len(t.turn_rewards)) for t in groups[1].trajectories]
    groups[1] = replace(groups[1], trajectories=tuple(equal))
    calls = {"score": [], "accumulate": []}

    def note(name, method, runner, samples, *rest, **options):
        calls[name].append({sample.group for sample in samples})
        return method(runner, samples, *rest, **options)

    for name in calls:
        noting = partialmethod(partial(note, name, getattr(ModelRunner, name)))
        monkeypatch.setattr(ModelRunner, name, noting)
    make_learner(num_minibatches=2, num_epochs=num_epochs, **more).update(groups)
    learnt = {0, 1, 2, 3} if more else {0, 2, 3}
    of_reference = [{0, 1, 2, 3}] if "kl_coeff" in more else []
    old = learnt - calls["accumulate"][0] if num_epochs == 1 else learnt
    assert calls["score"] == [*of_reference, old] and set.union(*calls["accumulate"]) == learnt


@pytest.mark.parametrize("num_passes", [1, 2, 3, 4])
def test_an_update_that_is_interrupted_anywhere_can_be_rolled_back(num_passes):
    """Of two steps of two micro-batches or more: in the first pass, between, and in the last."""
    terms = {"num_minibatches": 2, "lr": 1e-2}
    learners = {"max_tokens_per_micro_batch": 30}
    whole, other = (make_learner(make_policy(), learners, **terms) for _ in range(2))
    batches = [random_groups(seed=seed) for seed in range(3)]
    for learner in (whole, other):
        learner.update(batches[0])
    num_left = num_passes

    def interrupt(parameter):
        nonlocal num_left
        num_left -= 1
        if num_left == 0:
            raise KeyboardInterrupt

    hook = other.policy.trainable_parameters()[-1].register_post_accumulate_grad_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        other.update(batches[1])
    hook.remove()
    assert other.roll_back(1) and other.version == 1
    for learner in (whole, other):
        learner.update(batches[2])
    assert (flat_weights(whole) == flat_weights(other)).all()


def test_of_all_weights_an_update_that_has_begun_cannot_be_undone():
    learner = make_learner(make_policy(rank=0))
    learner.settings = learner.settings.model_copy(
        update={"lora": learner.settings.lora.model_copy(update={"rank": 0})}
    )
    learner.update(random_groups())
    assert learner.roll_back(1) and not learner.roll_back(0)
    learner.abandon()
    with pytest.raises(TrainingError, match="given up"):
        learner.update(random_groups())
    assert not learner.roll_back(1)
