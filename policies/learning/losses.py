"""Losses per sampled token: pure functions of flat tensors (N,), without padding or masks.

`compute_token_weights` settles what a token weighs over the whole minibatch, before it is cut. The
loss of a micro-batch is then a plain weighted sum, and these sums add up to the minibatch's loss
however it was cut.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

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


def compute_kl(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Returns Schulman's estimate k3 of KL(policy, reference) at each sampled token.

    Of his three it is the one that is unbiased and has a low variance.
    Source: joschu.net/blog/kl-approx.html.
    """
    delta = reference_logprobs - logprobs
    return torch.expm1(delta) - delta


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


def spread_ratio(logprobs: Tensor, old_logprobs: Tensor, sequences: Tensor) -> Tensor:
    """Returns old log-probabilities (N,) that give every token its sequence's ratio (GSPO).

    `sequences`, (N,), numbers each token's sequence from 0. Its ratio is the geometric mean of its
    tokens' ratios: (pi(y) / pi_old(y)) ** (1 / |y|). A token's gradient still flows through its own
    log-probability, so a loss that averages over each sequence's tokens has the gradient of GSPO's
    sequence loss.
    Source: Zheng et al. 2025, "Group Sequence Policy Optimization", eq. 7 and 14.
    """
    current = logprobs.detach()
    counts = torch.bincount(sequences)
    sums = current.new_zeros(len(counts)).index_add(0, sequences, current - old_logprobs)
    return current - (sums / counts)[sequences]
