"""What is minimised over a micro-batch, and the sums that the metrics are made of."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from agentpeft.envs import Outcome
from agentpeft.policies.learning import losses
from agentpeft.policies.learning.advantages import turn_of_tokens
from agentpeft.policies.learning.algorithms import AlgorithmSpec
from agentpeft.policies.learning.batches import (
    MicroBatch,
    Sample,
    compute_entropy,
    compute_logprobs,
)
from agentpeft.policies.messages import EpisodeGroup, Floats
from agentpeft.policies.settings.config import Settings, TrainingSettings

_LAG_CAP = 2.0
"""The importance cap of samples that older adapters drew, unless the settings have one."""


@dataclass
class Totals:
    """Sums over tokens (`loss`: over the weighted ones), and the largest mismatch.

    `value_loss` is a sum over the turns whose values were learnt.
    """

    loss: float = 0.0
    num_tokens: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    mismatch_max: float = 0.0
    value_loss: float = 0.0
    num_turns: int = 0

    def add(self, other: "Totals") -> None:
        """Takes in the totals of another part of the same update."""
        self.loss += other.loss
        self.num_tokens += other.num_tokens
        self.value_loss += other.value_loss
        self.num_turns += other.num_turns
        self.mismatch_max = max(self.mismatch_max, other.mismatch_max)
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def metrics(self) -> dict[str, float]:
        """Returns the means over the tokens that were computed; of none, what is not a number."""
        if not self.num_tokens:
            return {"train/policy_loss": math.nan, "train/mismatch_max": math.nan}
        means = {f"train/{n}": v / self.num_tokens for n, v in self.sums.items()}
        if self.num_turns:
            means["train/value_loss"] = self.value_loss / self.num_turns
        return {**means, "train/mismatch_max": self.mismatch_max}


class Objective:
    """An algorithm's loss with its KL and entropy terms, as the settings have them; a critic's."""

    def __init__(self, settings: Settings, spec: AlgorithmSpec) -> None:
        """`spec` has the settings' overrides."""
        self._training, self._spec = settings.training, spec
        self._constant = settings.env_runners.max_new_tokens
        in_loss = settings.training.kl_placement == "loss"
        self._kl_coeff = settings.training.kl_coeff if in_loss else 0.0
        default = _LAG_CAP if settings.max_adapter_lag > 0 and not spec.is_supervised else None
        self._importance_cap = settings.training.importance_cap or default

    def weigh(self, samples: Sequence[Sample]) -> list[Sample]:
        """Settles each token's weight; then drops samples that cannot have a gradient."""
        lengths = [int(s.trajectory.loss_mask.sum()) for s in samples]
        weights = losses.compute_token_weights(self._spec.normalization, lengths, self._constant)
        all_matter = self._kl_coeff > 0 or self._spec.entropy_coeff > 0
        if self._spec.critic is not None:
            num_turns = sum(s.columns["turn_starts"].sum() for s in samples)
            samples = [_with_value_weights(s, num_turns) for s in samples]
            all_matter = True
        return [
            replace(s, columns={**s.columns, "weights": w})
            for s, w in zip(samples, weights, strict=True)
            if all_matter or s.columns["advantages"].any()
        ]

    def compute(self, logits: Tensor, batch: MicroBatch) -> tuple[Tensor, Totals]:
        """Returns the loss of the needed positions' logits (U, V), and the totals."""
        columns, spec, terms = batch.columns, self._spec, {}
        logprobs = compute_logprobs(logits, batch)
        old = columns.get("old_logprobs", logprobs.detach())
        advantages = columns["advantages"]
        per_token = spec.policy_loss(logprobs, old, advantages, spec.clip)
        if self._importance_cap is not None:
            sampling = columns["sampling_logprobs"]
            weights = losses.importance_weights(old, sampling, self._importance_cap)
            per_token = per_token * weights
            terms["importance_weight"] = weights
        terms["policy_loss"] = per_token
        if "reference_logprobs" in columns:
            reference = columns["reference_logprobs"]
            terms["kl"] = losses.compute_kl(logprobs, reference, self._training.kl_estimator)
            per_token = per_token + self._kl_coeff * terms["kl"]
        with torch.set_grad_enabled(spec.entropy_coeff > 0):
            terms["entropy"] = compute_entropy(logits, batch)
        if spec.entropy_coeff > 0:
            per_token = per_token - spec.entropy_coeff * terms["entropy"]
        terms["clip_fraction"] = losses.is_clipped(logprobs, old, advantages, spec.clip).float()
        loss = (per_token * columns["weights"]).sum()
        return loss, self._totals(loss, terms, columns, old)

    def compute_value_loss(self, values: Tensor, batch: MicroBatch) -> tuple[Tensor, Totals]:
        """Returns the critic's loss, from a value (N,) with each sampled token, and the totals."""
        columns, training = batch.columns, self._training
        old, targets = columns["old_values"], columns["value_targets"]
        errors = losses.squared_error(values, old, targets, training.clip_range_vf)
        starts = columns["turn_starts"]
        loss = training.vf_loss_coeff * (errors * columns["value_weights"]).sum()
        sums = (errors * starts).sum().item(), int(starts.sum().item())
        return loss, Totals(loss.item(), value_loss=sums[0], num_turns=sums[1])

    def _totals(
        self, loss: Tensor, terms: Mapping[str, Tensor], columns: Mapping[str, Tensor], old: Tensor
    ) -> Totals:
        totals = Totals(loss.item(), len(old), {n: v.sum().item() for n, v in terms.items()})
        if not self._spec.is_supervised:
            mismatch = (old - columns["sampling_logprobs"]).abs()
            totals.sums["mismatch_mean"] = mismatch.sum().item()
            totals.mismatch_max = mismatch.max().item()
        return totals


def compute_episode_metrics(groups: Sequence[EpisodeGroup]) -> dict[str, float]:
    """Returns the means over all episodes, dropped groups' too, and the number of their tokens."""
    episodes = [t for group in groups for t in group.trajectories]
    return {
        "train/avg_reward": float(np.mean([t.episode_return for t in episodes])),
        "train/accuracy": float(np.mean([t.outcome is Outcome.SUCCESS for t in episodes])),
        "train/num_tokens": int(sum(t.loss_mask.sum() for t in episodes)),
    }


def compute_rewards(samples: Sequence[Sample], training: TrainingSettings) -> list[Floats]:
    """Returns each sample's rewards (turns,), less the turns' KL where that is placed there."""
    rewards = [np.array(s.trajectory.turn_rewards, np.float32) for s in samples]
    if training.kl_coeff == 0 or training.kl_placement != "reward":
        return rewards
    kls = [compute_turn_kl(sample, training) for sample in samples]
    return [r - training.kl_coeff * kl for r, kl in zip(rewards, kls, strict=True)]


def compute_turn_kl(sample: Sample, training: TrainingSettings) -> Floats:
    """Returns the KL of each turn, summed over its tokens, as the update found it: (turns,)."""
    old, reference = (sample.columns[name] for name in ("old_logprobs", "reference_logprobs"))
    kl = losses.compute_kl(torch.tensor(old), torch.tensor(reference), training.kl_estimator)
    num_turns = len(sample.trajectory.turn_ends)
    turns = turn_of_tokens(sample.trajectory)
    return np.bincount(turns, kl.numpy(), minlength=num_turns).astype(np.float32)


def _with_value_weights(sample: Sample, num_turns: float) -> Sample:
    weights = sample.columns["turn_starts"] / np.float32(num_turns)
    return replace(sample, columns={**sample.columns, "value_weights": weights})
