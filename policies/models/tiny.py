"""The built-in model: Llama's architecture with 1-4 M parameters, and its own tokenizer.

Here the model is untrained: `pretrain` teaches it, and `tiny_cache` keeps it. The architecture must
be one whose saved tokenizer `AutoTokenizer`, and so vLLM, reads as it is: of Qwen2's, say, it would
take the vocabulary with Qwen2's own rules, and give the model other tokens than it has learnt.
"""

import re
from collections.abc import Iterable, Sequence

import torch
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.settings.config import TinySettings

PAD, USER, ASSISTANT, END = _MARKS = ["<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    f"{{{{ '{ASSISTANT}' if message['role'] == 'assistant' else '{USER}' }}}}"
    f"{{{{ message['content'] }}}}{END}"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{ASSISTANT}{{% endif %}}"
)
_DIGITS = pre_tokenizers.Digits(individual_digits=True)
_WORDS = pre_tokenizers.Split(Regex(r" ?\p{L}+|\p{N}| ?[^\p{L}\p{N} ]+| +"), "isolated")
"""A word with the space before it, a digit, or what lies between them."""
_SEVERAL_WORDS = re.compile(r"^(?=.{12}).*\w\W*\s\W*\w.*(?<!\s)$", re.DOTALL)
_MAX_TOKEN_CHARS = 512
"""Four times what a phrase of the suite has. Of a prompt of one letter a million times, a single
token would be made that is as long.
"""
_MIN_SHARE = 0.05
"""A phrase is so often in the corpus, as a share of the number of its texts."""


def train_tokenizer(corpus: Iterable[str], tiny: TinySettings) -> PreTrainedTokenizerFast:
    """Returns a byte-level BPE of at most `vocab_size` tokens, lossless on any text.

    Digits stand alone. An environment's set phrases cost one token each: other tokens may span
    words, or, with `copies_words`, phrases are tokens of their own beside those of words.
    Without enough text there are fewer tokens, never fewer than all bytes.
    """
    if tiny.copies_words:
        bpe = _train_bpe_of_words(list(corpus), tiny.vocab_size)
    else:
        bpe = _train_bpe(corpus, tiny.vocab_size, _DIGITS)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        model_max_length=tiny.max_context_tokens,
        clean_up_tokenization_spaces=False,
    )


def _train_bpe(
    texts: Iterable[str], vocab_size: int, pre_tokenizer: pre_tokenizers.PreTokenizer
) -> Tokenizer:
    """Returns a BPE whose tokens do not cross what `pre_tokenizer` parts."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizer, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=_MARKS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        max_token_length=_MAX_TOKEN_CHARS,
    )
    bpe.train_from_iterator(texts, trainer)
    return bpe


def _train_bpe_of_words(texts: Sequence[str], vocab_size: int) -> Tokenizer:
    """Returns one in which a word has the same tokens wherever it stands, outside of phrases."""
    phrases = _find_phrases(texts, vocab_size)
    others = re.compile("|".join(map(re.escape, phrases)) or r"(?!)")
    bpe = _train_bpe(
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
    bpe = _train_bpe(texts, vocab_size, _DIGITS)
    tokens = [bpe.decode([number]) for number in range(bpe.get_vocab_size())]
    whole = "\0".join(texts)
    phrases = [token for token in tokens if _SEVERAL_WORDS.search(token)]
    phrases = [token for token in phrases if not any(mark in token for mark in _MARKS)]
    phrases = [token for token in phrases if _is_whole(token, whole, len(texts) * _MIN_SHARE)]
    return sorted(phrases, key=len, reverse=True)[: (vocab_size - 256 - len(_MARKS)) // 8]


def _is_whole(token: str, whole: str, min_count: float) -> bool:
    """Returns whether a token is there often enough, and never begins or ends within a word."""
    count = whole.count(token)
    pattern = rf"(?<![^\W\d_]){re.escape(token)}" if token[0].isalpha() else re.escape(token)
    pattern += r"(?![^\W\d_])" if token[-1].isalpha() else ""
    return count >= min_count and len(re.findall(pattern, whole)) == count


def make_tiny_config(tiny: TinySettings) -> LlamaConfig:
    """Returns the architecture, without the tokenizer's ids."""
    return LlamaConfig(
        vocab_size=tiny.vocab_size,
        hidden_size=tiny.hidden_size,
        intermediate_size=tiny.intermediate_size,
        num_hidden_layers=tiny.num_layers,
        num_attention_heads=tiny.num_heads,
        num_key_value_heads=tiny.num_heads,
        max_position_embeddings=tiny.max_context_tokens,
        attention_bias=True,
        tie_word_embeddings=True,
        dtype=torch.float32,
    )


def build_tiny(tiny: TinySettings, corpus: Iterable[str], seed: int = 0) -> PolicyBase:
    """Returns the untrained model; the same arguments give the same weights and tokens."""
    tokenizer = train_tokenizer(corpus, tiny)
    config = make_tiny_config(tiny)
    config.bos_token_id = None
    config.eos_token_id = tokenizer.eos_token_id
    config.pad_token_id = tokenizer.pad_token_id
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
        if tiny.copies_words:
            from agentpeft.policies.models.induction import start_induction_heads

            start_induction_heads(model)
    return PolicyBase(model.train(False), tokenizer, "tiny")
