"""What a model says of given tokens."""

from collections.abc import Sequence

import torch

from agentpeft.policies.samples import Floats, Ids


@torch.no_grad()
def score_sequences(model: torch.nn.Module, sequences: Sequence[Ids]) -> list[Floats]:
    """Returns the log-probabilities (T - 1,) of each sequence's tokens but the first.

    At temperature 1, in float32 from the logits on; one sequence at a time, since logits are large.
    """
    return [_score(model, ids) for ids in sequences]


def _score(model: torch.nn.Module, ids: Ids) -> Floats:
    tokens = torch.from_numpy(ids).to(next(model.parameters()).device)
    logits = model(input_ids=tokens[None, :-1], use_cache=False).logits[0].float()
    found: Floats = logits.log_softmax(-1).gather(-1, tokens[1:, None])[:, 0].cpu().numpy()
    return found
