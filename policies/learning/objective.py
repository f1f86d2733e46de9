"""The loss of a micro-batch, and the sums that the metrics of an update are made of."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from agentpeft.policies.learning import losses
from agentpeft.policies.learning.algorithms import AlgorithmSpec
from agentpeft.policies.learning.samples import Sample
from agentpeft.policies.messages import Floats
from agentpeft.policies.settings.config import Settings

_OLDER_CAP = 2.0
"""The cap of importance weights where a lag is allowed, unless the settings name one."""


def join(arrays: Sequence[Floats], device: torch.device) -> Tensor:
    """Returns arrays of samples, one behind the other."""
    return torch.from_numpy(np.concatenate(arrays)).to(device)


def spread(weights: Iterable[float], samples: Sequence[Sample], device: torch.device) -> Tensor:
    """Returns each sample's weight at each of its sampled tokens."""
    lengths = [sample.num_sampled_tokens for sample in samples]
    return join([np.repeat(list(weights), lengths).astype(np.float32)], device)


@dataclass
class Totals:
    """Sums over a part of an update, which the metrics are made of.

    `loss`: of the weighted tokens and turns. `sums`: by a metric's name, a sum over tokens or turns
    and how many these were.
    """

    loss: float = 0.0
    mismatch_max: float = 0.0
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)

    def count(self, name: str, values: Tensor, number: int | None = None) -> None:
        """Sums up values (N,) under a name; `number`: the mean's denominator, by default N."""
        self.sums[name] = values.sum().item(), len(values) if number is None else number

    def add(self, other: "Totals") -> None:
        """Takes in the totals of another part of the same update."""
        self.loss += other.loss
        self.mismatch_max = max(self.mismatch_max, other.mismatch_max)
        for name, (value, count) in other.sums.items():
            value_so_far, count_so_far = self.sums.get(name, (0.0, 0))
            self.sums[name] = value_so_far + value, count_so_far + count

    def compute_metrics(self) -> dict[str, float]:
        """Returns the means over what was computed; NaN if that is nothing."""
        if not self.sums:
            return {"train/policy_loss": math.nan, "train/mismatch_max": math.nan}
        means = {f"train/{name}": value / count for name, (value, count) in self.sums.items()}
        return {**means, "train/mismatch_max": self.mismatch_max}


class Objective:
    """An algorithm's loss with the settings' KL and entropy terms."""

    def __init__(self, settings: Settings, spec: AlgorithmSpec) -> None:
        """`spec` has the settings' overrides."""
        self._spec = spec
        self._constant = settings.env_runners.max_new_tokens
        self._kl_coeff = settings.training.kl_coeff
        default = _OLDER_CAP if settings.max_adapter_lag > 0 and not spec.is_supervised else None
        asked = settings.training.importance_cap
        self._importance_cap = default if asked is None else asked

    def weigh(self, minibatch: Sequence[Sample]) -> list[Sample]:
        """Settles the weights over the minibatch; drops samples that cannot have a gradient."""
        lengths = [sample.num_sampled_tokens for sample in minibatch]
        weights = losses.compute_token_weights(self._spec.normalization, lengths, self._constant)
        num_turns = sum(int(s.critic.turn_starts.sum()) for s in minibatch if s.critic is not None)
        return [
            replace(sample, token_weight=weight, turn_weight=1 / max(num_turns, 1))
            for sample, weight in zip(minibatch, weights, strict=True)
            if self.can_learn(sample) or num_turns > 0
        ]

    def can_learn(self, sample: Sample) -> bool:
        """Returns whether a sample's tokens can have a gradient, whatever its old scores."""
        return self._kl_coeff > 0 or self._spec.entropy_coeff > 0 or bool(sample.advantages.any())

    def compute(
        self, logprobs: Tensor, entropy: Tensor, samples: Sequence[Sample]
    ) -> tuple[Tensor, Totals]:
        """Returns the loss of a micro-batch's sampled tokens, and its totals.

        `logprobs` and `entropy` (in nats) are the present weights', (N,) each, sample by sample.
        Three others are told apart: `old` are the learner's before the update, `sampling_logprobs`
        the engine's when it played, `compared` those in the ratio (`old`; for GSPO those that give
        a sequence's tokens one ratio).
        """
        spec, totals, device = self._spec, Totals(), logprobs.device
        advantages = join([s.advantages for s in samples], device)
        weights = spread([s.token_weight for s in samples], samples, device)
        played = [s.trajectory for s in samples]
        sampling_logprobs = join([t.sampling_logprobs[t.loss_mask] for t in played], device)
        # In one step all samples that are learnt from have old scores, or none has
        scored = [s.old.logprobs for s in samples if s.old.logprobs is not None]
        reference = [s.reference.logprobs for s in samples if s.reference.logprobs is not None]
        old = compared = join(scored, device) if scored else logprobs.detach()
        if spec.ratio == "sequence":
            lengths = [sample.num_sampled_tokens for sample in samples]
            sequences = torch.from_numpy(np.repeat(np.arange(len(samples)), lengths)).to(device)
            compared = losses.spread_ratio(logprobs, old, sequences)
        per_token = spec.policy_loss(logprobs, compared, advantages, spec.clip)
        if self._importance_cap is not None:
            importance = losses.importance_weights(old, sampling_logprobs, self._importance_cap)
            per_token = per_token * importance
            totals.count("importance_weight", importance)
        totals.count("policy_loss", per_token)
        if reference:
            kl = losses.compute_kl(logprobs, join(reference, device))
            per_token = per_token + self._kl_coeff * kl
            totals.count("kl", kl)
        if spec.entropy_coeff > 0:
            per_token = per_token - spec.entropy_coeff * entropy
        totals.count("entropy", entropy)
        is_clipped = losses.is_clipped(logprobs, compared, advantages, spec.clip)
        totals.count("clip_fraction", is_clipped.float())
        if not spec.is_supervised:
            mismatch = (old - sampling_logprobs).abs()
            totals.count("mismatch_mean", mismatch)
            totals.mismatch_max = mismatch.max().item()
        loss = (per_token * weights).sum()
        totals.loss = loss.item()
        return loss, totals
