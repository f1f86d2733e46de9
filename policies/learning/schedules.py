"""Learning rates, by iteration (a linear warm-up, then a schedule); the optimizer."""

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from agentpeft.policies.models.lora.attach_lora import Policy
from agentpeft.policies.settings.config import TrainingSettings, WarmStartSettings
from agentpeft.policies.settings.tasks import SUCCESS_WINDOW

_PRETRAIN_WARMUP = 0.05


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
    """AdamW over all that is trained, policy and critic, at the settings' learning rate."""

    def __init__(
        self, training: TrainingSettings, policy: Policy, critic: Sequence[nn.Parameter]
    ) -> None:
        self._training = training
        # Few steps from a good start: decay would only pull an adapter back to its beginning
        self._optimizer = torch.optim.AdamW(
            [*policy.trainable_parameters(), *critic], weight_decay=0.0, fused=True
        )
        self.step, self.state_dict = self._optimizer.step, self._optimizer.state_dict
        self.load_state_dict = self._optimizer.load_state_dict

    def set_lr(self, iteration: int) -> float:
        """Sets the rate of an iteration and returns it."""
        lr = compute_lr(self._training, iteration)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        return lr


class PretrainSchedule:
    """The learning rate's factor in pretraining, its stage, and when to stop.

    The rate warms up over a twentieth of `num_steps`, is constant, and falls linearly over the last
    `decay` of them; once the mean success over 8 batches of the last stage has reached
    `target_success`, it begins to fall at once, over `decay` of the steps taken so far. Source: Hu
    et al., "MiniCPM", 2024, section 4 (warm-up, stable, decay).

    >>> schedule = PretrainSchedule(WarmStartSettings(num_steps=100))
    >>> for _ in range(95): schedule.step(0.0)
    >>> schedule.lr_factor
    0.5
    """

    def __init__(self, warm_start: WarmStartSettings) -> None:
        num_steps = warm_start.num_steps
        self.num_done = self.stage = 0
        self._num_warmup = max(1, round(_PRETRAIN_WARMUP * num_steps))
        self._decay = warm_start.decay
        self._decay_at, self._end = num_steps - round(self._decay * num_steps), num_steps
        self._stage_ends, self._promote_at = warm_start.stage_ends, warm_start.promote_at
        self._target = warm_start.target_success
        self._recent: deque[float] = deque(maxlen=SUCCESS_WINDOW)

    @property
    def lr_factor(self) -> float:
        """The factor of the coming step's learning rate."""
        warmup = (self.num_done + 1) / self._num_warmup
        decay = (self._end - self.num_done) / max(1, self._end - self._decay_at)
        return min(1.0, warmup, decay)

    @property
    def is_done(self) -> bool:
        """Whether all steps have been taken."""
        return self.num_done >= self._end

    def step(self, success: float) -> None:
        """Counts a step whose batch had this share of episodes right."""
        self.num_done += 1
        self._recent.append(success)
        if self.stage < len(self._stage_ends) - 1:
            is_late = self.num_done >= self._stage_ends[self.stage]
            if is_late or self._has_reached(self._promote_at):
                self.stage += 1
                self._recent.clear()
        elif self.num_done < self._decay_at and self._has_reached(self._target):
            self._decay_at = self.num_done
            self._end = self.num_done + round(self._decay * self.num_done)

    def _has_reached(self, success: float | None) -> bool:
        is_full = len(self._recent) == SUCCESS_WINDOW
        return success is not None and is_full and bool(np.mean(self._recent) >= success)
