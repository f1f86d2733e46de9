"""The correctness ladder: every rung holds on a sound rig, and finds what it is there for."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from agentpeft.launch.checking import ladder
from agentpeft.policies.engines.fusing import ServedEffect
from agentpeft.policies.engines.player import make_player
from agentpeft.policies.engines.transformers.engine import EngineSettings, TransformersEngine
from agentpeft.policies.learning.learner import Learner
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.models.pretrain import make_tiny
from agentpeft.policies.rollout.env_runner import EnvRunner
from agentpeft.policies.rollout.groups import GroupRequest


@pytest.fixture
def rig():
    """A sound rig, after play with a new adapter."""
    settings = ladder.SETTINGS
    learner = Learner(settings, attach_lora(make_tiny(settings), settings.lora))
    runner = EnvRunner(settings, make_player(settings, make_tiny(settings)))
    runner.load_adapter(learner.adapter())
    groups, report = runner.sample([GroupRequest(task, 2) for task in range(4)])
    yield ladder.Rig(learner, runner, groups, report.records)
    runner.close()


def with_trajectories(rig, change):
    groups = [
        replace(group, trajectories=tuple(change(t) for t in group.trajectories))
        for group in rig.groups
    ]
    return replace(rig, groups=groups)


def test_a_mask_over_the_environments_text_is_found(rig):
    wrong = with_trajectories(rig, lambda t: replace(t, loss_mask=np.ones_like(t.loss_mask)))
    assert ladder.check_mask(wrong).is_fault and not ladder.check_mask(rig).is_fault


def test_other_probabilities_than_those_of_play_are_found(rig):
    wrong = with_trajectories(
        rig, lambda t: replace(t, sampling_logprobs=t.sampling_logprobs * np.float32(1.01))
    )
    assert ladder.check_first_step(wrong).is_fault and not ladder.check_first_step(rig).is_fault


def test_an_adapter_that_is_not_new_has_a_kl(rig):
    policy = rig.learner.policy
    weights = {name: w + np.float32(0.05) for name, w in policy.adapter_weights().items()}
    policy.load_weights(weights)
    rig.runner.load_adapter(rig.learner.adapter())
    groups, _ = rig.runner.sample([GroupRequest(task, 2) for task in range(4)])
    finding = ladder.check_first_step(replace(rig, groups=groups))
    assert finding.is_fault and "largest ratio 1.0000" in finding.text


def test_an_adapter_that_is_acknowledged_and_not_served_is_found(rig):
    def make_engine(settings, base, chat):
        def forget(state, adapter):
            return {}, ServedEffect()

        return TransformersEngine(base.model, chat.stop_token_ids, EngineSettings(), forget)

    player = make_player(ladder.SETTINGS, make_tiny(ladder.SETTINGS), make_engine)
    runner = EnvRunner(ladder.SETTINGS, player)
    finding = ladder.check_delivery(replace(rig, runner=runner))
    runner.close()
    assert finding.is_fault and "engine and learner differ" in finding.text
    assert not ladder.check_delivery(rig).is_fault


def test_a_gradient_of_another_loss_is_found(rig):
    ladder.check_delivery(rig)
    assert not ladder.check_gradient(rig).is_fault
    for parameter in rig.learner.policy.trainable_parameters():
        parameter.register_hook(lambda gradient: gradient * torch.tensor(1.1))
    assert ladder.check_gradient(rig).is_fault
