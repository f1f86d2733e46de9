"""A tiny model that copies words (`tiny.copies_words`): its tokens, and the weights it starts with.

A word has the same tokens wherever it stands, so what is to be repeated is what has been read; and
some heads of the untrained model repeat what they have seen already.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, pre_tokenizers
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention

from agentpeft.policies.models.tiny import DIGITS, MARKS, train_bpe

_WORDS = pre_tokenizers.Split(Regex(r" ?\p{L}+|\p{N}| ?[^\p{L}\p{N} ]+| +"), "isolated")
"""A word with the space before it, a digit, or what lies between them."""
_SEVERAL_WORDS = re.compile(r"^(?=.{12}).*\w\W*\s\W*\w.*(?<!\s)$", re.DOTALL)
_MIN_SHARE = 0.05
"""A phrase is so often in the corpus, as a share of the number of its texts."""
_NUM_HEADS = 3
_SHARPNESS = 24.0
_MATCH = 0.8
_GAIN = 0.2
_LONGEST = 250
"""How far back, in tokens, a match is not blurred by its distance."""


def train_bpe_of_words(texts: Sequence[str], vocab_size: int) -> Tokenizer:
    """Returns one in which a word has the same tokens wherever it stands, outside of phrases."""
    phrases = _find_phrases(texts, vocab_size)
    others = re.compile("|".join(map(re.escape, phrases)) or r"(?!)")
    bpe = train_bpe(
        (part for text in texts for part in others.split(text)),
        vocab_size - len(phrases),
        _WORDS,
    )
    bpe.add_tokens([AddedToken(phrase, normalized=False) for phrase in phrases])
    return bpe


def _find_phrases(texts: Sequence[str], vocab_size: int) -> list[str]:
    """Returns several words each that a BPE would make one token, the longest first.

    Each begins and ends with whole words in all of its places.
    """
    bpe = train_bpe(texts, vocab_size, DIGITS)
    tokens = [bpe.decode([number]) for number in range(bpe.get_vocab_size())]
    whole = "\0".join(texts)
    phrases = [token for token in tokens if _SEVERAL_WORDS.search(token)]
    phrases = [token for token in phrases if not any(mark in token for mark in MARKS)]
    phrases = [token for token in phrases if _is_whole(token, whole, len(texts) * _MIN_SHARE)]
    return sorted(phrases, key=len, reverse=True)[: (vocab_size - 256 - len(MARKS)) // 8]


def _is_whole(token: str, whole: str, min_count: float) -> bool:
    """Returns whether a token is there often enough, and never begins or ends within a word."""
    count = whole.count(token)
    pattern = rf"(?<![^\W\d_]){re.escape(token)}" if token[0].isalpha() else re.escape(token)
    pattern += r"(?![^\W\d_])" if token[-1].isalpha() else ""
    return count >= min_count and len(re.findall(pattern, whole)) == count


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
