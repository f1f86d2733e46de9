"""The built-in model: Llama's architecture with 1-4 M parameters, and its own tokenizer.

Here the model is untrained: `pretrain` teaches it, and `tiny_cache` keeps it. The architecture must
be one whose saved tokenizer `AutoTokenizer`, and so vLLM, reads as it is: of Qwen2's, say, it would
take the vocabulary with Qwen2's own rules, and give the model other tokens than it has learnt.
"""

from collections.abc import Iterable

import torch
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.settings.config import TinySettings

PAD, USER, ASSISTANT, END = MARKS = ["<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    f"{{{{ '{ASSISTANT}' if message['role'] == 'assistant' else '{USER}' }}}}"
    f"{{{{ message['content'] }}}}{END}"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{ASSISTANT}{{% endif %}}"
)
DIGITS = pre_tokenizers.Digits(individual_digits=True)
_MAX_TOKEN_CHARS = 512
"""Four times what a phrase of the suite has. Of a prompt of one letter a million times, a single
token would be made that is as long.
"""


def train_tokenizer(corpus: Iterable[str], tiny: TinySettings) -> PreTrainedTokenizerFast:
    """Returns a byte-level BPE of at most `vocab_size` tokens, lossless on any text.

    Digits stand alone. An environment's set phrases cost one token each: other tokens may span
    words, or, with `copies_words`, phrases are tokens of their own beside those of words.
    Without enough text there are fewer tokens, never fewer than all bytes.
    """
    if tiny.copies_words:
        from agentpeft.policies.models.copying import train_bpe_of_words

        bpe = train_bpe_of_words(list(corpus), tiny.vocab_size)
    else:
        bpe = train_bpe(corpus, tiny.vocab_size, DIGITS)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        model_max_length=tiny.max_context_tokens,
        clean_up_tokenization_spaces=False,
    )


def train_bpe(
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
        special_tokens=MARKS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        max_token_length=_MAX_TOKEN_CHARS,
    )
    bpe.train_from_iterator(texts, trainer)
    return bpe


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
            from agentpeft.policies.models.copying import start_induction_heads

            start_induction_heads(model)
    return PolicyBase(model.train(False), tokenizer, "tiny")
