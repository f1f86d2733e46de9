"""The loss of a micro-batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agentpeft.policies.learning import losses
from agentpeft.policies.learning.algorithms import AlgorithmSpec
from agentpeft.policies.learning.loss_inputs import CriticInputs, LossInputs, Totals
from agentpeft.policies.learning.losses import spread_ratio
from agentpeft.policies.learning.samples import Sample
from agentpeft.policies.settings.config import Settings

_VALUE_COEFF = 0.5  # PPO2's: with a shared critic, the policy's loss leads
_OLDER_CAP = 2.0
"""The importance cap for samples drawn by older adapters, unless the settings name one."""


@dataclass(frozen=True)
class Outputs:
    """A pass's numbers for a micro-batch's sampled tokens, (N,) each; None: not computed.

    Log-probability and entropy (in nats) are the policy's, `values` the critic's.
    """

    logprobs: Tensor | None
    entropy: Tensor | None
    values: Tensor | None


class Objective:
    """An algorithm's loss with the settings' KL and entropy terms, and the critic's loss."""

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
        lengths = [sample.member.num_sampled_tokens for sample in minibatch]
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

    def compute(self, outputs: Outputs, inputs: LossInputs) -> tuple[Tensor, Totals]:
        """Returns the loss of all that a pass computed, and the totals."""
        parts = []
        if outputs.logprobs is not None and outputs.entropy is not None:
            parts.append(self._policy_loss(outputs.logprobs, outputs.entropy, inputs))
        if outputs.values is not None and inputs.critic is not None:
            parts.append(self._value_loss(outputs.values, inputs.critic))
        totals = Totals()
        for _, part in parts:
            totals.add(part)
        return torch.stack([loss for loss, _ in parts]).sum(), totals

    def _policy_loss(
        self, logprobs: Tensor, entropy: Tensor, inputs: LossInputs
    ) -> tuple[Tensor, Totals]:
        spec, terms = self._spec, {}
        old = logprobs.detach() if inputs.old_logprobs is None else inputs.old_logprobs
        is_spread = spec.ratio == "sequence"
        compared = spread_ratio(logprobs, old, inputs.sequences) if is_spread else old
        per_token = spec.policy_loss(logprobs, compared, inputs.advantages, spec.clip)
        if self._importance_cap is not None:
            terms["importance_weight"] = losses.importance_weights(
                old, inputs.sampling_logprobs, self._importance_cap
            )
            per_token = per_token * terms["importance_weight"]
        terms["policy_loss"] = per_token
        if inputs.reference_logprobs is not None:
            terms["kl"] = losses.compute_kl(logprobs, inputs.reference_logprobs)
            per_token = per_token + self._kl_coeff * terms["kl"]
        terms["entropy"] = entropy
        if spec.entropy_coeff > 0:
            per_token = per_token - spec.entropy_coeff * entropy
        is_clipped = losses.is_clipped(logprobs, compared, inputs.advantages, spec.clip)
        terms["clip_fraction"] = is_clipped.float()
        loss, mismatch_max = (per_token * inputs.weights).sum(), 0.0
        if not spec.is_supervised:
            terms["mismatch_mean"] = (old - inputs.sampling_logprobs).abs()
            mismatch_max = terms["mismatch_mean"].max().item()
        sums = {name: (term.sum().item(), len(term)) for name, term in terms.items()}
        return loss, Totals(loss.item(), mismatch_max, sums)

    def _value_loss(self, values: Tensor, critic: CriticInputs) -> tuple[Tensor, Totals]:
        errors = (values - critic.targets).square()
        loss = _VALUE_COEFF * (errors * critic.weights).sum()
        num_turns = int(critic.turn_starts.sum().item())
        value_loss = (errors * critic.turn_starts).sum().item(), num_turns
        return loss, Totals(loss.item(), sums={"value_loss": value_loss})
