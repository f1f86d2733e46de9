"""Segments of a row of tokens, their states, and whether a kernel attends within them rightly."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from agentpeft.policies.errors import is_out_of_memory
from agentpeft.policies.messages import Ids


@dataclass(frozen=True)
class Segment:
    """Tokens of a row that follow one another: they see `context`, and causally each other.

    Both are places in the row.
    """

    context: Ids
    tokens: Ids

    @property
    def positions(self) -> Ids:
        """The tokens' position ids: how many tokens each sees before itself."""
        return len(self.context) + np.arange(len(self.tokens))


def computed_dtype(states: Tensor) -> torch.dtype:
    """Returns the type in which attention computes with states: autocast's, or their own."""
    kind = states.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype


def as_read_by_kernels(row: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Returns states in a type, each one's last dimension without gaps."""
    cast = (each.to(dtype) for each in row)
    return [each if each.stride(-1) == 1 else each.contiguous() for each in cast]


def agrees(
    kernel: Callable[..., Tensor], reference: Callable[..., Tensor], inputs: Sequence[Tensor]
) -> bool:
    """Returns whether a kernel's results and gradients are a reference's, but for rounding.

    Both take the inputs, and make what else they want (not before, for it may be inference mode).
    The gradients are those of the results weighed by the first input. A kernel that raises does not
    agree. Raises: the error where memory ran out.
    """
    found = []
    # Hooks of its own: those of gradient checkpointing would count what is kept here
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(inputs[0].device.type, enabled=False),
        saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor),
    ):
        for compute in (kernel, reference):
            row = [each.clone().requires_grad_() for each in inputs]
            try:
                result = compute(*row)
                gradients = torch.autograd.grad(result, row, inputs[0].clone())
            except (RuntimeError, AttributeError, TypeError, ValueError) as error:
                if is_out_of_memory(error):
                    raise
                return False
            found.append([result.detach().double(), *(each.double() for each in gradients)])
    limit = 0.05 if inputs[0].dtype.itemsize < 4 else 1e-4
    return all(
        bool((one - other).abs().max() <= limit * other.abs().max().clamp(min=1))
        for one, other in zip(*found, strict=True)
    )
