"""What a loss reads of a micro-batch, one sample after the other, and the sums of its metrics."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from agentpeft.policies.learning.samples import Sample
from agentpeft.policies.messages import Floats


@dataclass(frozen=True)
class CriticInputs:
    """`CriticTargets` of a micro-batch, with each token's weight in the value loss; (N,) each."""

    targets: Tensor
    turn_starts: Tensor
    weights: Tensor


@dataclass(frozen=True)
class LossInputs:
    """What the loss reads of a micro-batch's sampled tokens beside the model's outputs, (N,) each.

    `weights`: each token's weight in the loss. `sequences`: the number of each token's sample in
    the micro-batch, which has whole samples only. None is as in `Sample`.
    """

    sampling_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    sequences: Tensor
    old_logprobs: Tensor | None
    reference_logprobs: Tensor | None
    critic: CriticInputs | None


def make_loss_inputs(samples: Sequence[Sample], device: torch.device) -> LossInputs:
    """Returns the samples' numbers, one sample after the other."""
    trajectories = [sample.member.trajectory for sample in samples]
    lengths = [sample.member.num_sampled_tokens for sample in samples]

    def join(arrays: Iterable[Floats]) -> Tensor:
        return torch.from_numpy(np.concatenate(list(arrays))).to(device)

    def spread(weights: Iterable[float]) -> Tensor:
        return join([np.repeat(list(weights), lengths).astype(np.float32)])

    old = [s.old.logprobs for s in samples if s.old.logprobs is not None]
    reference = [s.reference.logprobs for s in samples if s.reference.logprobs is not None]
    targets = [s.critic for s in samples if s.critic is not None]
    critic = None
    if targets:
        turn_starts = join(t.turn_starts for t in targets)
        critic = CriticInputs(
            targets=join(t.targets for t in targets),
            turn_starts=turn_starts,
            weights=turn_starts * spread(s.turn_weight for s in samples),
        )
    return LossInputs(
        sampling_logprobs=join(t.sampling_logprobs[t.loss_mask] for t in trajectories),
        advantages=join(s.advantages for s in samples),
        weights=spread(s.token_weight for s in samples),
        sequences=torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)).to(device),
        old_logprobs=join(old) if old else None,
        reference_logprobs=join(reference) if reference else None,
        critic=critic,
    )


@dataclass
class Totals:
    """Sums over a part of an update, which the metrics are made of.

    `loss`: of the weighted tokens and turns. `sums`: by name, a sum over tokens or turns and how
    many these were.
    """

    loss: float = 0.0
    mismatch_max: float = 0.0
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)

    def add(self, other: "Totals") -> None:
        """Takes in the totals of another part of the same update."""
        self.loss += other.loss
        self.mismatch_max = max(self.mismatch_max, other.mismatch_max)
        for name, (value, count) in other.sums.items():
            value_so_far, count_so_far = self.sums.get(name, (0.0, 0))
            self.sums[name] = value_so_far + value, count_so_far + count

    def metrics(self) -> dict[str, float]:
        """Returns the means over what was computed; NaN if that is nothing."""
        if not self.sums:
            return {"train/policy_loss": math.nan, "train/mismatch_max": math.nan}
        means = {f"train/{name}": value / count for name, (value, count) in self.sums.items()}
        return {**means, "train/mismatch_max": self.mismatch_max}
