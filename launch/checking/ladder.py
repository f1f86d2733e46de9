"""The correctness ladder: a tiny model learns for one step, and each rung checks a piece of it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from agentpeft.launch.checking.machine_checks import Finding
from agentpeft.policies.engines.player import make_player
from agentpeft.policies.learning.learner import Learner
from agentpeft.policies.messages import EpisodeGroup, EpisodeRecord
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.models.pretrain import make_tiny
from agentpeft.policies.rollout.chat import make_chat
from agentpeft.policies.rollout.env_runner import EnvRunner
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.settings.config import Settings

_REMEDY = "report it, with the versions of the first line"
_MAX_MISMATCH, _STEP = 1e-3, 3e-4
SETTINGS = Settings(
    experiment="doctor",
    environment={"kwargs": {"num_digits": 1, "max_turns": 3, "invalid_ends": False}},
    tiny={"hidden_size": 32, "num_layers": 2},
    lora={"rank": 4, "alpha": 8.0},
    env_runners={"num_env_runners": 0, "max_new_tokens": 6},
    training={"group_size": 2, "kl_coeff": 0.1, "lr": 1e-2},
)
"""A KL term lets every episode count, since none of an untrained model has an advantage."""


@dataclass(frozen=True)
class Rig:
    """A learner and a runner that play with the same, new adapter, and what was played."""

    learner: Learner
    runner: EnvRunner
    groups: list[EpisodeGroup]
    records: tuple[EpisodeRecord, ...]


Rung: TypeAlias = Callable[[Rig], Finding]


def climb() -> Iterator[Finding]:
    """Yields what each rung finds, on the CPU; takes a few seconds."""
    base = make_tiny(SETTINGS)
    learner = Learner(SETTINGS, attach_lora(make_tiny(SETTINGS), SETTINGS.lora))
    runner = EnvRunner(SETTINGS, make_player(SETTINGS, base))
    try:
        runner.load_adapter(learner.adapter())
        groups, report = runner.sample([GroupRequest(task, 2) for task in range(4)])
        rig = Rig(learner, runner, groups, report.records)
        for rung in RUNGS:
            yield rung(rig)
    finally:
        runner.close()


def check_mask(rig: Rig) -> Finding:
    """The mask covers what was sampled, turn by turn, and nothing else."""
    chat = make_chat(rig.learner.policy.base, rig.learner.settings)
    said = [[text for role, text in r.messages if role == "assistant"] for r in rig.records]
    masked = []
    for trajectory in (t for group in rig.groups for t in group.trajectories):
        turns = np.split(trajectory.token_ids, trajectory.turn_ends)
        masks = np.split(trajectory.loss_mask, trajectory.turn_ends)
        pairs = zip(turns[:-1], masks[:-1], strict=True)
        masked.append([chat.decode(turn[mask]) for turn, mask in pairs])
    text = "the mask covers the sampled tokens"
    return _judge("mask", masked == said, text, "the masked tokens are not what was said")


def check_first_step(rig: Rig) -> Finding:
    """A new adapter changes nothing: ratio 1 to what was sampled, KL 0 to the base."""
    metrics = rig.learner.update(rig.groups)
    ratio, kl = np.exp(metrics["train/mismatch_max"]), metrics["train/kl"]
    is_right = abs(ratio - 1) < _MAX_MISMATCH and abs(kl) < 1e-6
    text = f"largest ratio {ratio:.6f}, KL {kl:.2g}"
    return _judge("first step", is_right, text, f"{text}, expected 1 and 0")


def check_delivery(rig: Rig) -> Finding:
    """The runner acknowledges an adapter whose B is not 0, and plays with it."""
    rng, policy = np.random.default_rng(0), rig.learner.policy
    weights = policy.adapter_weights()
    policy.load_weights({n: rng.normal(0, 0.1, w.shape).astype("f4") for n, w in weights.items()})
    adapter = rig.learner.adapter()
    ack = rig.runner.load_adapter(adapter)
    if (ack.version, ack.sha256) != (adapter.version, adapter.sha256):
        return _judge("delivery", False, "", "the runner acknowledged another adapter")
    groups, _ = rig.runner.sample([GroupRequest(task, 2) for task in range(4, 8)])
    mismatch = rig.learner.update(groups)["train/mismatch_max"]
    text = f"engine and learner differ by {mismatch:.2g} at most in log-probability"
    return _judge("delivery", mismatch < _MAX_MISMATCH, text, text)


def check_gradient(rig: Rig) -> Finding:
    """The imitation loss's gradient is its finite difference, along the gradient's signs."""
    imitation = Settings(training={"algorithm": "sft", "max_grad_norm": 1e9})
    policy = rig.learner.policy
    learner, parameters = Learner(imitation, policy), policy.trainable_parameters()
    before = [parameter.detach().clone() for parameter in parameters]

    def loss_at(distance: float, ways: Sequence[torch.Tensor]) -> float:
        with torch.no_grad():
            for parameter, old, way in zip(parameters, before, ways, strict=True):
                parameter.copy_(old + distance * way)
        return learner.update(rig.groups)["train/policy_loss"]

    loss_at(0.0, before)
    gradients = [p.grad.clone() for p in parameters if p.grad is not None]
    ways = [gradient.sign() for gradient in gradients]
    slope = sum(float(gradient.abs().sum()) for gradient in gradients)
    expected = (loss_at(_STEP, ways) - loss_at(-_STEP, ways)) / (2 * _STEP)
    text = f"slope {slope:.4g}, finite difference {expected:.4g}"
    return _judge("gradient", abs(slope - expected) < 0.02 * abs(expected), text, text)


def _judge(name: str, is_right: bool, right: str, wrong: str) -> Finding:
    return Finding(name, right) if is_right else Finding(name, wrong, _REMEDY, True)


RUNGS: tuple[Rung, ...] = (check_mask, check_first_step, check_delivery, check_gradient)
