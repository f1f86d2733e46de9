"""Which episodes of an update are recorded token by token, and how."""

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from agentpeft.policies.learning.batches import Sample
from agentpeft.policies.messages import EpisodeGroup, TokenRecord


def choose_extremes(samples: Sequence[Sample]) -> list[Sample]:
    """Returns the samples of the two lowest and the two highest mean advantages."""
    ranked = sorted(samples, key=lambda sample: float(sample.columns["advantages"].mean()))
    return ranked[:2] + ranked[2:][-2:]


def to_token_record(
    group: EpisodeGroup, sample: Sample, tokenizer: PreTrainedTokenizerBase
) -> TokenRecord:
    """Returns the record of a group's sample, which has the column `updated_logprobs`."""
    played, columns = sample.trajectory, sample.columns
    ratios = np.exp(columns["updated_logprobs"] - columns["sampling_logprobs"])
    return TokenRecord(
        group_id=group.group_id,
        sample=next(i for i, t in enumerate(group.trajectories) if t is played),
        adapter_version=group.adapter_version,
        prompt=str(tokenizer.decode(played.prompt_ids.tolist())),
        tokens=tuple(map(str, tokenizer.batch_decode(played.token_ids[:, None].tolist()))),
        loss_mask=tuple(played.loss_mask.astype(int).tolist()),
        advantages=tuple(np.round(columns["advantages"].astype(float), 4).tolist()),
        ratios=tuple(np.round(ratios.astype(float), 4).tolist()),
    )
