"""Losses per sampled token: pure functions of flat tensors (N,), without padding or masks.

`compute_token_weights` settles what a token weighs over the whole minibatch, before it is cut. The
loss of a micro-batch is then a plain weighted sum, and these sums add up to the minibatch's loss
however it was cut.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from agentpeft.policies.settings.training import Normalization


class ClipRange(NamedTuple):
    """The ratio is kept in [1 - low, 1 + high]; high > low is DAPO's clip-higher."""

    low: float
    high: float


PolicyLoss: TypeAlias = Callable[[Tensor, Tensor, Tensor, ClipRange], Tensor]


def policy_gradient(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip: ClipRange
) -> Tensor:
    """Returns -logprob * advantage (REINFORCE); with advantages of 1, the cross entropy."""
    del old_logprobs, clip
    return -logprobs * advantages


def clipped_ratio(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip: ClipRange
) -> Tensor:
    """Returns PPO's pessimistic objective, negated: ratio 1.5, advantage 1, clip .2 -> -1.2.

    Source: Schulman et al. 2017, eq. 7; Yu et al. 2025 (DAPO), eq. 10.
    """
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1 - clip.low, 1 + clip.high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def clipped_weight(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip: ClipRange
) -> Tensor:
    """Returns -logprob * advantage times the clipped ratio, which has no gradient (CISPO).

    Every token keeps its gradient, however far it has moved; the clip bounds only its weight.
    Ratio 7, advantage 1, clip (1, 4): the gradient of -5 * logprob.
    Source: MiniMax 2025, "MiniMax-M1", eq. 4 and 5.
    """
    weight = (logprobs.detach() - old_logprobs).exp().clamp(1 - clip.low, 1 + clip.high)
    return -weight * advantages * logprobs


def is_clipped(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip: ClipRange
) -> Tensor:
    """Returns whether a token's ratio has passed the clip on the side its advantage favours."""
    ratio = (logprobs - old_logprobs).exp()
    above = (ratio > 1 + clip.high) & (advantages > 0)
    return above | ((ratio < 1 - clip.low) & (advantages < 0))


def squared_error(
    values: Tensor, old_values: Tensor, targets: Tensor, clip_range: float | None
) -> Tensor:
    """Returns the larger of two squared errors: of the value, and of the value clipped.

    Clipped, it is within `clip_range` of the old value. Value 1, old value 0, target 1, clip range
    .2: the error of .2, which is .64. None does not clip.
    Source: OpenAI Baselines' PPO2; Stable-Baselines3 (clip_range_vf), which takes that of .2 alone.
    """
    error = (values - targets).square()
    if clip_range is None:
        return error
    clipped = old_values + (values - old_values).clamp(-clip_range, clip_range)
    return torch.maximum(error, (clipped - targets).square())


def compute_kl(
    logprobs: Tensor, reference_logprobs: Tensor, estimator: Literal["k1", "k2", "k3"]
) -> Tensor:
    """Returns Schulman's estimate of KL(policy, reference) at each sampled token.

    k1 has no useful gradient as a loss (its expectation is zero): it is for rewards.
    Source: joschu.net/blog/kl-approx.html.
    """
    delta = reference_logprobs - logprobs
    if estimator == "k1":
        return -delta
    return delta.square() / 2 if estimator == "k2" else torch.expm1(delta) - delta


def importance_weights(old_logprobs: Tensor, sampling_logprobs: Tensor, cap: float) -> Tensor:
    """Returns min(learner / engine probability, cap): truncated importance sampling.

    Source: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL".
    """
    return (old_logprobs - sampling_logprobs).exp().clamp(max=cap)


def compute_token_weights(
    normalization: Normalization, lengths: Sequence[int], constant: int
) -> list[float]:
    """Returns what each sampled token of sequences of these lengths weighs in the loss.

    token: 1 / all tokens (DAPO). sequence: 1 / (its length * sequences) (GRPO). constant:
    1 / (constant * sequences) (Dr. GRPO). Lengths [1, 3], by token: [.25, .25].
    """
    total, count = sum(lengths), sum(length > 0 for length in lengths)
    scales = {
        "token": [total] * len(lengths),
        "sequence": [count * length for length in lengths],
        "constant": [count * constant] * len(lengths),
    }
    return [1 / max(scale, 1) for scale in scales[normalization]]


def sequence_means(values: Tensor, sequences: Tensor) -> Tensor:
    """Returns for each token the mean of `values` (N,) over its sequence.

    `sequences`, (N,), numbers each token's sequence from 0. Values [1, 2, 3], sequences [0, 0, 1]:
    [1.5, 1.5, 3].
    """
    counts = torch.bincount(sequences)
    sums = values.new_zeros(len(counts)).index_add(0, sequences, values)
    return (sums / counts)[sequences]


def spread_ratio(logprobs: Tensor, old_logprobs: Tensor, sequences: Tensor) -> Tensor:
    """Returns old log-probabilities (N,) that give every token its sequence's ratio (GSPO).

    That ratio is the geometric mean of the tokens' ratios: (pi(y) / pi_old(y)) ** (1 / |y|). A
    token's gradient still flows through its own log-probability, so a loss that averages over
    each sequence's tokens has the gradient of GSPO's sequence loss.
    Source: Zheng et al. 2025, "Group Sequence Policy Optimization", eq. 7 and 14.
    """
    current = logprobs.detach()
    return current - sequence_means(current - old_logprobs, sequences)


def is_trusted(
    old_logprobs: Tensor,
    sampling_logprobs: Tensor,
    sequences: Tensor,
    max_token_mismatch: float | None,
    max_sequence_mismatch: float | None,
) -> Tensor:
    """Returns which tokens (N,) learner and engine agree on well enough to learn from.

    A token is left out if the ratio of its two probabilities is outside [1 / c, c] with c
    `max_token_mismatch`; a whole sequence if the geometric mean of its tokens' ratios is outside
    that range of `max_sequence_mismatch`. None bounds nothing. Ratios [3, 1], bound 2 by token:
    [False, True]; by sequence (the mean is 1.73): [True, True].
    Source: Ling Team 2025, "Every Step Evolves" (IcePop, by token); Liu et al. 2025, "When Speed
    Kills Stability" (by the geometric mean of a sequence).
    """
    mismatch = old_logprobs - sampling_logprobs
    trusted = torch.ones_like(mismatch, dtype=torch.bool)
    if max_token_mismatch is not None:
        trusted &= mismatch.abs() <= math.log(max_token_mismatch)
    if max_sequence_mismatch is not None:
        mean = sequence_means(mismatch, sequences)
        trusted &= mean.abs() <= math.log(max_sequence_mismatch)
    return trusted
