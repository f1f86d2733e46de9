"""RL on all weights: what it learns, its reference, its checkpoints, and what engines serve."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from learner_parts import (
    gradients,
    make_group,
    make_learner,
    make_policy,
    make_trajectory,
    random_groups,
)
from small_model import ONE_PROCESS, SMALL
from transformers import AutoModelForCausalLM

from agentpeft.envs import SettingsError
from agentpeft.policies.delivery.deliver import send_and_prove
from agentpeft.policies.learning.algorithms import ALGORITHMS
from agentpeft.policies.loop.resuming import restore_learner
from agentpeft.policies.models.load import load_base
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.models.policy_base import FINGERPRINT_KEY, compute_fingerprint
from agentpeft.policies.settings.config import LoraSettings, Settings
from agentpeft.policies.settings.toml import with_overrides
from agentpeft.policies.workers.learner_group import LearnerActor, LearnerGroup
from agentpeft.policies.workers.runner_group import EnvRunnerGroup

TINY = (
    *ONE_PROCESS,
    "lora.rank=0",
    "training.num_groups=2",
    "training.group_size=4",
    "training.lr=3e-3",
    "evaluation.num_tasks=3",
    "deterministic=true",
)
SPREAD = "environment.kwargs.reward={length_cost=0.1}"
"""Rewards that differ though a random model is never right."""


def full_learner(**training):
    return make_learner(make_policy(rank=0), **training)


def logprobs_of(model, trajectory):
    """Of the sampled tokens, by one plain forward pass."""
    ids = torch.tensor(np.concatenate([trajectory.prompt_ids, trajectory.token_ids]))[None]
    rows = torch.arange(len(trajectory.prompt_ids), ids.shape[1])[trajectory.loss_mask]
    return model(input_ids=ids).logits[0].log_softmax(-1)[rows - 1, ids[0, rows]]


@pytest.mark.parametrize("kl_coeff", [0.0, 0.3])
def test_the_gradient_is_that_of_grpo_with_its_kl_term(kl_coeff):
    """At the second update the ratio is 1 and the policy has left its reference."""
    groups, terms = random_groups(seed=1), {"kl_coeff": kl_coeff, "max_grad_norm": 1e9}
    learner = full_learner(lr=1e-2, **terms)
    base = copy.deepcopy(learner.policy.model)
    learner.update(random_groups())
    model = copy.deepcopy(learner.policy.model)
    found = gradients(learner, groups)

    num_tokens = sum(int(t.loss_mask.sum()) for group in groups for t in group.trajectories)
    for group in groups:
        returns = np.array([t.episode_return for t in group.trajectories])
        advantages = (returns - returns.mean()) / (returns.std(ddof=1) + 1e-4)
        for trajectory, advantage in zip(group.trajectories, advantages, strict=True):
            logprobs = logprobs_of(model, trajectory)
            apart = logprobs_of(base, trajectory).detach() - logprobs
            loss = -advantage * logprobs + kl_coeff * (apart.exp() - 1 - apart)
            (loss.sum() / num_tokens).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert expected.norm() > 0.1
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - {"distill", "sft"}))
def test_each_algorithm_learns_the_rewarded_answer(name):
    learner, rng = full_learner(algorithm=name, lr=5e-3), np.random.default_rng(0)
    for _ in range(20):
        answers = np.where(rng.random((4, 8)) < probability_of_5(learner), 5, 6)
        episodes = [[make_trajectory([1, 2, 3], [a], a == 5) for a in row] for row in answers]
        learner.update([make_group(number, group) for number, group in enumerate(episodes)])
    assert probability_of_5(learner) > 0.9


def probability_of_5(learner):
    """Of the two possible answers, 5 and 6, after the prompt."""
    logits = learner.policy.model(input_ids=torch.tensor([[1, 2, 3]])).logits[0, -1]
    return logits[[5, 6]].softmax(-1)[0].item()


def test_the_reference_is_the_base_and_leaves_the_trained_weights_as_they_were():
    policy, ids = make_policy(rank=0), torch.arange(12)[None]
    base = copy.deepcopy(policy.model)
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.add_(0.1)
    trained = policy.adapter_weights()
    with pytest.raises(ZeroDivisionError), policy.reference():
        assert not torch.is_grad_enabled()
        assert torch.equal(policy.model(ids).logits, base(ids).logits)
        raise ZeroDivisionError
    assert torch.is_grad_enabled()
    assert all(np.array_equal(w, trained[n]) for n, w in policy.adapter_weights().items())


def test_a_bfloat16_base_is_trained_in_float32_and_served_in_bfloat16():
    settings = Settings(**with_overrides({}, (*TINY, "model.dtype=bfloat16")))
    policy, base = (attach_lora(load_base(settings), settings.lora) for _ in range(2))
    assert {parameter.dtype for parameter in policy.trainable_parameters()} == {torch.float32}
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.add_(1e-5)
    with policy.reference():
        reference = policy.adapter_weights()
    for name, weight in base.adapter_weights().items():
        assert np.array_equal(reference[name], weight)
        assert not np.array_equal(policy.adapter_weights()[name], weight)


class Steps(LearnerActor):
    """Learns from groups that a test makes."""

    def learn_from(self, groups):
        self.learner.update(groups)


def test_in_one_process_a_learner_leaves_the_engines_weights_alone():
    """With the base in the cache's files and learner, engine and driver in one process."""
    settings = Settings(**with_overrides({}, TINY))
    learner, runners = LearnerGroup(settings, Steps), EnvRunnerGroup(settings)
    first = learner.pack_adapter()
    proofs = [send_and_prove(first, runners)]
    groups = random_groups(vocab=300)
    learner.call(Steps.learn_from, groups)
    sent = {name: weight.copy() for name, weight in first.adapter.weights.items()}
    second = learner.pack_adapter()
    # The old version is delivered again: had the step reached the engine, it could not prove it
    proofs.append(send_and_prove(first, runners))
    proofs.append(send_and_prove(second, runners))
    learner.call(Steps.learn_from, groups)
    assert all(np.array_equal(first.adapter.weights[n], w) for n, w in sent.items())
    assert [proof["probe_max"] < 1e-5 for proof in proofs] == [True] * 3
    assert proofs[1] == proofs[0] and proofs[2]["canary"] == pytest.approx(1, abs=0.01)
    for group in (runners, learner):
        group.close()


