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

import torch
from torch import Tensor

MAX_EXACT = 1024
"""The smaller side of a matrix up to which all its singular vectors are computed."""
_NUM_POWER_ITERATIONS = 16
"""For larger ones, as in PEFT's `pissa_niter_16`."""


@torch.no_grad()
def begin_at_principal_components(weight: Tensor, down: Tensor, up: Tensor, scaling: float) -> None:
    """Sets an adapter's A (2r, in) and B (out, 2r) and their gradients, over `weight` (out, in).

    `scaling` is what B A is multiplied by. It uses torch's global random state. Raises: ValueError
    if `weight` has fewer than r singular values.
    """
    rank = len(down) // 2
    if rank > min(weight.shape):
        raise ValueError(f"needs a rank <= {min(weight.shape)}, the singular values, got {rank}")
    first_up, first_down = _decompose(weight.float(), rank, scaling)
    down.copy_(torch.cat([first_down, torch.zeros_like(first_down)]))
    up.copy_(torch.cat([torch.zeros_like(first_up), first_up], dim=1))
    down.register_hook(_of_change_alone)  # type: ignore[no-untyped-call]
    up.register_hook(_of_both_halves)  # type: ignore[no-untyped-call]


def _decompose(weight: Tensor, rank: int, scaling: float) -> tuple[Tensor, Tensor]:
    """Returns B0 (out, r) and A0 (r, in): scaling * B0 A0 is the closest to `weight` (out, in)."""
    if min(weight.shape) <= MAX_EXACT:
        left, values, right = torch.linalg.svd(weight, full_matrices=False)
        left, values, right = left[:, :rank], values[:rank], right[:rank].T
    else:
        left, values, right = torch.svd_lowrank(weight, q=rank, niter=_NUM_POWER_ITERATIONS)
    roots = (values / scaling).sqrt()
    return left * roots, (right * roots).T


def _of_change_alone(gradient: Tensor) -> Tensor:
    first, change = gradient.chunk(2)
    return torch.cat([torch.zeros_like(first), change])


def _of_both_halves(gradient: Tensor) -> Tensor:
    first, second = gradient.chunk(2, dim=1)
    return (first + second).repeat(1, 2)
