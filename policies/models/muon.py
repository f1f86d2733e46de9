"""Muon in float32: orthogonalized momentum for matrices."""

import math
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_MOMENTUM = 0.95
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # the steepest at zero: small singular values grow first
_NUM_STEPS = 5


class Float32Muon(Optimizer):
    """torch's `Muon(weight_decay, adjust_lr_fn="match_rms_adamw")`, but for its type of numbers.

    torch's multiplies in bfloat16, which takes 26 times as long as float32 on processors that have
    no instructions for it, and rounds otherwise on others.
    Source: https://kellerjordan.github.io/posts/muon, with the step's size of arXiv:2502.16982.
    """

    def __init__(
        self, matrices: Iterable[Any], lr: float, weight_decay: float, pool: Executor
    ) -> None:
        """`pool`'s threads each orthogonalize a matrix."""
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})
        self._pool = pool

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Changes all matrices in place."""
        del closure
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            ahead = [self._look_ahead(weight, weight.grad) for weight in weights]
            directions = self._pool.map(orthogonalize, ahead)
            for weight, direction in zip(weights, directions, strict=True):
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(direction, alpha=group["lr"] * 0.2 * math.sqrt(max(weight.shape)))

    def _look_ahead(self, weight: Tensor, gradient: Tensor) -> Tensor:
        """Returns a matrix's momentum with this step's gradient, once more on top (Nesterov)."""
        if not self.state[weight]:
            self.state[weight]["momentum"] = torch.zeros_like(weight)
        momentum: Tensor = self.state[weight]["momentum"]
        momentum.lerp_(gradient, 1 - _MOMENTUM)
        return gradient.lerp(momentum, _MOMENTUM)


@torch.no_grad()
def orthogonalize(matrix: Tensor) -> Tensor:
    """Returns a matrix with the same singular vectors and singular values of 0.7 to 1.2, float32.

    By five steps of a polynomial; singular values below a thousandth of the norm stay smaller.
    """
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonalize(matrix.T).T
    a, b, c = _COEFFICIENTS
    matrix = matrix / matrix.norm().clamp(min=1e-7)
    for _ in range(_NUM_STEPS):
        gram = matrix @ matrix.T
        matrix = torch.addmm(matrix, torch.addmm(gram, gram, gram, beta=b, alpha=c), matrix, beta=a)
    return matrix
