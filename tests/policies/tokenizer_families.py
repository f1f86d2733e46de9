"""Tokenizers of the families that models have, trained on some lines, and templates for them.

They differ in where they put a space before a text: at its beginning, behind each token that stands
for control, or nowhere.
"""

import json
from collections.abc import Callable
from copy import copy
from functools import cache, partial
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

BOS, EOS = "<s>", "</s>"
_CONTROL = [
    *("<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|im_start|>", "<|im_end|>"),
    *("<start_of_turn>", "<end_of_turn>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
]
_CORPUS = [
    "Action: Operation\n```sql\nSELECT name FROM users;\n```",
    "Action: Answer\nFinal Answer: 42",
    "[INST] How many users are there? [/INST] Act: bash\n\n```bash\nls -la /etc\n```",
    "USER: add 12 and 34 ASSISTANT: 46 </s>",
    "user assistant system Wrong, try again. The answer is [(1,)] é and 😀 — done.",
    "Action:Action Observation: the table has 3 rows and  two  spaces",
    "<|im_start|>user\n model\n<start_of_turn> Act: finish",
] * 4
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_BYTES = [f"<0x{value:02X}>" for value in range(256)]
_GPT4 = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _byte_level(adds_space: bool = False, pattern: str | None = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=adds_space, use_regex=pattern is None)
    split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def _sentence_piece(model: str, prepend: str) -> Tokenizer:
    """SentencePiece's model as `tokenizers` has it, `prepend` a Metaspace's or "legacy"."""
    if model == "bpe":
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        options: dict[str, Any] = {"special_tokens": ["<unk>", *_BYTES]}
        trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False, **options)
    else:
        tokenizer = Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(
            vocab_size=600,
            unk_token="<unk>",
            special_tokens=["<unk>", *_BYTES],
            show_progress=False,
        )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator([text.replace("\n", " ") for text in _CORPUS], trainer)
    state = json.loads(tokenizer.to_str())
    state["model"]["byte_fallback"] = True  # which a trainer cannot set of a Unigram
    tokenizer = Tokenizer.from_str(json.dumps(state))
    ends = [] if prepend == "never" else [decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *ends]
    )
    if prepend == "legacy":  # the normalizer of Llama 2's and Phi 3's own files
        tokenizer.pre_tokenizer = None  # type: ignore[assignment]
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    return tokenizer


def _unigram(prepend: str) -> Tokenizer:
    """As `_sentence_piece`, split at spaces, as T5's and XLM-R's, with their decoder."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend)
    trainer = trainers.UnigramTrainer(
        vocab_size=400,
        unk_token="<unk>",
        special_tokens=["<unk>"],
        initial_alphabet=[chr(code) for code in range(32, 127)] + ["\n"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def _word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=["[UNK]"], show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


_FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "byte level": _byte_level,
    "byte level of GPT-4": partial(_byte_level, pattern=_GPT4),
    "byte level with a space": partial(_byte_level, adds_space=True),
    "bpe, a space always": partial(_sentence_piece, "bpe", "always"),
    "bpe, a space first": partial(_sentence_piece, "bpe", "first"),
    "bpe, a space never": partial(_sentence_piece, "bpe", "never"),
    "bpe, legacy": partial(_sentence_piece, "bpe", "legacy"),
    "unigram of one piece, always": partial(_sentence_piece, "unigram", "always"),
    "unigram of one piece, first": partial(_sentence_piece, "unigram", "first"),
    "unigram, always": partial(_unigram, "always"),
    "unigram, first": partial(_unigram, "first"),
    "unigram, never": partial(_unigram, "never"),
    "word piece": _word_piece,
}
FAMILIES = tuple(_FAMILIES)
ADDED = ("", "bos", "eos", "bos eos")
"""What a tokenizer's post-processor adds to a text."""
STRIPS: dict[str, dict[str, bool]] = {
    "": {},
    "right": {"rstrip": True},
    "left": {"lstrip": True},
    "both": {"lstrip": True, "rstrip": True},
}


@cache
def _trained(family: str) -> str:
    return str(_FAMILIES[family]().to_str())


def make_family(
    family: str,
    template: str | None = None,
    *,
    added: str = "",
    strips: str = "",
    control: tuple[str, ...] = (),
) -> PreTrainedTokenizerFast:
    """Returns a tokenizer; `strips` says which space its control tokens swallow.

    Or that they are sought in the "normalized" text.
    """
    made = copy(_make(family, added, strips, control))  # which are all of one in Rust
    made.chat_template = template
    return made


@cache
def _make(
    family: str, added: str, strips: str, control: tuple[str, ...]
) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer.from_str(_trained(family))
    options = {"normalized": strips == "normalized", "special": True} | STRIPS.get(strips, {})
    texts = [BOS, EOS, *_CONTROL, *control]
    tokenizer.add_special_tokens([AddedToken(text, **options) for text in texts])
    if added:
        pieces = [BOS if "bos" in added else "", "$A", EOS if "eos" in added else ""]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=" ".join(filter(None, pieces)),
            special_tokens=[(text, tokenizer.token_to_id(text)) for text in (BOS, EOS)],
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS)


