"""Numbers of whole sequences: GSPO's ratio, and which sequences and tokens are learnt from."""

import math

import torch
from torch import Tensor


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
