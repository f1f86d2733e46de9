"""Trial learners: what tests of several learners have each do, in a process of its own."""

import os
import signal
import sys

import learner_parts
import numpy as np
import pytest
import ray.cloudpickle
import torch
from learner_parts import act, flat_weights, make_group, make_trajectory, random_groups
from small_model import SMALL

from agentpeft.policies.learning.learner import Learner
from agentpeft.policies.learning.peers import Peers
from agentpeft.policies.loop.imitation import receive_oracle, take_warm_start_step
from agentpeft.policies.loop.resuming import restore_learner
from agentpeft.policies.models.load import load_base
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides
from agentpeft.policies.workers.learner_group import LearnerActor

for module in (learner_parts, sys.modules[__name__]):  # workers cannot import them
    ray.cloudpickle.register_pickle_by_value(module)

TINY = (
    *SMALL,
    "lora.rank=4",
    "env_runners.max_new_tokens=8",
    "num_threads=1",
)
ALONE = Peers()
ROUNDING = 1e-5
"""Between weights: sums in another order, which the optimizer enlarges (1e-6 to 2e-6)."""


def make_settings(*overrides):
    return Settings(**with_overrides({}, (*TINY, *overrides)))


def make_anew(peers, overrides):
    """Returns a new learner with these peers; its adapter is not zero."""
    settings = make_settings(*overrides)
    checkpointing = settings.learners.gradient_checkpointing
    of_model = [each for each in overrides if each.startswith(("tiny.", "model."))]
    base = load_base(make_settings(*of_model))
    policy = attach_lora(base, settings.lora, gradient_checkpointing=checkpointing)
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


def imitate(peers, overrides=()):
    own = ("training.algorithm=sft", "lora.rank=8", "training.lr=1e-3", *overrides)
    learner = make_anew(peers, own)
    actor, losses = act(learner), []
    for at in (0, 4):
        receive_oracle(actor, at, 4)
        losses.append(actor.update()["train/policy_loss"])
    return flat_weights(learner), losses


def warm_start(peers, overrides=()):
    own = ("warm_start.num_steps=2", "warm_start.batch_size=4", *overrides)
    learner = make_anew(peers, own)
    actor = act(learner)
    for _ in range(2):
        take_warm_start_step(actor)
    return learner.version, flat_weights(learner)


def resume(peers, batches, overrides=()):
    first, second = make_anew(peers, overrides), make_anew(peers, overrides)
    first.update(batches[0])
    restore_learner(act(second), peers.of_first(act(first).to_files))
    return second.update(batches[1]), flat_weights(second).tobytes()


class TrialLearner(LearnerActor):
    """Does the same as the functions above, with its peers; fails and dies when it is asked to."""

    def learn(self, overrides, batches, prepare):
        return learn(self.learner.peers, overrides, batches, prepare)

    def imitate_anew(self, overrides=()):
        return imitate(self.learner.peers, overrides)

    def warm_start_anew(self, overrides=()):
        return warm_start(self.learner.peers, overrides)

    def resume_anew(self, batches, overrides=()):
        return resume(self.learner.peers, batches, overrides)

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


def assert_several_equal_one(several, overrides, batches, prepare=None, sharing=()):
    """Returns the metrics of the last update; `sharing` are overrides of the several alone."""
    one = learn(ALONE, overrides, batches, prepare)
    two = learn_in(several, (*overrides, *sharing), batches, prepare)
    for (metrics, gradient, weights), (others, other, theirs) in zip(one, two, strict=True):
        np.testing.assert_allclose(gradient, other, rtol=0, atol=1e-6)
        np.testing.assert_allclose(weights, theirs, rtol=0, atol=ROUNDING)
        assert metrics == pytest.approx(others, rel=1e-4, abs=1e-6, nan_ok=True)
    return two[-1][0]


def batches_of_different_sizes(num_updates=3):
    return [random_groups(3 + seed, 4, seed, vocab=300) for seed in range(num_updates)]


def equal_group(position, reward):
    return make_group(position, [make_trajectory([1, 2], [3, 4, 5], reward)] * 4)
