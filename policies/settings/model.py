"""The settings of what is trained: the base model, the built-in one's shape, the adapter."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from agentpeft.policies.settings.section import CountOrZero, Section
from agentpeft.policies.thoughts import END_OF_THOUGHT

if TYPE_CHECKING:
    from agentpeft.policies.settings.config import Settings


class ModelSettings(Section):
    """The base model, and how conversations become its text."""

    name: str = "tiny"
    """`tiny` is the built-in model; else a Hugging Face id, a model's folder, or an adapter's
    folder (its base is loaded, and training goes on from it). `module:name` first imports the
    module of your own model classes.
    """
    adapter: str | None = None
    """Folder of an adapter to start from; it is the reference of the KL term too.
    `--resume-from` sets it. None: a new adapter.
    """
    dtype: Literal["auto", "float32", "bfloat16", "nf4"] = "auto"
    """Type of the base's weights. `auto` is float32 on a CPU, bfloat16 on a GPU. `nf4` quantizes
    the learner's base to 4 bits with bitsandbytes (`pip install 'agentpeft[quantize]'`); engines
    serve a dequantized copy in the type of `auto`, which vLLM reads from the cache, where the first
    runner of a machine writes it.
    """
    use_chat_template: bool = True
    """Renders conversations by the tokenizer's chat template. False: as plain text, in lines."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables of the chat template, such as `{enable_thinking = false}`. One that the
    template does not read is refused.
    """
    system_prompt: str | None = Field(default=None, min_length=1)
    """System message before every prompt. Refused where the template leaves it out. None: no
    system message.
    """
    tool_calls: bool = False
    """Actions are calls of [the environment's tools](../environments/tools.md), in the chat
    template's own format. The environment's prompt must speak of them: `environment.kwargs.prompt`
    is `"tools"` then.
    """
    end_of_thought: str = END_OF_THOUGHT
    """The environment is told what a turn says [after the last such
    mark](how_it_works.md#thinking-models). Empty: it is told the whole turn.
    """

    @property
    def is_in_4_bits(self) -> bool:
        """Whether the learner's base is quantized."""
        return self.dtype == "nf4"

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in `run`."""
        if self.is_in_4_bits and (not run.lora.use_lora or run.is_tiny):
            yield (
                "model.dtype 'nf4' freezes a large base: it needs lora.rank >= 1 and another "
                "model.name than 'tiny'"
            )
        if self.adapter is not None and not run.lora.use_lora:
            yield f"model.adapter {self.adapter!r} is trained further: lora.rank must be >= 1"
        if self.tool_calls and (run.is_tiny or not self.use_chat_template):
            yield (
                "model.tool_calls needs a chat template with tools: another model.name than "
                "'tiny', and model.use_chat_template = true"
            )
        if self.tool_calls and run.training.chats:
            yield "model.tool_calls imitates the oracle's calls: chats are texts alone"
        if self.chat_template_kwargs and not self.use_chat_template:
            yield "model.chat_template_kwargs has no effect with model.use_chat_template = false"
        if not _RESERVED.isdisjoint(self.chat_template_kwargs):
            yield (
                "model.chat_template_kwargs are the template's own variables, such as "
                "enable_thinking, not transformers' arguments, got "
                f"{self.chat_template_kwargs!r}"
            )


CHAT_SETTINGS = {
    "use_chat_template",
    "chat_template_kwargs",
    "system_prompt",
    "end_of_thought",
    "tool_calls",
}
"""The settings of `model` that say how it reads and writes, whichever weights it has."""
_RESERVED = {"messages", "conversation", "tools", "tokenize", "add_generation_prompt"}
"""What `ChatFormat` gives to `apply_chat_template` itself."""


class TinySettings(Section):
    """The architecture (Llama's, with biases in attention) of the built-in model.

    Its conversations have at most 1,024 tokens. Refused where `model.name` is another.
    """

    max_context_tokens: ClassVar[int] = 1024

    hidden_size: int = Field(default=192, ge=8, le=16384, multiple_of=8)
    """Width of the residual stream, a multiple of 8. The feed-forward layers are 8/3 as wide; there
    are 4 heads of attention, 2 below a width of 128.
    """
    num_layers: int = Field(default=4, ge=1, le=1024)
    """Number of layers, 1 to 1024."""
    vocab_size: int = Field(default=512, ge=300, le=65536)
    """Size of the byte-level BPE vocabulary, 300 to 65536."""
    copies_words: bool = False
    """Makes it easier to copy words: each has the same tokens wherever it stands, and heads of the
    first layers repeat what came before, ahead of any training.
    """

    @property
    def num_heads(self) -> int:
        """Heads of attention."""
        return 4 if self.hidden_size >= 128 else 2

    @property
    def intermediate_size(self) -> int:
        """Width of the feed-forward layers: 8/3 of the model's, as Llama's, in steps of 8."""
        return 8 * -(-self.hidden_size // 3)

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in `run`."""
        if not run.is_tiny and self != TinySettings():
            yield (
                f"the section tiny describes the built-in model, and model.name is "
                f"{run.model.name!r}: leave {', '.join(f'tiny.{name}' for name in self.changed())} "
                f"out, as in agentpeft train quickstart model.name={run.model.name}"
            )


class LoraSettings(Section):
    """The adapter that is trained."""

    rank: CountOrZero = 16
    """Rank of the adapter. 0 trains [all weights](how_it_works.md#all-weights), for models that
    fit; the section's other settings are then not read.
    """
    alpha: float = Field(default=32.0, gt=0)
    """The update is scaled by alpha / rank. An adapter of rsLoRA is one of alpha * sqrt(rank)."""
    target_modules: Literal["all-linear"] | Annotated[tuple[str, ...], Field(strict=False)] = (
        "all-linear"
    )
    """Names of the layers that get an adapter, such as `["q_proj", "v_proj"]`. `all-linear`:
    all linear layers but the output layer.
    """
    orthogonal_to: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Folders of earlier adapters, which the base has been merged with: a penalty keeps the new
    adapter's A orthogonal to theirs ([O-LoRA](algorithms.md#o-lora)).
    """

    @property
    def use_lora(self) -> bool:
        """Whether an adapter is trained, rather than all weights."""
        return self.rank > 0

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in `run`."""
        if self.orthogonal_to and not self.use_lora:
            yield "lora.orthogonal_to has no effect with lora.rank = 0"
        if not self.use_lora and run.training.critic == "separate":
            yield (
                "training.critic 'separate' is an adapter on a frozen base, and lora.rank = 0 "
                "trains all weights: set it to 'shared'"
            )
