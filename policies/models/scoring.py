"""Log-probabilities and entropies from logits, and the scores of whole sequences."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from agentpeft.policies.messages import Floats, Ids

_NUM_LOGITS = 2**23
"""About how many logits are made at once: with a large vocabulary, those of one sequence."""


def token_logprobs(logits: Tensor, rows: Tensor, targets: Tensor) -> Tensor:
    """Returns the log-probability (N,) of each of `targets` (N,), at temperature 1.

    Row `rows[i]` of `logits` (U, V) predicts target i; several targets may share a row.
    """
    return logits[rows, targets] - logits.logsumexp(-1)[rows]


def token_entropy(logits: Tensor, rows: Tensor) -> Tensor:
    """Returns the entropy (N,), in nats, of the distributions in `rows` (N,) of logits (U, V).

    Without gradients a few rows at a time, so that a large vocabulary takes no more memory.
    """
    if torch.is_grad_enabled() and logits.requires_grad:
        logprobs = logits.log_softmax(-1)
        return -(logprobs.exp() * logprobs).sum(-1)[rows]
    parts = torch.split(logits.detach(), max(1, _NUM_LOGITS // logits.shape[1]))
    return torch.cat([torch.special.entr(part.softmax(-1)).sum(-1) for part in parts])[rows]


def score_sequences(
    model: torch.nn.Module, vocab_size: int, sequences: Sequence[Ids]
) -> list[Floats]:
    """Returns the log-probabilities (T - 1,) of each sequence's tokens but the first.

    At temperature 1, in float32 from the logits on. The model's attention must be causal.
    """
    longest = max(map(len, sequences))
    step = max(1, _NUM_LOGITS // (vocab_size * longest))
    parts = [_score(model, sequences[i : i + step]) for i in range(0, len(sequences), step)]
    return [row for part in parts for row in part]


@torch.no_grad()
def _score(model: torch.nn.Module, sequences: Sequence[Ids]) -> list[Floats]:
    """Runs sequences together, padded on the right, where no token sees the padding."""
    longest = max(map(len, sequences))
    padded = np.stack([np.pad(ids, (0, longest - len(ids))) for ids in sequences])
    tokens = torch.from_numpy(padded).to(next(model.parameters()).device)
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits.float().flatten(0, 1)
    rows = torch.arange(len(logits), device=logits.device)
    logprobs = token_logprobs(logits, rows, tokens[:, 1:].flatten()).view(len(sequences), -1)
    pairs = zip(logprobs.cpu().numpy(), sequences, strict=True)
    return [row[: len(ids) - 1] for row, ids in pairs]
