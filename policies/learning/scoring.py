"""What a model says of given tokens."""

from collections.abc import Sequence

import numpy as np
import torch

from agentpeft.policies.messages import Floats, Ids

_NUM_LOGITS = 2**23
"""About how many are made at once: with a large vocabulary, those of one sequence."""


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
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits.float()
    scores = logits.gather(-1, tokens[:, 1:, None])[..., 0] - logits.logsumexp(-1)
    rows = zip(scores.cpu().numpy(), sequences, strict=True)
    return [row[: len(ids) - 1] for row, ids in rows]
