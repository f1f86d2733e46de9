"""The loss of a micro-batch, and the sums that the metrics are made of."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from agentpeft.policies.learning import losses
from agentpeft.policies.learning.algorithms import AlgorithmSpec
from agentpeft.policies.learning.options.sequences import is_trusted, spread_ratio
from agentpeft.policies.learning.samples import Sample
from agentpeft.policies.messages import Floats
from agentpeft.policies.settings.config import Settings

_OLDER_CAP = 2.0
"""The importance cap for samples drawn by older adapters, unless the settings name one."""


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


@dataclass(frozen=True)
class PolicyOutputs:
    """Log-probability and entropy (in nats) of the policy at each sampled token, (N,) each."""

    logprobs: Tensor
    entropy: Tensor


@dataclass(frozen=True)
class Outputs:
    """What a pass says of a micro-batch's sampled tokens; `values`: the critic's, (N,).

    None: the pass does not compute it.
    """

    policy: PolicyOutputs | None
    values: Tensor | None


@dataclass(frozen=True)
class WeightedSample:
    """A sample of a minibatch, and what each of its tokens and turns weighs in the losses."""

    sample: Sample
    token_weight: float
    turn_weight: float


@dataclass(frozen=True)
class CriticInputs:
    """`CriticTargets` of a micro-batch, with each token's weight in the value loss; (N,) each."""

    old_values: Tensor
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


def make_loss_inputs(weighted: Sequence[WeightedSample], device: torch.device) -> LossInputs:
    """Returns the samples' numbers, one sample after the other."""
    samples = [each.sample for each in weighted]
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
            old_values=join(t.old_values for t in targets),
            targets=join(t.targets for t in targets),
            turn_starts=turn_starts,
            weights=turn_starts * spread(each.turn_weight for each in weighted),
        )
    return LossInputs(
        sampling_logprobs=join(t.sampling_logprobs[t.loss_mask] for t in trajectories),
        advantages=join(s.advantages for s in samples),
        weights=spread(each.token_weight for each in weighted),
        sequences=torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)).to(device),
        old_logprobs=join(old) if old else None,
        reference_logprobs=join(reference) if reference else None,
        critic=critic,
    )


class Objective:
    """An algorithm's loss with the settings' KL and entropy terms, and the critic's loss."""

    def __init__(self, settings: Settings, spec: AlgorithmSpec) -> None:
        """`spec` has the settings' overrides."""
        self._training, self._spec = settings.training, spec
        self._constant = settings.env_runners.max_new_tokens
        in_loss = settings.training.kl_placement == "loss"
        self._kl_coeff = settings.training.kl_coeff if in_loss else 0.0
        may_be_older = settings.max_adapter_lag > 0 or settings.training.num_replay_tasks > 0
        default = _OLDER_CAP if may_be_older and not spec.is_supervised else None
        self._importance_cap = settings.training.importance_cap or default

    def weigh(self, minibatch: Sequence[Sample]) -> list[WeightedSample]:
        """Settles the weights over the minibatch; drops samples that cannot have a gradient."""
        lengths = [sample.member.num_sampled_tokens for sample in minibatch]
        weights = losses.compute_token_weights(self._spec.normalization, lengths, self._constant)
        num_turns = sum(int(s.critic.turn_starts.sum()) for s in minibatch if s.critic is not None)
        return [
            WeightedSample(sample, weight, 1 / max(num_turns, 1))
            for sample, weight in zip(minibatch, weights, strict=True)
            if self.can_learn(sample) or num_turns > 0
        ]

    def can_learn(self, sample: Sample) -> bool:
        """Returns whether a sample's tokens can have a gradient, whatever its old scores."""
        return self._kl_coeff > 0 or self._spec.entropy_coeff > 0 or bool(sample.advantages.any())

    def compute(self, outputs: Outputs, inputs: LossInputs) -> tuple[Tensor, Totals]:
        """Returns the loss of all that a pass computed, and the totals."""
        parts = []
        if outputs.policy is not None:
            parts.append(self._policy_loss(outputs.policy, inputs))
        if outputs.values is not None and inputs.critic is not None:
            parts.append(self._value_loss(outputs.values, inputs.critic))
        totals = Totals()
        for _, part in parts:
            totals.add(part)
        return torch.stack([loss for loss, _ in parts]).sum(), totals

    def _policy_loss(self, policy: PolicyOutputs, inputs: LossInputs) -> tuple[Tensor, Totals]:
        spec, terms, logprobs = self._spec, {}, policy.logprobs
        old = logprobs.detach() if inputs.old_logprobs is None else inputs.old_logprobs
        is_spread = spec.ratio == "sequence"
        compared = spread_ratio(logprobs, old, inputs.sequences) if is_spread else old
        per_token = spec.policy_loss(logprobs, compared, inputs.advantages, spec.clip)
        if self._importance_cap is not None:
            terms["importance_weight"] = losses.importance_weights(
                old, inputs.sampling_logprobs, self._importance_cap
            )
            per_token = per_token * terms["importance_weight"]
        bounds = self._training.max_token_mismatch, self._training.max_sequence_mismatch
        if bounds != (None, None):
            trusted = is_trusted(old, inputs.sampling_logprobs, inputs.sequences, *bounds)
            per_token = torch.where(trusted, per_token, 0.0)
            terms["masked_fraction"] = 1 - trusted.float()
        terms["policy_loss"] = per_token
        if inputs.reference_logprobs is not None:
            terms["kl"] = losses.compute_kl(
                logprobs, inputs.reference_logprobs, self._training.kl_estimator
            )
            per_token = per_token + self._kl_coeff * terms["kl"]
        terms["entropy"] = policy.entropy
        if spec.entropy_coeff > 0:
            per_token = per_token - spec.entropy_coeff * policy.entropy
        is_clipped = losses.is_clipped(logprobs, compared, inputs.advantages, spec.clip)
        terms["clip_fraction"] = is_clipped.float()
        loss, mismatch_max = (per_token * inputs.weights).sum(), 0.0
        if not spec.is_supervised:
            terms["mismatch_mean"] = (old - inputs.sampling_logprobs).abs()
            mismatch_max = terms["mismatch_mean"].max().item()
        sums = {name: (term.sum().item(), len(term)) for name, term in terms.items()}
        return loss, Totals(loss.item(), mismatch_max, sums)

    def _value_loss(self, values: Tensor, critic: CriticInputs) -> tuple[Tensor, Totals]:
        errors = losses.squared_error(
            values, critic.old_values, critic.targets, self._training.clip_range_vf
        )
        loss = self._training.vf_loss_coeff * (errors * critic.weights).sum()
        num_turns = int(critic.turn_starts.sum().item())
        value_loss = (errors * critic.turn_starts).sum().item(), num_turns
        return loss, Totals(loss.item(), sums={"value_loss": value_loss})
