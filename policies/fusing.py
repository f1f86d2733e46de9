"""Fusing an adapter into the base's weights, W + scaling * B A; for engines, so without peft."""

from collections.abc import Iterator, Mapping

import torch

from agentpeft.policies.adapter_store import LORA_A, LORA_B
from agentpeft.policies.errors import EngineError
from agentpeft.policies.samples import AdapterVersion

_PREFIX = "base_model.model."


def merged_state(
    base_state: Mapping[str, torch.Tensor], adapter: AdapterVersion
) -> dict[str, torch.Tensor]:
    """Returns the weights that an adapter changes, W + scaling * B A, by the base's names.

    Computed in float32, then of the base's type. A version of all weights is returned as it is.
    Raises: EngineError where names or shapes do not fit.
    """
    check_fits({name: tuple(weight.shape) for name, weight in base_state.items()}, adapter)
    return {name: merged_weight(base_state[name], name, adapter) for name in target_names(adapter)}


def slot_state(
    state: Mapping[str, torch.Tensor], adapter: AdapterVersion, scaling: float
) -> dict[str, torch.Tensor]:
    """Returns an adapter's weights by the names that they have in a model with PEFT's layers.

    `scaling` is the layers' own. Raises: EngineError where names, shapes or scaling do not fit.
    """
    slots = {_slot_name(name): weight for name, weight in adapter.weights.items()}
    for name, weight in slots.items():
        shape = tuple(state[name].shape) if name in state else None
        if shape != weight.shape or scaling != adapter.scaling:
            own = f"{weight.shape}, scaled by {adapter.scaling:g}"
            raise EngineError(f"{adapter.name}: {name} is {shape}, by {scaling:g}, not {own}")
    return {name: torch.tensor(weight).to(state[name]) for name, weight in slots.items()}


def _slot_name(name: str) -> str:
    return name.removeprefix(_PREFIX).removesuffix(".weight") + ".default.weight"


def target_names(adapter: AdapterVersion) -> Iterator[str]:
    """Yields the base's names for the weights that an adapter changes."""
    for name in adapter.weights:
        if name.endswith(LORA_A):
            yield f"{name.removeprefix(_PREFIX).removesuffix(LORA_A)}.weight"
        elif not name.endswith(LORA_B):
            yield name


def merged_weight(base: torch.Tensor, name: str, adapter: AdapterVersion) -> torch.Tensor:
    """Returns one weight with its update, of the base's type and on its device."""
    if name in adapter.weights:
        return torch.tensor(adapter.weights[name]).to(base)
    down, up = (torch.tensor(adapter.weights[each]).to(base.device) for each in _pair(name))
    return torch.add(base.float(), up @ down, alpha=adapter.scaling).to(base.dtype)


def check_fits(shapes: Mapping[str, tuple[int, ...]], adapter: AdapterVersion) -> None:
    """Raises: EngineError where an adapter's names or shapes are not those of the base."""
    for name in target_names(adapter):
        want = _updated_shape(name, adapter)
        if shapes.get(name) != want:
            raise EngineError(f"{adapter.name}: {name} is {shapes.get(name)}, not {want}")


def _updated_shape(name: str, adapter: AdapterVersion) -> tuple[int, ...]:
    if name in adapter.weights:
        return adapter.weights[name].shape
    down, up = (adapter.weights.get(each) for each in _pair(name))
    if down is None or up is None or up.shape[-1] != down.shape[0]:
        got = [None if each is None else each.shape for each in (down, up)]
        raise EngineError(f"{adapter.name}: A and B of {name} do not fit together: {got}")
    return up.shape[0], down.shape[1]


def _pair(name: str) -> tuple[str, str]:
    module = _PREFIX + name.removesuffix(".weight")
    return module + LORA_A, module + LORA_B
