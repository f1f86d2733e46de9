"""Weights with which an untrained model repeats what it has seen: `start_induction_heads`."""

import math
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention

_NUM_HEADS = 3
_SHARPNESS = 24.0
_MATCH = 0.8
_GAIN = 0.2
_LONGEST = 250
"""How far back, in tokens, a match is not blurred by its distance."""


def start_induction_heads(model: LlamaForCausalLM) -> None:
    """Gives some heads of each of the first two layers the weights of an induction circuit.

    Those of the first layer attend to the tokens one, two and three back, and write which they are.
    Those of the second look for the places before which stand the tokens that are the last ones
    now, and write the token that is there: they repeat what came after the last time. Random
    weights find this after hundreds of steps, these have it before the first; all are trained on.
    A model of one layer stays as it is.

    Sources: Olsson et al. 2022, "In-context Learning and Induction Heads"; Trockman and Kolter
    2023, "Mimetic Initialization of Self-Attention Layers".
    """
    config = model.config
    width, num_heads = config.hidden_size, config.num_attention_heads
    if config.num_hidden_layers < 2:
        return
    num_used = min(_NUM_HEADS, num_heads)
    head_width = width // num_heads
    frequencies = model.model.rotary_emb.inv_freq
    num_slow = max(1, int((frequencies * _LONGEST < 1).sum()))
    slow = torch.arange(head_width // 2)[-num_slow:]
    channels = torch.cat([slow, slow + head_width // 2])  # those that a position hardly turns
    layers: Any = model.model.layers
    first, second = layers[0].self_attn, layers[1].self_attn

    def draw(num_rows: int, num_columns: int) -> Tensor:
        """Returns a matrix whose rows, or columns, are orthonormal."""
        sizes = sorted((num_rows, num_columns), reverse=True)
        matrix: Tensor = torch.linalg.qr(torch.randn(sizes))[0]
        return matrix if num_rows >= num_columns else matrix.T

    with torch.no_grad():
        read = draw(head_width, width)
        writes = [draw(width, head_width) for _ in range(num_used)]
        for head, write in enumerate(writes):
            own = slice(head * head_width, (head + 1) * head_width)
            _look_back(first, own, head + 1, frequencies)
            first.v_proj.weight[own] = _GAIN * read
            first.o_proj.weight[:, own] = _GAIN * write
        seen = [write.T for write in writes]  # the token one back, two back and so on
        for head in range(num_used):
            own = slice(head * head_width, (head + 1) * head_width)
            query, key = torch.zeros(2, len(channels), width)
            for asked, found in zip([read, *seen], seen, strict=False):
                mix = _MATCH * draw(len(channels), head_width)
                query, key = query + mix @ asked, key + mix @ found
            for projection, matched in ((second.q_proj, query), (second.k_proj, key)):
                projection.weight[own] = 0.0
                projection.weight[own.start + channels] = matched
            copied = draw(head_width, width)
            second.v_proj.weight[own] = _GAIN * copied
            second.o_proj.weight[:, own] = _GAIN * copied.T


def _look_back(attention: LlamaAttention, own: slice, distance: int, frequencies: Tensor) -> None:
    """Makes a head attend to the token so far before, whatever the tokens are.

    Rotary embeddings turn a query of position m and a key of position n by the angles f m and f n,
    so of constant ones the product depends on m - n alone: here it is the sum over f of
    cos(f (m - n - distance)), which is largest at that distance.
    """
    for projection in (attention.q_proj, attention.k_proj):
        projection.weight[own] = 0.0
    scale = math.sqrt(_SHARPNESS * math.sqrt(2 * len(frequencies)) / len(frequencies))
    angles = distance * frequencies
    query = torch.cat([angles.cos(), -angles.sin()])
    key = torch.cat([torch.ones_like(frequencies), torch.zeros_like(frequencies)])
    attention.q_proj.bias[own] = scale * query
    attention.k_proj.bias[own] = scale * key
