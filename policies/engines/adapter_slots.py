"""An adapter's weights as layers of their own beside the base's hold them ("native" serving)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from agentpeft.policies.engines.fusing import (
    PREFIX,
    ServedEffect,
    pair_names,
    target_names,
    tensor_of,
)
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import AdapterVersion


def slot_state(
    state: Mapping[str, torch.Tensor], adapter: AdapterVersion, scaling: float
) -> tuple[dict[str, torch.Tensor], ServedEffect]:
    """Returns an adapter's weights by the names that they have in a model with PEFT's layers.

    `scaling` is the layers' own. Raises: EngineError where names, shapes or scaling do not fit.
    """
    slots = {_slot_name(name): weight for name, weight in adapter.weights.items()}
    for name, weight in slots.items():
        shape = tuple(state[name].shape) if name in state else None
        if shape != weight.shape or scaling != adapter.scaling:
            sent = f"{weight.shape}, scaled by {adapter.scaling:g}"
            raise EngineError(f"{adapter.name}: {name} is {shape}, by {scaling:g}, not {sent}")
    held = {n: tensor_of(w).to(state[_slot_name(n)]) for n, w in adapter.weights.items()}
    return {_slot_name(name): weight for name, weight in held.items()}, slot_effect(held, adapter)


def slot_effect(held: Mapping[str, torch.Tensor], adapter: AdapterVersion) -> ServedEffect:
    """Returns the effect of A and B as layers of their own hold them, by the adapter's names.

    <B' A', B A> is the sum of the elements of (B^T B') * (A A'^T): of rank * rank, never of W.
    """
    effect = ServedEffect()
    for name in target_names(adapter):
        down, up = (tensor_of(adapter.weights[key]) for key in pair_names(name))
        served_down, served_up = (held[key].cpu() for key in pair_names(name))
        factor = adapter.scaling**2
        effect.sent += factor * _inner_product(up, up, down, down)
        effect.served += factor * _inner_product(up, served_up, down, served_down)
    return effect


def _inner_product(up: Tensor, other_up: Tensor, down: Tensor, other_down: Tensor) -> float:
    """Returns <up down, other_up other_down>."""
    ups, downs = up.float().T @ other_up.float(), down.float() @ other_down.float().T
    return float((ups.double() * downs.double()).sum())


def _slot_name(name: str) -> str:
    return name.removeprefix(PREFIX).removesuffix(".weight") + ".default.weight"
