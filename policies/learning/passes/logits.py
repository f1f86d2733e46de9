"""Logits and states of a micro-batch, only at the positions that predict a sampled token."""

from typing import Any

from torch import Tensor, nn

from agentpeft.policies.learning.passes.micro_batches import MicroBatch


def compute_logits(
    model: nn.Module, head: nn.Module, batch: MicroBatch, has_logits: bool = True
) -> tuple[Tensor, Tensor]:
    """Returns the logits (U, V), float32, of the needed positions, and their states (U, H).

    The states are what `head`, the output layer, reads. Without `has_logits` that layer computes
    nothing, and the logits are (0, V). A packed batch runs under `packed_attention`. What the model
    does after the output layer (soft caps, scales) still happens.
    """
    states: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        del module
        states.append(args[0].flatten(0, 1).index_select(0, batch.needed))
        return (states[-1][None] if has_logits else states[-1][None, :0],)

    extra: dict[str, Any] = {}
    if batch.packing is not None:
        extra = {"position_ids": batch.position_ids, "packing": batch.packing}
    handle = head.register_forward_pre_hook(keep)
    try:
        logits = model(input_ids=batch.token_ids, use_cache=False, **extra).logits[0]
    finally:
        handle.remove()
    return logits.float(), states[0]
