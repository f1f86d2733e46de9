"""Whether an attention kernel computes what it should on this machine: `agrees`."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from agentpeft.policies.errors import is_out_of_memory


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
