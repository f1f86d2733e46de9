"""Learning rates, by iteration (a linear warm-up, then a schedule) and by part; the optimizer."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from agentpeft.policies.models.lora.attach_lora import Policy
from agentpeft.policies.settings.config import TrainingSettings

if TYPE_CHECKING:  # most runs do without
    from agentpeft.policies.learning.critic import Critic


def compute_lr(training: TrainingSettings, iteration: int) -> float:
    """Returns the rate of the iteration (from 0); decaying schedules end near 0 at the last.

    Warm-up over 4: 1/4, 2/4, 3/4, 4/4 of `lr`, then the schedule over the rest.
    """
    warmup = training.num_warmup_iterations
    if iteration < warmup:
        return training.lr * (iteration + 1) / warmup
    done = min((iteration - warmup) / max(training.num_iterations - warmup, 1), 1.0)
    factors = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}
    return training.lr * factors[training.lr_schedule]


class ScheduledAdamW:
    """AdamW over all that is trained; each part has a learning rate of its own, on one schedule.

    `load_state_dict` brings back the moments; betas, weight decay and rates are the settings'.
    """

    def __init__(self, training: TrainingSettings, policy: Policy, critic: "Critic | None") -> None:
        parts = _split_by_lr(training, policy, () if critic is None else critic.parameters())
        self._training, self._lrs = training, [lr for _, lr in parts]
        self._options: dict[str, Any] = {
            "betas": (training.adam_beta1, training.adam_beta2),
            "weight_decay": training.weight_decay,
        }
        groups = [{"params": parameters} for parameters, _ in parts]
        self._optimizer = torch.optim.AdamW(groups, **self._options, fused=True)
        self.step, self.state_dict = self._optimizer.step, self._optimizer.state_dict

    def set_lr(self, iteration: int) -> None:
        """Sets the rates of an iteration; `lr` is the policy's."""
        self.lr = compute_lr(self._training, iteration)
        policy, *others = self._optimizer.param_groups
        policy["lr"] = self.lr
        for group, other_lr in zip(others, self._lrs[1:], strict=True):
            group["lr"] = self.lr * other_lr / self._training.lr

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict`."""
        self._optimizer.load_state_dict(state)
        for group in self._optimizer.param_groups:
            group.update(self._options)


def _split_by_lr(
    training: TrainingSettings, policy: Policy, critic: Sequence[nn.Parameter]
) -> list[tuple[list[nn.Parameter], float]]:
    """Returns the trained parameters with their learning rates, as of `training.lr`.

    First the policy's; with LoRA+ its B matrices follow on their own; then the critic's.
    Source: Hayou et al. 2024, "LoRA+: Efficient Low Rank Adaptation of Large Models".
    """
    trained, ratio = policy.trainable_parameters(), training.lora_plus_ratio
    named = policy.model.named_parameters() if ratio != 1 else ()
    ups = {id(parameter) for name, parameter in named if ".lora_B." in name}
    parts = [
        ([p for p in trained if id(p) not in ups], training.lr),
        ([p for p in trained if id(p) in ups], training.lr * ratio),
        (list(critic), training.critic_lr or training.lr),
    ]
    return [(parameters, lr) for parameters, lr in parts if parameters]
