"""Tiny policies and hand-made groups that the learner's tests share."""

from dataclasses import replace

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentpeft.envs import Outcome
from agentpeft.policies.learning.algorithms import algorithm_of
from agentpeft.policies.learning.critic import estimate_by_turn
from agentpeft.policies.learning.learner import Learner
from agentpeft.policies.learning.samples import estimate_by_episode, list_samples
from agentpeft.policies.messages import EpisodeGroup, Trajectory
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.settings.config import LoraSettings, Settings, TrainingSettings
from agentpeft.policies.workers.learner_group import LearnerActor


def make_policy(
    hidden=32, layers=2, vocab=20, nonzero=False, checkpointing=False, rank=4, *, dropout=0.0
):
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocab, hidden_size=hidden, intermediate_size=4 * hidden,
        num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=4,
        max_position_embeddings=256, attention_dropout=dropout,
    )  # fmt: skip
    base = PolicyBase(Qwen2ForCausalLM(config), None, "test")
    with torch.no_grad():
        base.model.lm_head.weight.mul_(10)  # else no hidden state can be sure of a token
    policy = attach_lora(
        base,
        LoraSettings(rank=rank, alpha=8.0),
        gradient_checkpointing=checkpointing,
    )
    if nonzero:
        with torch.no_grad():
            for parameter in policy.trainable_parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return policy


def make_learner(policy=None, learners=None, max_adapter_lag=0, **training):
    settings = Settings.model_validate(
        {
            "training": {"algorithm": "grpo", **training},
            "learners": learners or {},
            "max_adapter_lag": max_adapter_lag,
            "env_runners": {"max_new_tokens": 8},
        }
    )
    return Learner(settings, policy or make_policy())


def make_trajectory(prompt, tokens, reward, mask=None, ends=None):
    tokens = np.array(tokens, np.int64)
    mask = np.ones(len(tokens), bool) if mask is None else np.array(mask, bool)
    ends = (len(tokens),) if ends is None else ends
    return Trajectory(
        prompt_ids=np.array(prompt, np.int64), token_ids=tokens, loss_mask=mask,
        sampling_logprobs=np.where(mask, -1.0, 0.0).astype(np.float32), turn_ends=ends,
        turn_rewards=(0.0,) * (len(ends) - 1) + (float(reward),),
        outcome=Outcome.SUCCESS if reward > 0 else Outcome.FAILURE,
    )  # fmt: skip


def make_group(position, trajectories):
    return EpisodeGroup(position, f"task{position}", (), 0, tuple(trajectories))


def random_groups(num_groups=4, size=4, seed=0, vocab=20, success=1.0):
    """Groups of prompts and answers of many lengths; every second episode has two turns."""
    rng = np.random.default_rng(seed)
    groups = []
    for g in range(num_groups):
        prompt, trajectories = rng.integers(0, vocab, rng.integers(1, 9)), []
        for i in range(size):
            length = int(rng.integers(4, 9))
            mask, ends = np.ones(length, bool), (length,)
            if i % 2:
                mask[2], ends = False, (2, length)
            tokens = rng.integers(0, vocab, length)
            trajectories.append(make_trajectory(prompt, tokens, success * (i % 3 == 0), mask, ends))
        groups.append(make_group(g, trajectories))
    return groups


def make_samples_of(groups, algorithm="grpo", baseline=0.0, scores=None, **training):
    """Samples without a reference; `scores`: a critic's of each trajectory, if there is one."""
    training = TrainingSettings(algorithm=algorithm, **training)
    samples, spec = list_samples(groups), algorithm_of(training)
    if scores is not None:
        samples = [replace(s, old=of_old) for s, of_old in zip(samples, scores, strict=True)]
        samples = estimate_by_turn(samples, spec, training)
    else:
        samples = estimate_by_episode(samples, spec, baseline)
    return [sample for sample in samples if sample.num_sampled_tokens]


def flat_weights(learner):
    weights = learner.policy.adapter_weights()
    return np.concatenate([weights[name].ravel() for name in sorted(weights)])


def gradients(learner, groups):
    """The gradient of one update, before clipping matters."""
    learner.update(groups)
    return torch.cat([p.grad.flatten() for p in learner.policy.trainable_parameters()])


def act(learner):
    """Returns an actor around a learner, in this process."""
    actor = LearnerActor()
    actor.learner = learner
    return actor
