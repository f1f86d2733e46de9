"""Learning rates by iteration: a linear warm-up, then one of the schedules."""

import math

from agentpeft.policies.settings.config import TrainingSettings


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
