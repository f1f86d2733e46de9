"""The built-in model: Llama's architecture with 1-4 M parameters, and its own tokenizer.

Here the model is untrained: `pretrain` teaches it, and `tiny_cache` keeps it. The architecture must
be one whose saved tokenizer `AutoTokenizer`, and so vLLM, reads as it is: of Qwen2's, say, it would
take the vocabulary with Qwen2's own rules, and give the model other tokens than it has learnt.
"""

from collections.abc import Iterable

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agentpeft.envs import SettingsError
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.settings.config import TinySettings

USER, ASSISTANT, END, PAD = "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    f"{{{{ '{ASSISTANT}' if message['role'] == 'assistant' else '{USER}' }}}}"
    f"{{{{ message['content'] }}}}{END}"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{ASSISTANT}{{% endif %}}"
)


def train_tokenizer(corpus: Iterable[str], tiny: TinySettings) -> PreTrainedTokenizerFast:
    """Returns a byte-level BPE of at most `vocab_size` tokens, lossless on any text.

    Digits stand alone; other tokens may span words, so that an environment's set phrases cost one
    token each. Without enough text there are fewer tokens, never fewer than all bytes.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=tiny.vocab_size,
        special_tokens=[PAD, USER, ASSISTANT, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        model_max_length=tiny.max_context_tokens,
        clean_up_tokenization_spaces=False,
    )


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
    """Returns the untrained model; the same arguments give the same weights and tokens.

    Raises: SettingsError on a hidden size that the heads do not divide evenly.
    """
    if tiny.hidden_size % (2 * tiny.num_heads):
        raise SettingsError(
            f"tiny.hidden_size must be a multiple of 2 * tiny.num_heads = {2 * tiny.num_heads}, "
            f"got {tiny.hidden_size}"
        )
    tokenizer = train_tokenizer(corpus, tiny)
    config = make_tiny_config(tiny)
    config.bos_token_id = None
    config.eos_token_id = tokenizer.eos_token_id
    config.pad_token_id = tokenizer.pad_token_id
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    return PolicyBase(model.train(False), tokenizer, "tiny")
