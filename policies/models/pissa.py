"""PiSSA: an adapter that begins at the principal components of the weights that it changes.

PiSSA trains W_rest + s B A, where s B0 A0, the best approximation of W of rank r, is taken out of
W: W_rest = W - s B0 A0. Done so, engines would need W_rest too, and in bfloat16 the start would no
longer be W. Here W stays, and the adapter is what training has changed. With B = B0 + dB and
A = A0 + dA that is, without a difference of large numbers,

    s (B A - B0 A0) = s [dB | B0 + dB] [A0; dA],

a plain LoRA adapter of rank 2r. It begins at dB = 0 and dA = 0, so at exactly W, and is saved,
delivered and merged like any other. Two rules for gradients make its training PiSSA's:

* A0, the first r rows of the adapter's A, gets none.
* Both halves of its B get the sum of both gradients, which is that of dB. Adam steps by the
  gradients alone, so it takes the same steps in both, and they stay B0 apart.

A gradient's norm (`training.max_grad_norm`) counts dB twice.

Source: Meng et al. 2024, "PiSSA: Principal Singular Values and Singular Vectors Adaptation of
Large Language Models".
"""

from typing import cast

import torch
from peft import PeftModel
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from torch import nn

from agentpeft.envs import SettingsError

MAX_EXACT = 1024
"""The smaller side of a matrix up to which all its singular vectors are computed."""
_NUM_POWER_ITERATIONS = 16
"""For larger ones, as in PEFT's `pissa_niter_16`."""


def begin_at_principal_components(model: PeftModel, adapter: str) -> None:
    """Sets an adapter of an even rank 2r to PiSSA's start, and its gradients to PiSSA's.

    It uses torch's global random state. Raises: SettingsError on layers of other kinds than linear
    ones, or with fewer than r inputs or outputs.
    """
    for name, layer in model.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        if not isinstance(layer, LoraLinear):
            raise SettingsError(f"lora.use_pissa is for linear layers, and {name} is none")
        down = cast(nn.Linear, layer.lora_A[adapter]).weight
        up = cast(nn.Linear, layer.lora_B[adapter]).weight
        rank = len(down) // 2
        weight = cast(torch.Tensor, layer.get_base_layer().weight)
        if rank > min(weight.shape):
            raise SettingsError(
                f"lora.use_pissa needs lora.rank <= {min(weight.shape)}, the singular values of "
                f"{name}, got {rank}"
            )
        first_up, first_down = _decompose(weight.detach().float(), rank, layer.scaling[adapter])
        with torch.no_grad():
            down.copy_(torch.cat([first_down, torch.zeros_like(first_down)]))
            up.copy_(torch.cat([torch.zeros_like(first_up), first_up], dim=1))
        down.register_hook(_of_change_alone)  # type: ignore[no-untyped-call]
        up.register_hook(_of_both_halves)  # type: ignore[no-untyped-call]


def _decompose(
    weight: torch.Tensor, rank: int, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns B0 (out, r) and A0 (r, in): scaling * B0 A0 is the closest to `weight` (out, in)."""
    if min(weight.shape) <= MAX_EXACT:
        left, values, right = torch.linalg.svd(weight, full_matrices=False)
        left, values, right = left[:, :rank], values[:rank], right[:rank].T
    else:
        left, values, right = torch.svd_lowrank(weight, q=rank, niter=_NUM_POWER_ITERATIONS)
    roots = (values / scaling).sqrt()
    return left * roots, (right * roots).T


def _of_change_alone(gradient: torch.Tensor) -> torch.Tensor:
    first, change = gradient.chunk(2)
    return torch.cat([torch.zeros_like(first), change])


def _of_both_halves(gradient: torch.Tensor) -> torch.Tensor:
    first, second = gradient.chunk(2, dim=1)
    return (first + second).repeat(1, 2)
