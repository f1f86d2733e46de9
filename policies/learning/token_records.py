"""Which episodes of an update are recorded token by token, and how."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from agentpeft.policies.learning.samples import Sample
from agentpeft.policies.messages import EpisodeGroup, Floats, TokenRecord


@dataclass(frozen=True)
class UpdatedSample:
    """A sample after the update: its tokens' log-probabilities, (N,), under the new weights."""

    sample: Sample
    updated_logprobs: Floats


def choose_extremes(samples: Sequence[Sample]) -> list[Sample]:
    """Returns the samples of the two lowest and the two highest mean advantages."""
    ranked = sorted(samples, key=lambda sample: float(sample.advantages.mean()))
    return ranked[:2] + ranked[2:][-2:]


def to_token_record(
    group: EpisodeGroup, updated: UpdatedSample, tokenizer: PreTrainedTokenizerBase
) -> TokenRecord:
    """Returns the record of a sample of `group`."""
    sample, played = updated.sample, updated.sample.member.trajectory
    logprobs = played.sampling_logprobs[played.loss_mask]
    ratios = np.exp(updated.updated_logprobs - logprobs)
    return TokenRecord(
        group_id=group.group_id,
        sample=sample.member.index,
        adapter_version=group.adapter_version,
        prompt=str(tokenizer.decode(played.prompt_ids.tolist())),
        tokens=tuple(map(str, tokenizer.batch_decode(played.token_ids[:, None].tolist()))),
        loss_mask=tuple(played.loss_mask.astype(int).tolist()),
        advantages=tuple(np.round(sample.advantages.astype(float), 4).tolist()),
        sampling_logprobs=tuple(np.round(logprobs.astype(float), 7).tolist()),
        ratios=tuple(np.round(ratios.astype(float), 4).tolist()),
    )