def _marked(user: str, assistant: str, asks: str, system: str = "", begin: str = "") -> str:
    """Returns a template of what it writes for a message `m` of each role, and to ask for a turn.

    Without `system` it raises where there is a system message, as Gemma's does.
    """
    system = system or "raise_exception('no system role')"
    return (
        f"{{{{ {begin or 'bos_token'} }}}}{{%- for m in messages -%}}"
        f"{{%- if m.role == 'user' -%}}{{{{ {user} }}}}"
        f"{{%- elif m.role == 'assistant' -%}}{{{{ {assistant} }}}}"
        f"{{%- else -%}}{{{{ {system} }}}}{{%- endif -%}}{{%- endfor -%}}"
        f"{{%- if add_generation_prompt -%}}{{{{ {asks} }}}}{{%- endif -%}}"
    )


LLAMA2 = """
{%- if messages[0].role == 'system' -%}
{%- set rest, system = messages[1:], '<<SYS>>\\n' + messages[0].content + '\\n<</SYS>>\\n\\n' -%}
{%- else -%}{%- set rest, system = messages, '' -%}{%- endif -%}
{%- for m in rest -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}{% endif -%}
{%- set content = system + m.content if loop.first else m.content -%}
{%- if m.role == 'user' -%}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- else -%}{{ ' ' + content.strip() + ' ' + eos_token }}{%- endif -%}
{%- endfor -%}"""
_HEADER = "'<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim"
_GEMMA = "'<start_of_turn>ROLE\\n' + m.content | trim + '<end_of_turn>\\n'"
_CHATML = "'<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n'"
_PHI3 = "'<|' + m.role + '|>\\n' + m.content + '<|end|>\\n'"
_ZEPHYR = "'<|' + m.role + '|>\\n' + m.content + eos_token + '\\n'"
MODEL_TEMPLATES = {
    "llama2": LLAMA2,
    "llama3": _marked(
        *[f"{_HEADER} + '<|eot_id|>'"] * 2,
        "'<|start_header_id|>assistant<|end_header_id|>\\n\\n'",
        f"{_HEADER} + '<|eot_id|>'",
    ),
    "mistral v1": _marked("'[INST] ' + m.content + ' [/INST]'", "m.content + eos_token", "''"),
    "mistral v3": _marked("'[INST] ' + m.content + '[/INST]'", "' ' + m.content + eos_token", "''"),
    "mistral spaced": _marked(
        "'[INST] ' + m.content + ' [/INST]'", "' ' + m.content + ' ' + eos_token", "''"
    ),
    "phi3": _marked(_PHI3, _PHI3, "'<|assistant|>\\n'", _PHI3)
    + "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}",
    "phi3 of 2024": _marked(
        "'<|user|>\\n' + m.content + '<|end|>\\n<|assistant|>\\n'", "m.content + '<|end|>\\n'", "''"
    ),
    "gemma": _marked(
        _GEMMA.replace("ROLE", "user"),
        _GEMMA.replace("ROLE", "model"),
        "'<start_of_turn>model\\n'",
    ),
    "chatml": _marked(_CHATML, _CHATML, "'<|im_start|>assistant\\n'", _CHATML),
    "zephyr": _marked(_ZEPHYR, _ZEPHYR, "'<|assistant|>\\n'", _ZEPHYR),
    "marks without line breaks": _marked(
        "'<|user|>' + m.content", "'<|assistant|>' + m.content + eos_token", "'<|assistant|>'"
    ),
    "no end but the next mark": _marked(
        "'<|user|>\\n' + m.content", "'<|assistant|>\\n' + m.content", "'<|assistant|>\\n'"
    ),
    "vicuna": _marked(
        "'USER: ' + m.content", "' ASSISTANT: ' + m.content + eos_token", "' ASSISTANT:'"
    ),
    "line break before the end": _marked(
        "'### User:\\n' + m.content + '\\n'",
        "'### Assistant:\\n' + m.content + '\\n' + eos_token + '\\n'",
        "'### Assistant:\\n'",
    ),
    "asks without the line break": _marked(
        "'<|user|>\\n' + m.content + '<|end|>\\n'",
        "'<|assistant|>\\n' + m.content + '<|end|>\\n'",
        "'<|assistant|>'",
    ),
    "strips": _marked(
        "'[INST]' + m.content | trim + '[/INST]'", "m.content | trim + ' ' + eos_token", "''"
    ),
}
SYSTEM_LAST = """{{ bos_token }}
{%- set ns = namespace(system='') -%}
{%- for m in messages -%}
{%- if m.role == 'system' -%}{%- set ns.system = m.content + '\\n\\n' -%}
{%- elif m.role == 'user' -%}{{ '[INST] ' + (ns.system if loop.last else '') + m.content }}[/INST]
{%- else -%}{{ ' ' + m.content + eos_token }}{%- endif -%}
{%- endfor -%}"""
"""As Mistral's third: the system prompt is part of the last message."""
