"""Log-probabilities and entropies straight from the output layer's input, without its logits.

Logits are U x V numbers: 600 KB a token with a vocabulary of 152,000, and a plain backward pass
holds four of them. Here the vocabulary goes by in slices. A running maximum and running sums make
log-sum-exp and entropy of them, as FlashAttention does with keys; at most `MAX_LOGITS` are there at
once, of `MAX_ROWS` rows, and no copy of all the layer's weights.

Where the layer is frozen (LoRA), the sums for the gradient are made in the same pass, so the
backward pass has (U, H) numbers to read and no logits to make. Where it is trained, the backward
pass makes the slices again.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from agentpeft.policies.models.scoring import FloatHead, float_product, takes_bfloat16

MAX_LOGITS = {"cpu": 2**20, "cuda": 2**24}
"""How many logits there are at once: as many as a CPU's cache holds, and a GPU's cores want."""
MAX_ROWS = {"cpu": 2**30, "cuda": 2**11}
"""Of how many rows: each slice goes over the sums for the gradient, so GPUs want wide ones."""
_MIN_SLICE = 256


def linear_logprobs(
    states: Tensor,
    head: nn.Linear,
    rows: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    *,
    has_entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns the log-probability and the entropy in nats, (N,) each, at each of N tokens.

    `states` (U, H) are what `head` reads. Row `rows[i]` predicts `targets[i]`; several targets may
    share a row. Computed in float32, whatever the types of states and weights. The entropy has a
    gradient only where it is asked for.
    """
    needs_gradient = torch.is_grad_enabled()
    options = temperature, needs_gradient, needs_gradient and has_entropy_gradient
    with torch.autocast(states.device.type, enabled=False):
        logprobs, entropy = _LinearLogprobs.apply(  # type: ignore[no-untyped-call]
            states, head.weight, head.bias, rows, targets, *options
        )
    return logprobs, entropy if has_entropy_gradient else entropy.detach()


@torch.no_grad()
def gives_logits(head: nn.Module, model: nn.Module) -> bool:
    """Returns whether a model's logits are what its output layer gives, a plain linear one.

    Not so where the model caps or scales them afterwards (Gemma 2, Cohere), or where an adapter
    is on the layer. One token is played to see it, with known numbers in place of the layer's.
    """
    if not isinstance(head, nn.Linear) or type(head) not in {nn.Linear, FloatHead}:
        return False
    device = next(model.parameters()).device
    known = torch.linspace(-8, 8, head.out_features, device=device)[None, None]
    handle = head.register_forward_hook(lambda *_: known.clone())  # it may be changed in place
    training = [module for module in model.modules() if module.training]
    try:
        token = torch.zeros(1, 1, dtype=torch.long, device=device)
        logits: Tensor = model.eval()(input_ids=token, use_cache=False).logits
    finally:
        handle.remove()
        for module in training:
            module.training = True
    return torch.equal(logits, known)


class _LinearLogprobs(torch.autograd.Function):
    """Keeps sums over the vocabulary, weighted by the odds e^(z - top) of each row's logits z.

    `top` is the largest logit so far, `total` the sum of the odds; the means are of z - top, of a
    token's weights w, and of the product of the two.
    """

    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917 (autograd takes no keywords)
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rows: Tensor,
        targets: Tensor,
        temperature: float,
        needs_gradient: bool,
        has_entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        is_frozen = not (weight.requires_grad or (bias is not None and bias.requires_grad))
        keeps_means = needs_gradient and is_frozen
        keeps_products = keeps_means and has_entropy_gradient
        num_rows, width = states.shape
        log_sum, entropy = states.new_empty(2, num_rows, 1, dtype=torch.float32)
        mean_weight = log_sum.new_zeros(num_rows if keeps_means else 0, width)
        mean_product = log_sum.new_zeros(num_rows if keeps_products else 0, width)
        chosen = log_sum.new_zeros(len(targets))
        most = MAX_ROWS.get(states.device.type, MAX_ROWS["cuda"])
        for first in range(0, num_rows, most):
            block = slice(first, min(first + most, num_rows))
            is_here, here_rows = _places(rows, first, block.stop - first)
            means, products = mean_weight[block], mean_product[block]
            top = log_sum.new_full((block.stop - first, 1), torch.finfo(torch.float32).min)
            total, mean = torch.zeros_like(top), torch.zeros_like(top)
            for start, logits, part in _slices(states[block], weight, bias, temperature):
                here, places = _places(targets, start, len(part))
                chosen = torch.where(here & is_here, logits[here_rows, places], chosen)
                before, top = top, torch.maximum(top, logits.amax(-1, keepdim=True))
                shift = before - top
                shrink = shift.exp()
                odds = logits.sub_(top).exp()
                mean = (mean + shift * total) * shrink + torch.linalg.vecdot(odds, logits)[:, None]
                total = total * shrink + odds.sum(-1, keepdim=True)
                if keeps_products:
                    products.addcmul_(means, shift).mul_(shrink)
                    _add_product(products, logits.mul_(odds), part)
                if keeps_means:
                    _add_product(means.mul_(shrink), odds, part)
            mean /= total
            log_sum[block], entropy[block] = top + total.log(), total.log() - mean
            if keeps_means:
                means.div_(total)
            if keeps_products:  # now d entropy / d states, times the temperature
                products.div_(-total).addcmul_(mean, means)
        ctx.temperature, ctx.is_frozen = temperature, is_frozen
        if is_frozen:
            ctx.save_for_backward(weight, rows, targets, mean_weight, mean_product)
        else:
            ctx.save_for_backward(weight, rows, targets, states, bias, log_sum, entropy)
        return chosen - log_sum[rows, 0], entropy[rows, 0]

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprobs: Tensor, grad_entropy: Tensor
    ) -> tuple[Tensor | None, ...]:
        backward = _backward_frozen if ctx.is_frozen else _backward_trained
        return *backward(ctx, grad_logprobs, grad_entropy), *([None] * 5)


