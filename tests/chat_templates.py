"""Chat templates in the style of thinking models, and a byte-level tokenizer that has them.

Each strips the thoughts of earlier turns from a history. They differ in what a question ends with,
and in what they write before an answer without thoughts.
"""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

_CHATML = """
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{%- set parts = m.content.split('</think>') -%}
{%- set text = parts[-1].lstrip('\\n') -%}
{%- set thought = parts[0].split('<think>')[-1].strip('\\n') if parts | length > 1 else '' -%}
{{ '<|im_start|>assistant\\n' }}
{%- if loop.last %}BLOCK{% endif -%}
{{ text + '<|im_end|>\\n' }}
{%- else -%}
{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}NONE{% else %}OPENED{% endif -%}
{%- endif -%}"""


def _chatml(block: str, none: str, opened: str) -> str:
    parts = {"BLOCK": block, "NONE": none, "OPENED": opened}
    template = _CHATML
    for name, text in parts.items():
        template = template.replace(name, "{{ " + text + " }}")
    return template


_EMPTY = "'<think>\\n\\n</think>\\n\\n'"
_BLOCK = "'<think>\\n' + thought + '\\n</think>\\n\\n'"
QWEN3 = _chatml(_BLOCK, _EMPTY, "''")
QWEN35 = _chatml(_BLOCK, _EMPTY, "'<think>\\n'")
NEMOTRON = _chatml(
    "('<think>\\n' + thought + '\\n' if thought else '<think>') + '</think>'",
    "'<think></think>'",
    "'<think>\\n'",
)
DEEPSEEK = """{{ bos_token }}
{%- for m in messages -%}
{%- if m.role == 'system' -%}{{ m.content }}
{%- elif m.role == 'user' -%}{{ '<|User|>' + m.content }}
{%- else -%}{{ '<|Assistant|>' + m.content.split('</think>')[-1] + '<|endoftext|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|Assistant|>' }}{{ '<think>\\n' if enable_thinking is undefined or enable_thinking }}
{%- endif -%}"""
TEMPLATES = {"qwen3": QWEN3, "qwen3.5": QWEN35, "nemotron": NEMOTRON, "deepseek": DEEPSEEK}
BEFORE_ACTION = {
    ("qwen3", True): "<think>\n\n</think>\n\n",
    ("qwen3.5", True): "\n</think>\n\n",
    ("nemotron", True): "</think>",
    ("deepseek", True): "\n</think>\n\n",
}
"""What an imitated turn begins with, by template and enable_thinking; else nothing."""
_TOOLS = """
{%- if tools %}{{ '<|im_start|>system\n' }}
{%- for tool in tools %}{{ tool | tojson }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}ANSWER
{%- elif m.tool_calls -%}
{{ '<|im_start|>assistant\n' }}BLOCK
{%- for call in m.tool_calls -%}{% set call = call.function %}CALL{% endfor -%}
{{ '<|im_end|>\n' }}
{%- elif m.role == 'assistant' -%}
{{ '<|im_start|>assistant\n' }}BLOCK{{ m.content + '<|im_end|>\n' }}
{%- else -%}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}OPENED{% endif -%}"""
_JSON = """{{ '{"name": "' + call.name + '", "KEY": ' }}{{ call.arguments | tojson }}{{ '}' }}"""
_RESPONSE = """
{%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif -%}
{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif -%}"""
_MARKED = """{{ '<tool_call>\n<function=' + call.name + '>\n' }}
{%- for name, value in call.arguments | items -%}
{{ '<parameter=' + name + '>\n' + value + '\n</parameter>\n' }}
{%- endfor -%}{{ '</function>\n</tool_call>' }}"""


def _with_tools(call: str, answer: str, block: str = "", opened: str = "") -> str:
    parts = {"ANSWER": answer, "BLOCK": block, "CALL": call, "OPENED": opened}
    template = _TOOLS
    for name, text in parts.items():
        template = template.replace(name, text)
    return template


_TAGGED = "{{ '<tool_call>\n' }}" + _JSON.replace("KEY", "arguments") + "{{ '\n</tool_call>' }}"
TOOL_TEMPLATES = {
    "json": _with_tools(_TAGGED, _RESPONSE),
    "json behind a thought": _with_tools(
        _TAGGED, _RESPONSE, "{% if loop.last %}{{ " + _EMPTY + " }}{% endif %}"
    ),
    "bare json": _with_tools(
        _JSON.replace("KEY", "parameters"),
        "{{ '<|im_start|>tool\n' }}{{ m.content | tojson }}{{ '<|im_end|>\n' }}",
    ),
    "marks": _with_tools(_MARKED, _RESPONSE),
    "marks behind an opened thought": _with_tools(
        _MARKED,
        _RESPONSE,
        "{% if loop.last %}{{ " + _EMPTY + " }}{% endif %}",
        "{{ '<think>\n' }}",
    ),
}
"""Of several families of models: how they write calls of tools, and a tool's answers."""
SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|User|>", "<|Assistant|>", "<|begin|>"),
    *("<think>", "</think>"),
]


def make_tokenizer(template: str | None = None) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL[0], bos_token="<|begin|>"
    )
    fast.add_special_tokens({"additional_special_tokens": SPECIAL})
    fast.chat_template = template
    return fast