def without_times(metrics):
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


def files_of(checkpoint):
    return {file.name: file.read_bytes() for file in (checkpoint / "adapter").iterdir()}


@pytest.mark.parametrize(
    "terms",
    [
        ("training.algorithm=grpo", "training.kl_coeff=0.1"),
        ("training.algorithm=a2c", "training.kl_coeff=0.1"),
    ],
    ids=lambda terms: terms[0],
)
def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(build, terms):
    """Its reference is the base again, not the weights that the checkpoint holds."""
    whole = build("whole", SPREAD, *terms)
    rows = [without_times(whole.train()) for _ in range(4)]
    first = build("cut", SPREAD, *terms)
    for _ in range(2):
        first.train()
    saved = first.save_to_path()
    first.train()
    first.stop()
    second = build("cut", SPREAD, *terms)
    second.restore_from_path(saved)
    assert [without_times(second.train()) for _ in range(2)] == rows[2:]
    assert rows[3]["train/kl"] > 0
    files = files_of(second.save_to_path())
    assert files == files_of(whole.save_to_path()) and "model.safetensors" in files


def test_a_checkpoint_is_a_model_of_its_own_and_has_its_own_fingerprint(build, tmp_path):
    run = build("run", SPREAD)
    mark = load_base(run.settings).fingerprint
    run.train()
    folder = run.save_to_path() / "adapter"
    model = AutoModelForCausalLM.from_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text("utf-8"))[FINGERPRINT_KEY]
    assert saved == compute_fingerprint(model) != mark
    again = load_base(Settings(model={"name": str(folder)}))
    assert again.fingerprint == saved and again.tokenizer.chat_template


def test_a_model_that_is_saved_in_parts_is_loaded_whole(tmp_path):
    settings = Settings(**with_overrides({}, TINY))
    policy, other = (attach_lora(load_base(settings), settings.lora) for _ in range(2))
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.add_(0.1)
    policy.model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    other.load(tmp_path)
    assert all(
        np.array_equal(other.adapter_weights()[n], w) for n, w in policy.adapter_weights().items()
    )


def test_a_warm_start_of_a_model_that_is_not_built_in_trains_all_weights_too(build, tmp_path):
    folder = tmp_path / "model"
    base = load_base(Settings(**with_overrides({}, TINY)))
    base.model.save_pretrained(folder)
    base.tokenizer.save_pretrained(folder)
    own = [f"{name.partition('=')[0]}=" for name in SMALL]
    warm = ("warm_start.num_steps=2", "warm_start.batch_size=4", "training.kl_coeff=0.1")
    run = build("run", *own, f"model.name={folder}", *warm, SPREAD)
    started = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "warm_start")
    assert compute_fingerprint(started) != compute_fingerprint(base.model)
    assert run.train()["train/kl"] == pytest.approx(0, abs=1e-6)  # to the warm-started model
    assert run.train()["train/kl"] > 0


@pytest.mark.long
@pytest.mark.slow
def test_reward_teaches_all_weights_of_the_tiny_model(build):
    """One-digit addition, of which the warm start leaves most to learn."""
    easy = ("num_digits=1", 'operations=["addition"]', 'prompt="compact"')
    settings = (
        *(f"environment.kwargs.{word}" for word in easy),
        "tiny.hidden_size=64",
        "warm_start.num_steps=80",
        "warm_start.batch_size=32",
        "warm_start.lr=5e-3",
        "training.num_groups=64",
        "training.group_size=8",
        "training.lr=5e-4",
    )
    run = build("run", *settings)
    rates = [run.train()["train/accuracy"] for _ in range(60)]
    assert np.mean(rates[-10:]) > np.mean(rates[:10]) + 0.1  # seen: 0.26 to 0.43


def test_an_adapter_is_no_start_for_all_weights():
    policy = make_policy(rank=0)
    base = replace(policy.base, adapter_path="some/adapter")
    with pytest.raises(SettingsError, match="merge it first"):
        attach_lora(base, LoraSettings(rank=0))


def test_what_transformers_refuses_to_write_does_not_cost_the_run(tmp_path):
    base = load_base(Settings(**with_overrides({}, list(TINY))))
    base.model.generation_config.temperature = 0.9  # without do_sample, as some hub models have it
    policy = attach_lora(base, LoraSettings(rank=0))
    eos = base.model.generation_config.eos_token_id
    policy.save(tmp_path)
    saved = json.loads((tmp_path / "generation_config.json").read_text())
    assert saved.get("eos_token_id") == eos and "temperature" not in saved


def test_a_tokenizer_of_several_chat_templates_is_saved_and_restored():
    actor = LearnerActor()
    actor.make(Settings(**with_overrides({}, list(TINY))))
    tokenizer = actor.learner.policy.base.tokenizer
    tokenizer.chat_template = {"default": tokenizer.chat_template, "tool_use": "{{ messages }}"}
    files = actor.to_files()
    assert any(name.startswith("adapter/additional_chat_templates/") for name in files)
    restore_learner(actor, files)
