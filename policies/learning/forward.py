"""A micro-batch through the model: what the model says of each of its sampled tokens.

Logits (U, V) are the largest tensors of an update. Only `compute_entropy` and
`scoring.token_logprobs` read them; the loss sees one number per sampled token.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer

from agentpeft.policies.learning.batches import MicroBatch

_NUM_ENTROPY_LOGITS = 2**22


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


def compute_logits(
    model: nn.Module, head: nn.Module, batch: MicroBatch, has_logits: bool = True
) -> tuple[Tensor, Tensor]:
    """Returns the logits (U, V), float32, of the needed positions, and their states (U, H).

    The states are what `head`, the output layer, reads. Without `has_logits` that layer computes
    nothing, and the logits are (0, V).
    """
    logits: list[Tensor] = []
    states: list[Tensor] = []
    extra: dict[str, Any] = {"use_cache": False}
    if batch.prompt_ids.numel():
        with _only_positions(head, batch.needed_prompts, states, has_logits):
            output = model(input_ids=batch.prompt_ids, use_cache=True)
        logits.append(output.logits[0])
        cache = output.past_key_values
        cache.batch_select_indices(batch.row_prompts)  # each row gets its prompt's keys and values
        extra = {"use_cache": True, "past_key_values": cache, **_places_after_prompts(batch)}
    if batch.row_ids.numel():
        with _only_positions(head, batch.needed_rows, states, has_logits):
            output = model(input_ids=batch.row_ids, **extra)
        logits.append(output.logits[0])
    return torch.cat(logits).float(), torch.cat(states)


def compute_entropy(logits: Tensor, batch: MicroBatch) -> Tensor:
    """Returns the entropy (N,), in nats, of the distribution at each sampled token.

    Without gradients a few rows at a time, so that a large vocabulary takes no more memory.
    """
    if torch.is_grad_enabled() and logits.requires_grad:
        logprobs = logits.log_softmax(-1)
        return -(logprobs.exp() * logprobs).sum(-1)[batch.slots]
    parts = torch.split(logits.detach(), max(1, _NUM_ENTROPY_LOGITS // logits.shape[1]))
    return torch.cat([torch.special.entr(part.softmax(-1)).sum(-1) for part in parts])[batch.slots]


def can_share_prompts(config: PretrainedConfig) -> bool:
    """Returns whether the model caches plain keys and values, which rows can select from."""
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers)


@contextmanager
def _only_positions(
    head: nn.Module, positions: Tensor, states: list[Tensor], has_logits: bool
) -> Iterator[None]:
    """Lets the output layer see only the flat `positions` of its input: (B, T, H) -> (1, U, H).

    Appends them to `states`, (U, H). Without `has_logits` the layer sees no position at all. What
    the model does after that layer (soft caps, scales) still happens.
    """

    def keep(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        del module
        states.append(args[0].flatten(0, 1).index_select(0, positions))
        return (states[-1][None] if has_logits else states[-1][None, :0],)

    handle = head.register_forward_pre_hook(keep)
    try:
        yield
    finally:
        handle.remove()


def _places_after_prompts(batch: MicroBatch) -> dict[str, Tensor]:
    """Returns the rows' position ids, and a mask that hides the padding of their prompts."""
    lengths = batch.prompt_lengths[batch.row_prompts]
    num_columns = batch.row_ids.shape[1]
    steps = torch.arange(num_columns, device=lengths.device)
    columns = torch.arange(batch.prompt_ids.shape[1], device=lengths.device)
    seen = torch.cat([columns < lengths[:, None], torch.ones_like(batch.row_ids).bool()], dim=1)
    return {"position_ids": lengths[:, None] + steps, "attention_mask": seen.long()}