def _backward_frozen(
    ctx: Any, grad_logprobs: Tensor, grad_entropy: Tensor
) -> tuple[Tensor | None, ...]:
    weight, rows, targets, mean_weight, entropy_gradient = ctx.saved_tensors
    by_row = _sum_by_row(grad_logprobs, rows, len(mean_weight))
    grad = mean_weight * -by_row
    _add_at(grad, rows, weight[targets].float() * grad_logprobs[:, None])
    if len(entropy_gradient):
        grad += entropy_gradient * _sum_by_row(grad_entropy, rows, len(mean_weight))
    return grad / ctx.temperature, None, None


def _backward_trained(
    ctx: Any, grad_logprobs: Tensor, grad_entropy: Tensor
) -> tuple[Tensor | None, ...]:
    weight, rows, targets, states, bias, log_sum, entropy = ctx.saved_tensors
    by_row = _sum_by_row(grad_logprobs, rows, len(states))
    entropy_by_row = _sum_by_row(grad_entropy, rows, len(states))
    read, grad = states.float(), torch.zeros_like(states, dtype=torch.float32)
    grad_weight = torch.empty_like(weight)
    grad_bias = None if bias is None else torch.empty_like(bias)
    for start, logits, part in _slices(states, weight, bias, ctx.temperature):
        here, places = _places(targets, start, len(part))
        surprise = logits - log_sum
        slope = -surprise.exp() * (by_row + entropy_by_row * (surprise + entropy))
        _add_at(slope.view(-1), rows * len(part) + places, torch.where(here, grad_logprobs, 0.0))
        slope /= ctx.temperature
        _add_product(grad, slope, part)
        grad_weight[start : start + len(part)] = slope.T @ read
        if grad_bias is not None:
            grad_bias[start : start + len(part)] = slope.sum(0)
    return grad, grad_weight, grad_bias


def _slices(
    states: Tensor, weight: Tensor, bias: Tensor | None, temperature: float
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yields each slice's first id, its logits (U, W) over the temperature, its weights (W, H).

    The weights are in float32, or in bfloat16 where that is as exact and faster.
    """
    is_fast = takes_bfloat16(weight.dtype, weight.device)
    read = states if is_fast else states.float()
    size = slice_size(len(states), states.device)
    for start in range(0, len(weight), size):
        part = weight[start : start + size]
        part = part if is_fast else part.float()
        logits = float_product(read, part.T)
        if bias is not None:
            logits += bias[start : start + size]
        yield start, logits if temperature == 1.0 else logits.div_(temperature), part


def _add_product(sums: Tensor, left: Tensor, right: Tensor) -> None:
    """Adds left @ right to `sums`, in place and in float32."""
    if right.dtype == torch.float32:
        sums.addmm_(left, right)
    else:
        sums += float_product(left, right)


def slice_size(num_rows: int, device: torch.device) -> int:
    """Returns how much of the vocabulary is computed at once: a multiple of what GPUs align."""
    num_logits = MAX_LOGITS.get(device.type, MAX_LOGITS["cuda"])
    return max(num_logits // max(num_rows, 1) // _MIN_SLICE, 1) * _MIN_SLICE


def _places(numbers: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """Returns which numbers are in a slice, and their places in it (any, for the others)."""
    places = numbers - start
    return (places >= 0) & (places < size), places.clamp(0, size - 1)


def _sum_by_row(values: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    return _add_at(values.new_zeros(num_rows), rows, values)[:, None]


def _add_at(sums: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """Adds values to rows of `sums`, in place, in an order that is always the same.

    On CPUs several threads of `index_put_` add in any order, on GPUs those of `index_add_` do.
    """
    if sums.device.type == "cpu":
        return sums.index_add_(0, rows, values)
    return sums.index_put_((rows,), values, accumulate=True)
