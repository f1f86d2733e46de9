"""How a model scores tokens: logits in float32, log-probabilities and entropies from them.

A GPU multiplies bfloat16 some ten times as fast as float32, and loses nothing by it where that is
the weights' type: 8 by 8 bits make 16, of float32's 24, and the sums are in float32. So states in
bfloat16 go as they are, and numbers in float32 as the sum of three in bfloat16. CPUs get float32.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentpeft.policies.messages import Floats, Ids
from agentpeft.policies.models.few_rows import linear, multiply_halves

_NUM_LOGITS = 2**23
"""About how many logits are made at once: with a large vocabulary, those of one sequence."""
_MAX_CONVERTED = 2**21
"""How many weights a CPU converts at once: their copy stays in its cache."""


class FloatHead(nn.Linear):
    """An output layer that computes in float32, whatever the type of its weights and of autocast.

    In bfloat16 a logit of 8 to 16 is rounded by up to 0.03, in learner and engine each in its own
    way. vLLM computes it so as well, with `head_dtype`.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the base class's name)
        """Returns the logits (..., V) of states (..., H)."""
        if not input.numel():  # or the weights would be converted for nothing
            return input.new_zeros(*input.shape[:-1], self.out_features, dtype=torch.float32)
        with torch.autocast(input.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            if torch.is_grad_enabled():
                return linear(input.float(), self.weight.float(), bias)
            if not takes_bfloat16(self.weight.dtype, input.device):
                states = input.float()
                product = multiply_halves(states, self)
                if product is None:
                    return _float_logits(states, self.weight, bias)
                return product if bias is None else product + bias
            logits = float_product(input.flatten(0, -2), self.weight.T)
            return (logits if bias is None else logits + bias).view(*input.shape[:-1], -1)


def _float_logits(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns the logits in float32, converting the weights a slice at a time.

    A float32 copy of all of them would pass through memory at every step of decoding.
    """
    if weight.dtype == torch.float32:
        return linear(states, weight, bias)
    parts = torch.split(weight, max(1, _MAX_CONVERTED // weight.shape[1]))
    room = torch.empty(parts[0].shape, dtype=torch.float32, device=weight.device)
    logits = [linear(states, room[: len(part)].copy_(part), None) for part in parts]
    return torch.cat(logits, -1) if bias is None else torch.cat(logits, -1).add_(bias)


def takes_bfloat16(dtype: torch.dtype, device: torch.device) -> bool:
    """Returns whether weights of this type are best left in it, to be multiplied exactly."""
    return device.type == "cuda" and dtype == torch.bfloat16


def float_product(left: Tensor, right: Tensor) -> Tensor:
    """Returns left (M, K) @ right (K, N) as exact as float32 has it, without a gradient.

    Both are float32 or bfloat16. Of weights in bfloat16 a GPU makes no copy.
    """
    if not takes_bfloat16(right.dtype, right.device):
        return left.float() @ right.float()
    parts = (torch.mm(part, right, out_dtype=torch.float32) for part in bfloat16_parts(left))
    total = next(parts)
    for part in parts:
        total += part
    return total


def bfloat16_parts(values: Tensor) -> tuple[Tensor, ...]:
    """Returns tensors in bfloat16, largest first, whose sum is `values`, float32 or bfloat16.

    Each takes 8 of float32's 24 bits. What is below 2^-133 is lost.
    """
    if values.dtype == torch.bfloat16:
        return (values,)
    high = values.bfloat16()
    rest = values - high.float()
    middle = rest.bfloat16()
    return high, middle, (rest - middle.float()).bfloat16()


def use_float_head(model: PreTrainedModel) -> None:
    """Makes a plain output layer a `FloatHead`; over float32 weights autocast would round too."""
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if type(head) is nn.Linear:
        head.__class__ = FloatHead


def token_logprobs(logits: Tensor, rows: Tensor, targets: Tensor) -> Tensor:
    """Returns the log-probability (N,) of each of `targets` (N,), at temperature 1.

    Row `rows[i]` of `logits` (U, V) predicts target i; several targets may share a row.
    """
    return logits[rows, targets] - logits.logsumexp(-1)[rows]


def token_entropy(logits: Tensor, rows: Tensor) -> Tensor:
    """Returns the entropy (N,), in nats, of the distributions in `rows` (N,) of logits (U, V).

    Without gradients a few rows at a time, so that a large vocabulary takes no more memory.
    """
    if torch.is_grad_enabled() and logits.requires_grad:
        logprobs = logits.log_softmax(-1)
        return -(logprobs.exp() * logprobs).sum(-1)[rows]
    parts = torch.split(logits.detach(), max(1, _NUM_LOGITS // logits.shape[1]))
    return torch.cat([torch.special.entr(part.softmax(-1)).sum(-1) for part in parts])[rows]


def score_sequences(model: nn.Module, vocab_size: int, sequences: Sequence[Ids]) -> list[Floats]:
    """Returns the log-probabilities (T - 1,) of each sequence's tokens but the first.

    At temperature 1, in float32 from the logits on. The model's attention must be causal.
    """
    longest = max(map(len, sequences))
    step = max(1, _NUM_LOGITS // (vocab_size * longest))
    parts = [_score(model, sequences[i : i + step]) for i in range(0, len(sequences), step)]
    return [row for part in parts for row in part]


@torch.no_grad()
def _score(model: nn.Module, sequences: Sequence[Ids]) -> list[Floats]:
    """Runs sequences together, padded on the right, where no token sees the padding."""
    longest = max(map(len, sequences))
    padded = np.stack([np.pad(ids, (0, longest - len(ids))) for ids in sequences])
    tokens = torch.from_numpy(padded).to(next(model.parameters()).device)
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits.float().flatten(0, 1)
    rows = torch.arange(len(logits), device=logits.device)
    logprobs = token_logprobs(logits, rows, tokens[:, 1:].flatten()).view(len(sequences), -1)
    pairs = zip(logprobs.cpu().numpy(), sequences, strict=True)
    return [row[: len(ids) - 1] for row, ids in pairs]
