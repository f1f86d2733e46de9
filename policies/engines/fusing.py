"""An adapter fused into the base's weights.

Fused weights of 16 bits are rounded at random, by a pattern that stays the same, so that they are
right on average. Rounded to the nearest, nearly all of a first step would be lost: at a learning
rate of 1e-5 it changes a weight by less than a tenth of its last digit.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from zlib import crc32

import torch
from torch import Tensor

from agentpeft.policies.delivery.version import LORA_A, LORA_B
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import AdapterVersion, Bits, Floats

PREFIX = "base_model.model."


@dataclass
class ServedEffect:
    """Sums over all weights that an adapter changes, of (change served * change sent) and sent^2.

    The change sent is what the learner has, in float32: scaling * B A.
    """

    served: float = 0.0
    sent: float = 0.0

    @property
    def share(self) -> float:
        """The share of the change that is served: 1 all, 0 none; NaN where nothing changes."""
        return self.served / self.sent if self.sent else math.nan

    def add(self, served: torch.Tensor, sent: torch.Tensor) -> None:
        """Counts a weight's change as it is served, and as it was sent."""
        self.served += float((served * sent).sum(dtype=torch.float64))
        self.sent += float(sent.square().sum(dtype=torch.float64))


def merged_state(
    base_state: Mapping[str, torch.Tensor], adapter: AdapterVersion
) -> tuple[dict[str, torch.Tensor], ServedEffect]:
    """Returns the weights that an adapter changes, W + scaling * B A, by the base's names.

    Computed in float32, then of the base's type. Raises: EngineError where names or shapes do not
    fit.
    """
    check_fits({name: tuple(weight.shape) for name, weight in base_state.items()}, adapter)
    effect = ServedEffect()
    names = target_names(adapter)
    return {n: merged_weight(base_state[n], n, adapter, effect) for n in names}, effect


def tensor_of(weight: Floats | Bits) -> Tensor:
    """Returns an adapter's weight as a tensor of its own, float32 or bfloat16."""
    tensor = torch.tensor(weight)
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor


def target_names(adapter: AdapterVersion) -> Iterator[str]:
    """Yields the base's names for the weights that an adapter changes."""
    for name in adapter.weights:
        if name.endswith(LORA_A):
            yield f"{name.removeprefix(PREFIX).removesuffix(LORA_A)}.weight"
        elif not name.endswith(LORA_B):
            yield name


def merged_weight(
    base: torch.Tensor, name: str, adapter: AdapterVersion, effect: ServedEffect
) -> torch.Tensor:
    """Returns a weight with its change, of the base's type and on its device; adds to `effect`."""
    before = base.float()
    if name in adapter.weights:
        after = tensor_of(adapter.weights[name]).to(before)
        sent = after - before
    else:
        down, up = (tensor_of(adapter.weights[key]).to(before) for key in pair_names(name))
        sent = (up @ down).mul_(adapter.scaling)
        after = before + sent
    merged = _rounded(after, base.dtype, name)
    effect.add(merged.float() - before, sent)
    return merged


def _rounded(weight: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
    """Returns a float32 weight in another type, in bfloat16 up or down as chance and its rest say.

    What bfloat16 can say stays as it is. The chances follow from the name alone, so a weight
    that grows from version to version changes once, when it is due.
    """
    if dtype != torch.bfloat16:
        return weight.to(dtype)
    chance = torch.Generator(weight.device).manual_seed(crc32(name.encode()))
    bits = weight.view(torch.int32)  # of which bfloat16 keeps the upper half
    rest = torch.empty_like(bits).random_(1 << 16, generator=chance)
    return bits.add(rest).bitwise_and(-(1 << 16)).view(torch.float32).to(dtype)


def check_fits(shapes: Mapping[str, tuple[int, ...]], adapter: AdapterVersion) -> None:
    """Raises: EngineError where an adapter's names or shapes are not those of the base."""
    for name in target_names(adapter):
        pair = [adapter.weights.get(key) for key in pair_names(name)]
        match [None if weight is None else weight.shape for weight in pair]:
            case [None, None]:
                want = adapter.weights[name].shape
            case [(rank, num_in), (num_out, same)] if rank == same:
                want = num_out, num_in
            case got:
                raise EngineError(f"{adapter.name}: A and B of {name} do not fit together: {got}")
        if shapes.get(name) != want:
            raise EngineError(f"{adapter.name}: {name} is {shapes.get(name)}, not {want}")


def pair_names(name: str) -> tuple[str, str]:
    """Returns the adapter's names of A and B for a weight of the base."""
    module = PREFIX + name.removesuffix(".weight")
    return module + LORA_A, module + LORA_B
