"""The settings of a training run: one strict model, from Python, from TOML, or both.

Sections are one level deep, so that every setting has one dotted name (`training.lr`).
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic.types import NonNegativeFloat

from agentpeft.envs.core.errors import SettingsError, did_you_mean
from agentpeft.envs.registration import find_spec
from agentpeft.policies.rollout.thoughts import END_OF_THOUGHT
from agentpeft.policies.settings.curriculum import CurriculumSettings
from agentpeft.policies.settings.environment_kwargs import (
    drawn_kwargs,
    mix_tables,
    without_training_rewards,
)
from agentpeft.policies.settings.section import Count, CountOrZero, Section, Threads
from agentpeft.policies.settings.toml_values import parse_value, to_toml_value

AlgorithmName = Literal[
    "reinforce", "rloo", "grpo", "dr_grpo", "gspo", "cispo", "raft", "ppo", "a2c", "distill", "sft"
]
CriticKind = Literal["shared", "separate"]
Normalization = Literal["token", "sequence", "constant"]


class EnvironmentSettings(Section):
    """The Gymnasium environment that is trained on."""

    id: str = "AgentPEFT/Arithmetic-v0"
    """A Gymnasium id whose observations and actions are text; `module:id` imports the module
    that registers it first.
    """
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """The environment's keyword arguments. A task file that `data` names and that is missing
    is made first (DB-bench, OS-interaction, GSM8K). `adaptive` is
    [the whole run's difficulty](curriculum.md#stages).
    """

    @property
    def is_adaptive(self) -> bool:
        """Whether the difficulty follows success, by levels of the environment's own."""
        return bool(self.kwargs.get("adaptive"))

    @property
    def fixed_kwargs(self) -> dict[str, Any]:
        """`kwargs` without `adaptive`, by which each copy of an environment would have a level."""
        if not self.is_adaptive:
            return self.kwargs
        return {name: value for name, value in self.kwargs.items() if name != "adaptive"}


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
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the base's weights. Auto is float32 on a CPU, bfloat16 on a GPU."""
    load_in_4bit: bool = False
    """Quantizes the learner's base with bitsandbytes (`pip install 'agentpeft[quantize]'`). Engines
    serve a dequantized copy, which takes the memory of `dtype`; vLLM reads it from the cache, where
    the first runner of a machine writes it.
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

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in `run`."""
        if self.load_in_4bit and (not run.lora.use_lora or run.is_tiny):
            yield (
                "model.load_in_4bit freezes a large base: it needs lora.use_lora = true and "
                "another model.name than 'tiny'"
            )
        if self.adapter is not None and not run.lora.use_lora:
            yield f"model.adapter {self.adapter!r} is trained further: lora.use_lora must be true"
        if self.tool_calls and (run.is_tiny or not self.use_chat_template):
            yield (
                "model.tool_calls needs a chat template with tools: another model.name than "
                "'tiny', and model.use_chat_template = true"
            )
        if self.tool_calls and (run.training.chats or run.warm_start.chats):
            yield "model.tool_calls imitates the oracle's calls: chats are texts alone"
        if self.chat_template_kwargs and not self.use_chat_template:
            yield ("model.chat_template_kwargs has no effect with model.use_chat_template = false")
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
_RESERVED = frozenset(
    {
        *("messages", "conversation", "conversations", "chat_template", "add_generation_prompt"),
        "tools",
        *("continue_final_message", "tokenize", "padding", "truncation", "max_length"),
        *("return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
    }
)
"""What `apply_chat_template` takes for itself, or `ChatFormat` gives it."""


class TinySettings(Section):
    """The architecture (Llama's, with biases in attention) of the built-in model.

    Refused where `model.name` is another.
    """

    hidden_size: Count = 192
    """Width of the residual stream; a multiple of twice the number of heads."""
    num_layers: Count = 4
    """Number of layers."""
    num_heads: Count = 4
    """Number of attention heads."""
    intermediate_size: Count = 512
    """Width of the feed-forward layers."""
    vocab_size: int = Field(default=512, ge=300, le=65536)
    """Size of the byte-level BPE vocabulary, 300 to 65536."""
    max_context_tokens: Count = 1024
    """The longest conversation in tokens."""
    cuts_words_alike: bool = False
    """Whether a word has the same tokens wherever it stands, which makes it easier to copy."""
    has_induction_heads: bool = False
    """Whether heads of the first layers repeat what came before, ahead of any training."""

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in `run`."""
        if not run.is_tiny and self != TinySettings():
            yield (
                f"the section tiny describes the built-in model, and model.name is "
                f"{run.model.name!r}"
            )
        if self.hidden_size % (2 * self.num_heads) != 0:
            yield (
                f"tiny.hidden_size {self.hidden_size} must be a multiple of 2 * tiny.num_heads "
                f"({self.num_heads})"
            )


class LoraSettings(Section):
    """The adapter that is trained."""

    use_lora: bool = True
    """False trains [all weights](how_it_works.md#all-weights), for models that fit. The section's
    other settings are then not read.
    """
    rank: Count = 16
    """Rank of the adapter."""
    alpha: float = Field(default=32.0, gt=0)
    """The update is scaled by alpha / rank."""
    use_rslora: bool = False
    """rsLoRA: scales by alpha / sqrt(rank) instead, so that a larger rank learns no slower."""
    use_pissa: bool = False
    """PiSSA: begins at the [principal components](algorithms.md#pissa) of each layer's weights. The
    adapter that is delivered and saved has twice the rank.
    """
    target_modules: Literal["all-linear"] | Annotated[tuple[str, ...], Field(strict=False)] = (
        "all-linear"
    )
    """Names of the layers that get an adapter, such as `["q_proj", "v_proj"]`. `all-linear`:
    all linear layers but the output layer.
    """
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of the adapter's input, with algorithm `sft` only."""
    orthogonal_to: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Folders of earlier adapters, which the base has been merged with: a penalty keeps the new
    adapter's A orthogonal to theirs ([O-LoRA](algorithms.md#o-lora)).
    """
    orthogonality_coeff: float = Field(default=0.5, gt=0)
    """Weight of that penalty. Needs `orthogonal_to`."""

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in `run`."""
        if self.orthogonal_to and not self.use_lora:
            yield "lora.orthogonal_to has no effect with lora.use_lora = false"
        if self.orthogonality_coeff != 0.5 and not self.orthogonal_to:
            yield "lora.orthogonality_coeff has no effect without lora.orthogonal_to"
        if self.dropout > 0 and run.is_rl:
            yield (
                f"lora.dropout {self.dropout} is for algorithm 'sft': with RL the learner's "
                "probabilities would differ from those that were sampled; set it to 0"
            )
        if self.use_rslora and not self.use_lora:
            yield "lora.use_rslora has no effect with lora.use_lora = false"
        if self.use_pissa:
            yield from self._pissa_conflicts(run)
        if not self.use_lora and run.training.critic == "separate":
            yield (
                "training.critic 'separate' is an adapter on a frozen base, and lora.use_lora = "
                "false trains all weights: set it to 'shared'"
            )

    def _pissa_conflicts(self, run: "Settings") -> Iterator[str]:
        if not self.use_lora:
            yield "lora.use_pissa has no effect with lora.use_lora = false"
        if self.orthogonal_to:
            yield "lora.use_pissa chooses what the adapter reads, and so does lora.orthogonal_to"
        if run.model.load_in_4bit:
            yield "lora.use_pissa needs the base's weights: set model.load_in_4bit to false"
        if run.model.adapter is not None:
            saved = self.as_saved()
            yield (
                f"lora.use_pissa begins a new adapter, and model.adapter {run.model.adapter!r} is "
                "one: to go on with an adapter of PiSSA, set lora.use_pissa to false, lora.rank to "
                f"{saved.rank} and lora.alpha to {saved.alpha:g}"
            )
        if run.training.weight_decay > 0:
            yield (
                "training.weight_decay would take the adapter of lora.use_pissa away from the "
                f"components that it begins at: set it to 0, got {run.training.weight_decay}"
            )

    def as_saved(self) -> "LoraSettings":
        """Returns the settings of plain LoRA that the adapter has once it is saved or delivered."""
        if not self.use_pissa:
            return self
        factor = 2**0.5 if self.use_rslora else 2.0  # the scale stays as it is
        changes = {"use_pissa": False, "rank": 2 * self.rank, "alpha": factor * self.alpha}
        return self.model_copy(update=changes)


ENVIRONMENT_FILES = ("data", "scripts", "ca_file")
"""Environments' keyword arguments that name files."""
SUCCESS_WINDOW = 8
"""Steps of a warm start by whose mean success its target and its stages go."""


class WarmStartSettings(Section):
    """Supervised steps on the oracle's episodes before RL."""

    num_steps: CountOrZero = 0
    """Number of steps at most. They train the tiny model's base weights (cached in
    `~/.cache/agentpeft`, or in `AGENTPEFT_CACHE`) or what is trained of any other model. 0: no
    warm start.
    """
    target_success: float | None = Field(default=None, gt=0, le=1)
    """Tiny model only: the learning rate begins to fall once greedy decoding would play this
    share of the episodes right. None: all `num_steps` are taken.
    """
    decay: float = Field(default=0.1, ge=0, le=1)
    """Tiny model only: share of `num_steps`, or of the steps up to the target, over which the
    learning rate falls to 0 at the end.
    """
    batch_size: Count = 64
    """Episodes in a step."""
    lr: float = Field(default=2e-3, gt=0)
    """Learning rate. The tiny model's rises over the first 5 % of the steps, stays, and falls
    linearly to 0 at the end.
    """
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Override `environment.kwargs`, for easier tasks to learn from."""
    stages: Annotated[tuple[dict[str, Any], ...], Field(strict=False)] = ()
    """Stages from what is easily imitated to what is wanted, each of which overrides some of
    `env_kwargs`. They share `num_steps` equally. `target_success` counts in the last one. The tiny
    model's vocabulary is of the first. Empty: one stage.
    """
    promote_at: float | None = Field(default=None, gt=0, le=1)
    """Tiny model only: a stage ends early once greedy decoding would play this share of the
    episodes of its last eight steps right. The next ones can take longer then.
    """
    chats: str | None = Field(default=None, min_length=1)
    """JSONL or parquet file of [chats](algorithms.md#imitation-of-chats) to learn from, or
    `hub:owner/name[:split]`. None: the oracle's episodes.
    """

    @property
    def stage_ends(self) -> list[int]:
        """After how many steps each stage ends at the latest."""
        num_stages = max(len(self.stages), 1)
        return [self.num_steps * number // num_stages for number in range(1, num_stages + 1)]

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in `run`."""
        if self.target_success is not None and not run.is_tiny:
            yield (
                f"warm_start.target_success {self.target_success} is for the tiny model's base "
                f"weights, not for {run.model.name!r}"
            )
        if self.chats is not None and self.num_steps == 0:
            yield f"warm_start.chats {self.chats!r} has no effect with warm_start.num_steps = 0"
        num_stages = len(self.stages)
        if self.promote_at is not None and not (self.stages and run.is_tiny):
            yield "warm_start.promote_at is for the stages of the tiny model's warm start"
        elif self.promote_at is not None and 0 < self.num_steps <= SUCCESS_WINDOW * num_stages:
            yield "warm_start.promote_at has no effect on stages of at most eight steps"
        if num_stages == 1:
            yield "warm_start.stages must be two or more, got 1: put it into warm_start.env_kwargs"
        if 0 < self.num_steps < num_stages:
            yield f"warm_start.num_steps is {self.num_steps}, fewer than the {num_stages} stages"
        if self.stages and self.chats is not None:
            yield "warm_start.stages are of the oracle's episodes, which warm_start.chats replaces"
        fixed = {*ENVIRONMENT_FILES, "sources", "split"}
        for name in sorted(fixed.intersection(set().union(*self.stages))):
            yield f"warm_start.stages may not change {name!r}: set it in warm_start.env_kwargs"


class EnvRunnerSettings(Section):
    """The processes that play the episodes, and their engines."""

    num_env_runners: CountOrZero = 1
    """Number of runner processes (Ray actors). 0 plays and learns in this process, without
    Ray.
    """
    num_cpus_per_env_runner: float = Field(default=0.5, ge=0)
    """CPUs that Ray reserves for each runner."""
    num_gpus_per_env_runner: float = Field(default=0.0, ge=0)
    """GPUs that Ray reserves for each runner, all of one machine. Above 0 the model is on the GPU;
    2 and more are for [a vLLM engine over several GPUs](vllm.md#a-model-larger-than-one-gpu).
    """
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """How Ray places the runners: `PACK` on few machines, `SPREAD` over many; `STRICT_…` on
    one, or each on its own, or not at all.
    """
    num_threads: Threads = 2
    """Torch's threads in each runner."""
    engine: Literal["transformers", "vllm", "scripted"] = "transformers"
    """`transformers` and [`vllm`](vllm.md) sample from the model; `scripted` plays the
    oracle.
    """
    shared_engines: str | None = Field(default=None, min_length=1)
    """[Engines that other runs use too](vllm.md#engines-that-runs-share), as `module:NAME`
    (`agentpeft.apps.shared_engines:sweep`): each runner plays with one of them, in LoRA slots of
    its own. None: each has an engine of its own.
    """
    serving: Literal["auto", "native", "fused"] = "auto"
    """How an adapter is served: `native` in LoRA layers, `fused` into the weights. Auto is
    `native` over a base in bfloat16, else `fused`
    ([why](delivery.md#small-steps-over-a-bfloat16-base)).
    """
    kv_cache_gib: float | None = Field(default=None, gt=0)
    """Memory of a vLLM engine for keys and values, in GiB, on each of its GPUs. None: 1 on a CPU;
    on a GPU what is left of its share.
    """
    sleep_while_learning: bool = False
    """Engines leave their memory to the learners while these learn: keys and values, of vLLM on a
    GPU the weights too ([one GPU](delivery.md#learner-and-runners-on-one-gpu)).
    """
    max_concurrent_episodes: Count = 256
    """Episodes that each runner plays at once; whenever fewer are in play it takes the next group.
    """
    max_new_tokens: Count = 256
    """Longest turn in tokens. It is also the constant of `loss_normalization = "constant"`."""
    max_context_tokens: Count | None = None
    """Longest conversation in tokens; a full one ends the episode (`context_limit`). None:
    the model's own limit.
    """
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature of training; greedy evaluation does not read it. 0 is refused with
    RL.
    """
    step_timeout_s: float = Field(default=60.0, gt=0)
    """A step of the environment that takes longer is a fault: the episode is played again in
    a fresh environment.
    """
    episode_timeout_s: float = Field(default=600.0, gt=0)
    """Time of an episode, the engine's included. One that takes longer leaves its group,
    counted in `sample/num_slow_episodes`.
    """

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in `run`."""
        if self.engine != "vllm" and self.kv_cache_gib is not None:
            yield f"env_runners.kv_cache_gib has no effect with engine {self.engine!r}"
        if self.shared_engines is not None:
            yield from self._conflicts_of_sharing(self.shared_engines, run)
        if self.engine == "scripted" and self.serving != "auto":
            yield f"env_runners.serving {self.serving!r} has no effect with engine 'scripted'"
        yield from self._conflicts_of_sleeping(run)
        num_gpus = self.num_gpus_per_env_runner
        if num_gpus > 1 and self.engine != "vllm":
            yield (
                f"env_runners.num_gpus_per_env_runner {num_gpus:g}: engine {self.engine!r} "
                "computes on one GPU; set it to 1 and take more env runners, or take engine 'vllm'"
            )
        if num_gpus > 1 and num_gpus % 1 > 0:
            yield (
                f"env_runners.num_gpus_per_env_runner {num_gpus:g} must be whole above 1: vLLM "
                "divides each layer over all of them"
            )
        if self.serving == "native" and not run.lora.use_lora:
            yield ("env_runners.serving = 'native' serves adapters: it needs lora.use_lora = true")
        if self.engine == "vllm" and 0 < self.temperature < 0.01:
            yield (
                f"env_runners.temperature {self.temperature:g} is taken for 0.01 by vLLM: raise it"
            )
        limits = [self.max_context_tokens, run.tiny.max_context_tokens if run.is_tiny else None]
        if self.max_new_tokens >= min((n for n in limits if n is not None), default=10**9):
            yield (
                f"env_runners.max_new_tokens {self.max_new_tokens} leaves no room for a prompt: it "
                "must be below env_runners.max_context_tokens (of the tiny model: "
                "tiny.max_context_tokens)"
            )
        if self.temperature == 0 and run.is_rl:
            yield (
                "env_runners.temperature 0 always samples the same episode: RL needs > 0 "
                "(evaluation is greedy by itself)"
            )

    def limit_context(self, model_limit: int) -> int:
        """Returns the most tokens of a conversation: the model's limit, or the one that is set."""
        return min(self.max_context_tokens or model_limit, model_limit)

    def _conflicts_of_sleeping(self, run: "Settings") -> Iterator[str]:
        if not self.sleep_while_learning:
            return
        name = "env_runners.sleep_while_learning"
        if self.engine == "scripted":
            yield f"{name} has no effect with engine 'scripted'"
        if run.max_adapter_lag > 0:
            yield f"{name}: with max_adapter_lag > 0 the runners play while the learners learn"
        if self.shared_engines is not None:
            yield f"{name}: other runs play with env_runners.shared_engines while this one learns"
        of_runner, of_learner = self.num_gpus_per_env_runner, run.learners.num_gpus_per_learner
        if of_runner > 0 and (of_learner == 0 or of_runner + of_learner > 1):
            yield (
                f"{name}: env_runners.num_gpus_per_env_runner {of_runner:g} and "
                f"learners.num_gpus_per_learner {of_learner:g} share no GPU"
            )

    def _conflicts_of_sharing(self, shared_engines: str, run: "Settings") -> Iterator[str]:
        name = f"env_runners.shared_engines {shared_engines!r}"
        module, _, group = shared_engines.partition(":")
        if not (module and group):
            yield (
                f"{name} must be MODULE:NAME: the module that finds the engines, and what they are "
                "called there, as agentpeft.apps.shared_engines:sweep"
            )
        if self.engine != "vllm":
            yield f"{name}: the engines are vLLM's, set env_runners.engine = 'vllm'"
        if self.serving == "fused" or not run.lora.use_lora:
            yield f"{name}: they serve adapters in slots, neither fused nor all weights"
        if self.num_env_runners == 0:
            yield f"{name}: they are in a Ray cluster, and env_runners.num_env_runners is 0"
        if self.num_gpus_per_env_runner > 0 or self.kv_cache_gib is not None:
            yield (
                f"{name}: GPUs and memory for keys and values are the engines', so leave "
                "env_runners.num_gpus_per_env_runner and env_runners.kv_cache_gib out"
            )


class TrainingSettings(Section):
    """What is learnt, and how: [what the algorithms compute](algorithms.md).

    A setting that the algorithm does not read is refused when it is set. None means the
    algorithm's own default.
    """

    algorithm: AlgorithmName = "grpo"
    """`reinforce`, `rloo`, `grpo`, `dr_grpo`, `gspo`, `cispo`, `raft`, `ppo`, `a2c`,
    `distill` or `sft`.
    """
    num_iterations: CountOrZero = 100
    """Iterations of the whole run."""
    num_groups: Count = 32
    """Tasks in an iteration."""
    group_size: Count = 8
    """Episodes of each task."""
    lr: float = Field(default=1e-4, gt=0)
    """AdamW's learning rate."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate; `linear` and `cosine` end near 0 at the last iteration."""
    num_warmup_iterations: CountOrZero = 0
    """Iterations over which the learning rate rises linearly at the start."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's weight decay."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's decay of the mean gradient."""
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    """AdamW's decay of the mean squared gradient. Lower (0.95, 0.99) where gradients change
    much from step to step.
    """
    lora_plus_ratio: float = Field(default=1.0, gt=0)
    """LoRA+: the learning rate of the adapter's B over that of its A, which is `lr`. Its paper
    takes about 16.
    """
    max_grad_norm: float = Field(default=1.0, gt=0)
    """The norm of the gradient is clipped to this."""
    num_epochs: Count | None = None
    """Passes over an iteration's episodes. None: 2 with `ppo`, else 1. `reinforce`, `rloo`
    and `a2c` allow 1 only, since their loss has no ratio.
    """
    num_minibatches: Count = 1
    """Optimizer steps in a pass. A group is never cut, so of fewer groups there are fewer steps."""
    clip_range: float | None = Field(default=None, gt=0)
    """ε of the clipped ratio (`grpo`, `dr_grpo`, `gspo`, `cispo`, `ppo`, `distill`). None:
    0.0003 with `gspo`, 1 with `cispo` (no lower bound), else 0.2.
    """
    clip_range_high: float | None = Field(default=None, gt=0)
    """Upper ε of the clipped ratio (clip-higher). None: `clip_range`; without either 0.0004 with
    `gspo`, 4 with `cispo`.
    """
    loss_normalization: Normalization | None = None
    """What the loss is averaged over: `token`, `sequence`, `constant`. None: `constant` with
    `dr_grpo`, `sequence` with `gspo` and `raft`, else `token`.
    """
    kl_coeff: NonNegativeFloat = 0.0
    """Weight of the KL to the reference, which is the base without the adapter, or the
    adapter that training started from.
    """
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the KL: `k1` (only with `kl_placement` "reward"), `k2`, `k3`."""
    kl_placement: Literal["loss", "reward"] = "loss"
    """Where the KL goes: `loss`, a term of the loss; `reward`, subtracted from the turns'
    rewards.
    """
    entropy_coeff: float | None = Field(default=None, ge=0)
    """Weight of the entropy bonus. None: 0.01 with `ppo`, else 0."""
    baseline_momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of REINFORCE's moving baseline."""
    importance_cap: float | None = Field(default=None, gt=0)
    """Truncated importance sampling: the cap on the ratio of the learner's probability to the
    engine's. None: 2.0 with `max_adapter_lag` or `num_replay_tasks` above 0, else off.
    """
    max_token_mismatch: float | None = Field(default=None, gt=1)
    """Leaves a token out of the policy loss if the learner's and the engine's probabilities of
    it differ by more than this factor. None: never.
    """
    max_sequence_mismatch: float | None = Field(default=None, gt=1)
    """Leaves an episode out of the policy loss if its tokens' probabilities differ by more than
    this factor in the geometric mean. None: never.
    """
    critic: CriticKind | None = None
    """Predicts the returns of turns, with `ppo` and `a2c`: `shared` (on the policy's adapter)
    or `separate` (an adapter of its own). None: `shared` with `a2c`, no critic with `ppo`.
    """
    critic_lr: float | None = Field(default=None, gt=0)
    """Learning rate of the critic's own weights (its head; with `separate` its adapter too),
    by the same schedule. None: `training.lr`; others take 5 to 20 times that.
    """
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount (gamma) of the next turn's value. Needs a critic."""
    lambda_: float = Field(default=1.0, ge=0, le=1)
    """Lambda of GAE: 1 uses the rewards that came, 0 the next turn's value in their place. Needs
    a critic.
    """
    vf_loss_coeff: float = Field(default=0.5, gt=0)
    """Weight of the value loss. Needs a critic."""
    clip_range_vf: float | None = Field(default=None, gt=0)
    """How far a value may move from the old one before the value loss stops pulling (`ppo`
    with a critic). None: not clipped.
    """
    overlong_tokens: Count | None = None
    """Sampled tokens of an episode, all turns together, from which on its reward is lowered by
    the whole `overlong_penalty`. None: no penalty.
    """
    overlong_buffer_tokens: Count | None = None
    """The tokens below `overlong_tokens` over which the penalty rises from 0. None: a fifth of
    `overlong_tokens`.
    """
    overlong_penalty: float = Field(default=1.0, gt=0)
    """What an overlong episode's reward loses. Needs `overlong_tokens`."""
    teacher: str | None = Field(default=None, min_length=1)
    """A model (as `model.name`), an adapter's folder, or the URL of an endpoint (vLLM, SGLang),
    with the policy's vocabulary: each sampled token's advantage gets its log-probability there less
    the policy's ([distillation](algorithms.md#a-teacher)). None: no teacher.
    """
    teacher_model: str | None = Field(default=None, min_length=1)
    """Name of the teacher's model at the endpoint that `teacher` names. None: the one that it has.
    """
    teacher_coeff: float = Field(default=1.0, gt=0)
    """Weight of what the teacher adds. Needs `teacher`."""
    num_replay_tasks: CountOrZero = 0
    """Number of tasks, the latest, whose last success is remembered; it joins a group of the
    same task in which all episodes failed. 0: no replay.
    """
    chats: str | None = Field(default=None, min_length=1)
    """JSONL or parquet file of [chats](algorithms.md#imitation-of-chats), or
    `hub:owner/name[:split]`, that algorithm `sft` learns from. None: the oracle's episodes.
    """
    shuffle_rewards: bool = False
    """A control: deals each update's rewards out among its episodes at random, so that they
    teach nothing.
    """
    dynamic_sampling: bool = False
    """Drops groups of equal returns before the update."""
    max_resampled_groups: CountOrZero = 0
    """With `dynamic_sampling`: further groups that an iteration may sample in place of dropped
    ones, until `num_groups` have unequal returns. 0: none.
    """

    @property
    def is_taught_by_endpoint(self) -> bool:
        """Whether the teacher is a server's."""
        return (self.teacher or "").startswith(("http://", "https://"))

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in the run."""
        yield from self._unread()
        yield from self._overlong()
        yield from self._additions(run)
        if self.group_size == 1 and (self.dynamic_sampling or self.algorithm in _NEEDS_GROUPS):
            yield (
                f"training.group_size must be >= 2, got 1: algorithm {self.algorithm!r} or "
                "training.dynamic_sampling compares the episodes of a group"
            )
        if self.max_resampled_groups > 0 and not self.dynamic_sampling:
            yield (
                f"training.max_resampled_groups {self.max_resampled_groups} has no effect without "
                "training.dynamic_sampling = true"
            )
        if self.chats is not None and run.is_rl:
            yield (
                f"training.chats {self.chats!r} are for algorithm 'sft', not {self.algorithm!r}: "
                "leave them out, or begin with them (warm_start.chats)"
            )
        is_signed_raft = self.algorithm == "raft" and self.teacher is not None
        if (self.num_epochs or 1) > 1 and (self.algorithm in _WITHOUT_RATIO or is_signed_raft):
            yield (
                f"training.num_epochs {self.num_epochs}: the loss of algorithm {self.algorithm!r} "
                "has no ratio to the policy that sampled, which later epochs need: set it to 1, "
                "or take grpo, dr_grpo, gspo, cispo or ppo"
            )
        low = self.clip_range or _DEFAULT_CLIP_RANGE.get(self.algorithm, 0.2)
        if self.algorithm != "cispo" and (self.clip_range_high or 1e9) < low:
            yield (
                f"training.clip_range_high {self.clip_range_high} must be >= training.clip_range "
                f"({low:g} unless set)"
            )
        if 0 < self.num_iterations <= self.num_warmup_iterations:
            yield (
                f"training.num_warmup_iterations {self.num_warmup_iterations} must be below "
                f"training.num_iterations {self.num_iterations}"
            )
        kl = self.kl_placement, self.kl_estimator
        if self.kl_coeff > 0 and kl == ("loss", "k1"):
            yield (
                "training.kl_estimator 'k1' has no useful gradient as a loss (its expectation is "
                "zero): set training.kl_placement to 'reward', or take k2 or k3"
            )
        if self.kl_coeff == 0 and kl != ("loss", "k3"):
            yield (
                "training.kl_placement and kl_estimator have no effect without "
                "training.kl_coeff > 0"
            )

    def _unread(self) -> Iterator[str]:
        """Yields the settings that were changed though this algorithm does not read them."""
        changed = self.changed()
        for name in sorted(changed & {*_IGNORED.get(self.algorithm, ())}):
            readers = [known for known, names in _IGNORED.items() if name not in names]
            yield (
                f"training.{name} has no effect with algorithm {self.algorithm!r} (it is for "
                f"{', '.join(readers)}): leave it at {dict(TrainingSettings())[name]!r}"
            )
        if self.algorithm == "ppo" and self.critic is None and changed & {*_CRITIC}:
            yield (
                "training.critic_lr, gamma, lambda_, vf_loss_coeff and clip_range_vf have no "
                "effect without a critic: set training.critic to 'shared' or 'separate'"
            )

    def _additions(self, run: "Settings") -> Iterator[str]:
        """Yields what is wrong with LoRA+, the replay and the teacher."""
        if self.lora_plus_ratio != 1 and not run.lora.use_lora:
            yield "training.lora_plus_ratio has no effect with lora.use_lora = false"
        telling = {"num_replay_tasks": 0, "overlong_tokens": None, "teacher": None}
        for name, default in telling.items():
            if self.shuffle_rewards and dict(self)[name] != default:
                yield (
                    f"training.{name} would still tell the learner how an episode went, which "
                    "training.shuffle_rewards hides: leave it out of the control"
                )
        if self.teacher is not None and self.dynamic_sampling:
            yield (
                "training.dynamic_sampling would drop the groups of equal returns, of which "
                "training.teacher has something to say: set it to false"
            )
        if self.algorithm == "distill" and self.teacher is None:
            yield "training.algorithm 'distill' learns from a teacher alone: set training.teacher"
        if self.algorithm == "distill" and self.kl_placement == "reward":
            yield "training.kl_placement 'reward' has no effect with algorithm 'distill'"
        if self.is_taught_by_endpoint and (run.deterministic or run.env_runners.temperature != 1):
            yield (
                f"training.teacher {self.teacher!r}: an endpoint says log-probabilities at "
                "temperature 1, whose rounding depends on what else it computes: set "
                "env_runners.temperature to 1 and deterministic to false"
            )
        if self.teacher_model is not None and not self.is_taught_by_endpoint:
            yield (
                f"training.teacher_model {self.teacher_model!r} has no effect unless "
                "training.teacher is an endpoint's URL (http://…)"
            )
        if self.teacher is None and self.teacher_coeff != 1:
            yield "training.teacher_coeff has no effect without training.teacher"

    def _overlong(self) -> Iterator[str]:
        """Yields what is wrong with the penalty for overlong episodes."""
        if self.overlong_tokens is None and self.changed() & {*_OVERLONG}:
            yield (
                "training.overlong_buffer_tokens and overlong_penalty have no effect without "
                "training.overlong_tokens"
            )
        if (self.overlong_buffer_tokens or 0) > (self.overlong_tokens or 10**9):
            yield (
                f"training.overlong_buffer_tokens {self.overlong_buffer_tokens} must be <= "
                f"training.overlong_tokens {self.overlong_tokens}"
            )


_CLIP = ("clip_range", "clip_range_high")
_DEFAULT_CLIP_RANGE = {"gspo": 3e-4}
_CRITIC = ("critic", "critic_lr", "gamma", "lambda_", "vf_loss_coeff", "clip_range_vf")
_OVERLONG = ("overlong_buffer_tokens", "overlong_penalty")
_KL = ("kl_coeff", "kl_estimator", "kl_placement")
_IGNORED: dict[str, tuple[str, ...]] = {
    "reinforce": (*_CLIP, *_CRITIC),
    "rloo": (*_CLIP, *_CRITIC, "baseline_momentum"),
    "raft": (*_CLIP, *_CRITIC, "baseline_momentum"),
    "grpo": (*_CRITIC, "baseline_momentum"),
    "dr_grpo": (*_CRITIC, "baseline_momentum"),
    "gspo": (*_CRITIC, "baseline_momentum"),
    "cispo": (*_CRITIC, "baseline_momentum"),
    "ppo": ("baseline_momentum",),
    "distill": (
        *_CRITIC,
        *_OVERLONG,
        "overlong_tokens",
        "baseline_momentum",
        "dynamic_sampling",
        "max_resampled_groups",
        "num_replay_tasks",
        "shuffle_rewards",
    ),
    "a2c": (*_CLIP, "clip_range_vf", "baseline_momentum"),
    "sft": (
        *_CLIP,
        *_CRITIC,
        *_KL,
        *_OVERLONG,
        "overlong_tokens",
        "baseline_momentum",
        "dynamic_sampling",
        "entropy_coeff",
        "group_size",
        "importance_cap",
        "num_replay_tasks",
        "teacher",
        "teacher_coeff",
        "teacher_model",
        "max_token_mismatch",
        "max_sequence_mismatch",
        "max_resampled_groups",
        "shuffle_rewards",
    ),
}
"""Which settings of `training` an algorithm does not read."""
_WITHOUT_RATIO = ("reinforce", "rloo", "a2c")
_NEEDS_GROUPS = ("rloo", "grpo", "dr_grpo", "gspo", "cispo", "raft")


class LearnerSettings(Section):
    """How many learners share an update, where, and in what portions each computes."""

    num_learners: Count = 1
    """Processes that share each update ([how](how_it_works.md#several-learners)). The other
    settings of this section hold for each of them.
    """
    num_cpus_per_learner: float = Field(default=0.5, ge=0)
    """CPUs that Ray reserves."""
    num_gpus_per_learner: float = Field(default=0.0, ge=0)
    """GPUs that Ray reserves. Above 0 the model is on the GPU."""
    num_threads: Threads = 2
    """Torch's threads."""
    autocast: Literal["auto", "off", "bfloat16"] = "auto"
    """Computes in bfloat16. Auto does so on a GPU, and on a CPU for models of 50 million
    weights or more.
    """
    shard_base: bool = False
    """Each learner holds one part in `num_learners` of each layer of the frozen base, and the
    learners gather a layer while they run it: for
    [a base larger than one device](how_it_works.md#a-base-larger-than-one-device). Takes more time.
    """
    gradient_checkpointing: bool = False
    """Computes the layers again in the backward pass: takes less memory and more time."""
    share_prompts: bool = True
    """Computes the prompt of a group once; the gradient is the same. Models whose layers see a
    window, or keep a state, compute each sequence alone, padded.
    """
    max_tokens_per_micro_batch: Count = 8192
    """Tokens of a forward pass, padding included. Halved when memory does not suffice, and doubled
    again after 20 updates for which it did.
    """

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in `run`."""
        if self.num_learners > 1 and run.env_runners.num_env_runners == 0:
            yield (
                f"learners.num_learners {self.num_learners} are processes of their own, which the "
                "serial mode (env_runners.num_env_runners = 0) does not start: set it to 1"
            )
        if self.num_learners > run.training.num_groups:
            yield (
                f"learners.num_learners {self.num_learners} must be <= training.num_groups "
                f"{run.training.num_groups}: a group is one learner's"
            )
        if self.num_learners > 1 and self.num_gpus_per_learner % 1 > 0:
            yield (
                f"learners.num_gpus_per_learner {self.num_gpus_per_learner} must be whole with "
                "several learners, which nccl cannot place on one GPU"
            )
        if not self.shard_base:
            return
        if self.num_learners == 1:
            yield (
                "learners.shard_base deals a base out over several learners: learners.num_learners "
                "must be >= 2, got 1"
            )
        if not run.lora.use_lora:
            yield (
                "learners.shard_base deals a frozen base out, and lora.use_lora = false trains all "
                "weights: set it to false"
            )
        if run.model.load_in_4bit:
            yield (
                "learners.shard_base deals out weights of model.dtype: set model.load_in_4bit to "
                "false"
            )


class EvaluationSettings(Section):
    """Greedy episodes on held-out tasks, before and after training."""

    interval: CountOrZero = 0
    """Also evaluates after every so many iterations. 0: only before and after training."""
    num_tasks: CountOrZero = 200
    """Number of tasks. 0 evaluates nothing, and the success rates are null."""
    samples_per_task: Count = 1
    """1 is greedy. More are sampled at the training temperature, and `pass_at/k` is reported."""
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Override `environment.kwargs`, such as `{split = "test"}`. Needed where training reads
    a file, whose tasks would else be evaluated.
    """

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in `run`."""
        if self.samples_per_task > 1 and run.env_runners.temperature == 0:
            yield (
                f"evaluation.samples_per_task {self.samples_per_task} would be equal samples at "
                "env_runners.temperature 0"
            )
        evaluated = [
            (own.get("data"), own.get("split")) for own in drawn_kwargs(run.held_out_kwargs)
        ]
        trained = [
            own["data"]
            for stage in run.stage_kwargs
            for own in drawn_kwargs(stage)
            if own.get("data") is not None and (own["data"], own.get("split")) in evaluated
        ]
        if self.num_tasks > 0 and trained:
            yield (
                f"evaluation would play the training file {trained[0]!r}: name other data, or "
                "another split of it, in evaluation.env_kwargs, or set evaluation.num_tasks = 0"
            )
        if without_training_rewards(self.env_kwargs) != self.env_kwargs:
            yield (
                "evaluation.env_kwargs has partial_credit or a turn_reward_fn, which are for "
                "training alone: leave them out"
            )
        if self.interval > 0 and self.num_tasks == 0:
            yield f"evaluation.interval {self.interval} has no effect with evaluation.num_tasks = 0"


class FaultToleranceSettings(Section):
    """Retry limits, timeouts and delivery checks; RLlib's names where it has one.

    Restarts are counted over the whole run.
    """

    max_episode_retries: CountOrZero = 3
    """How often an episode that ended with an `EnvFault` is played again; then its group is
    dropped and counted.
    """
    max_failed_group_share: float = Field(default=0.5, ge=0, lt=1)
    """A round or evaluation of which more than this share of the groups fail in their
    environment ends the run, with the last fault.
    """
    max_skipped_updates: CountOrZero = 5
    """Steps in a row without a finite gradient; one more ends the run."""
    placement_timeout_s: float = Field(default=30.0, gt=0)
    """What Ray cannot place in time ends the run, with what was asked for and what there is.
    The run goes on without a restarted runner for which there is no place, as long as there
    are others.
    """
    max_num_env_runner_restarts: CountOrZero = 20
    """How often a runner is restarted that is gone, hangs, whose engine fails or that cannot
    prove its adapter. 0: it ends the run.
    """
    env_runner_restore_timeout_s: float = Field(default=1800.0, gt=0)
    """How long runners, or the learner, may take to start, loading the model included."""
    env_runner_health_probe_timeout_s: float = Field(default=30.0, gt=0)
    """While results are waited for, a runner or learner that does not answer a ping for so
    long is ended, and counts as gone.
    """
    ray_timeout_s: float = Field(default=60.0, gt=0)
    """How long Ray's own processes (raylet, GCS) may take to answer a call of the driver;
    then the run ends, to be resumed.
    """
    max_num_learner_restarts: CountOrZero = 3
    """How often a learner that is gone is restarted from the last checkpoint. 0: it ends the
    run.
    """
    probe_interval: CountOrZero = 1
    """At every n-th adapter version learner and engines must [agree on fixed
    tokens](delivery.md). 0: never.
    """
    max_probe_difference: float | None = Field(default=None, gt=0)
    """Largest mean difference of their log-probabilities that is still a delivery. None:
    0.001 in float32; where a base or the learner computes in bfloat16, 0.05 or a hundredth of
    their mean, whichever is more.
    """
    min_served_effect: float = Field(default=0.8, ge=0, lt=1)
    """Share of an adapter's change that the served weights must hold, or it is no delivery.
    0: any.
    """

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in `run`."""
        has_no_probe = self.probe_interval == 0 or run.env_runners.engine == "scripted"
        if has_no_probe and self.changed() & {"max_probe_difference", "min_served_effect"}:
            yield (
                "fault_tolerance.max_probe_difference and min_served_effect have no effect with "
                "fault_tolerance.probe_interval = 0, nor with env_runners.engine 'scripted', which "
                "has no weights"
            )


class OutputSettings(Section):
    """What a run writes."""

    dir: str = "outputs"
    """A run writes below `dir`/experiment/timestamp."""
    checkpoint_interval: CountOrZero | Literal["epoch"] = 10
    """Saves after every so many iterations, at the end and when stopped. 0: only at the end
    and when stopped, so that a killed run is lost but for its best. `epoch`: whenever all tasks
    of a task file, or all of `training.chats`, have been taken once more. An evaluation with more
    success than all before saves too.
    """
    num_checkpoints_kept: Count = 2
    """Number of checkpoints that are kept, the newest. Besides them the one with the most success
    in an evaluation is kept, as [`checkpoints/best`](how_it_works.md#the-best-checkpoint).
    """
    tensorboard: bool = True
    """Writes TensorBoard's event files to `logs/`."""
    wandb: Literal["off", "online", "offline"] = "off"
    """Logs to Weights & Biases (`pip install 'agentpeft[wandb]'`), with tables of sample episodes
    where `episodes` is true; a resumed run goes on there.
    """
    episodes: bool = True
    """Writes every episode with its messages to `sessions/`: some kilobytes each, so turn it off
    for a long run on a small disk.
    """

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in `run`."""
        has_stages = bool(run.curriculum.stages) or run.environment.is_adaptive
        if self.checkpoint_interval == "epoch" and (
            has_stages or run.curriculum.sampling != "uniform"
        ):
            yield (
                "output.checkpoint_interval 'epoch' needs one set of tasks that is gone through: "
                "it goes with no curriculum.stages, adaptive difficulty or curriculum.sampling "
                "'frontier'; give a number"
            )


class Settings(Section):
    """All settings of a run; contradictions between them are refused."""

    experiment: str = Field(default="experiment", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Name of the folder below `output.dir`, and a part of every adapter version's name."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Decides tasks, sampling, new weights and minibatches."""
    deterministic: bool = False
    """CPU only: batches are composed in one fixed way, so that a run can be repeated, and a
    resumed run equals an uninterrupted one to the bit. Needs `max_adapter_lag` 0.
    """
    max_adapter_lag: CountOrZero = 0
    """0 samples and learns in turn. n samples while it learns, up to n updates ahead, and drops
    what is older (counted in `sample/num_stale_groups`); needs a runner process. See
    [staleness](how_it_works.md#staleness).
    """
    in_flight_updates: bool = False
    """With `max_adapter_lag`: a new adapter takes over the turns that are being sampled, after the
    tokens that they have, so that no episode is too long for a batch. What bounds the lag is then
    an episode's end ([in flight](how_it_works.md#adapters-that-change-in-flight)).
    """
    callbacks: str | None = Field(default=None, pattern=r"^[\w.]+:\w+$")
    """`module:Class` of [your own code](callbacks.md) that is called as the run goes on. None:
    none.
    """
    environment: EnvironmentSettings = EnvironmentSettings()
    curriculum: CurriculumSettings = CurriculumSettings()
    model: ModelSettings = ModelSettings()
    tiny: TinySettings = TinySettings()
    lora: LoraSettings = LoraSettings()
    warm_start: WarmStartSettings = WarmStartSettings()
    env_runners: EnvRunnerSettings = EnvRunnerSettings()
    training: TrainingSettings = TrainingSettings()
    learners: LearnerSettings = LearnerSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    fault_tolerance: FaultToleranceSettings = FaultToleranceSettings()
    output: OutputSettings = OutputSettings()

    def __init__(self, **values: Any) -> None:
        """Takes sections, or mappings of their settings. Raises: SettingsError."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError(_message(error)) from None
        sections = [section for _, section in self if isinstance(section, Section)]
        for section in [self, *sections]:
            for message in section.conflicts(self):
                raise SettingsError(message)
        find_spec(self.environment.id)

    def conflicts(self, _run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect between sections."""
        is_serial = self.env_runners.num_env_runners == 0
        if self.max_adapter_lag > 0 and (is_serial or self.deterministic or not self.is_rl):
            yield (
                f"max_adapter_lag {self.max_adapter_lag} samples while it learns, which the serial "
                "mode (env_runners.num_env_runners = 0), deterministic runs and algorithm 'sft' "
                "cannot: set it to 0"
            )
        if self.in_flight_updates and self.max_adapter_lag == 0:
            yield (
                "in_flight_updates has no effect with max_adapter_lag 0: no turn is under way when "
                "an adapter is new"
            )
        if self.in_flight_updates and self.env_runners.shared_engines is not None:
            yield ("in_flight_updates: the turns of env_runners.shared_engines are not interrupted")
        if self.in_flight_updates and self.env_runners.engine == "scripted":
            yield "in_flight_updates has no effect with env_runners.engine = 'scripted'"
        if self.deterministic and self.asks_gpus:
            yield (
                "deterministic runs are on CPUs: learners.num_gpus_per_learner and "
                "env_runners.num_gpus_per_env_runner must be 0"
            )
        if self.deterministic and self.env_runners.engine == "vllm":
            yield (
                "deterministic runs need env_runners.engine = 'transformers': vLLM's rounding "
                "depends on what else is in a batch"
            )
        others = [self.warm_start.env_kwargs, self.evaluation.env_kwargs]
        others += [*self.curriculum.stages, *self.warm_start.stages]
        if any(kwargs.get("adaptive") for kwargs in others):
            yield (
                "'adaptive' makes tasks follow the outcomes of training: it is for "
                "environment.kwargs alone, not for env_kwargs or stages"
            )

    @property
    def is_rl(self) -> bool:
        """Whether rewards are learnt from, rather than the oracle's episodes."""
        return self.training.algorithm != "sft"

    @property
    def num_served_versions(self) -> int:
        """How many adapter versions an engine with slots serves: the ones that turns end with."""
        return 1 if self.in_flight_updates else 1 + self.max_adapter_lag

    @property
    def stage_kwargs(self) -> list[dict[str, Any]]:
        """The environment's keyword arguments in each of the curriculum's stages, one at least."""
        own = self.environment.fixed_kwargs
        return [{**own, **stage} for stage in self.curriculum.stages or ({},)]

    @property
    def warm_start_kwargs(self) -> list[dict[str, Any]]:
        """The environment's keyword arguments in each of the warm start's stages, one at least."""
        own = {**self.environment.fixed_kwargs, **self.warm_start.env_kwargs}
        return [{**own, **stage} for stage in self.warm_start.stages or ({},)]

    @property
    def held_out_kwargs(self) -> dict[str, Any]:
        """The environment's keyword arguments in evaluation."""
        return {**self.environment.fixed_kwargs, **self.evaluation.env_kwargs}

    def with_model(self, **changes: object) -> "Settings":
        """Returns these settings with changes of `model`; a section may be left without effect."""
        model = self.model.model_copy(update=changes)
        return self.model_copy(update={"model": model})

    @property
    def is_tiny(self) -> bool:
        """Whether the base is the built-in model."""
        return self.model.name == "tiny"

    @property
    def asks_gpus(self) -> bool:
        """Whether a runner or a learner is to have a GPU."""
        return (
            self.env_runners.num_gpus_per_env_runner > 0 or self.learners.num_gpus_per_learner > 0
        )

    @classmethod
    def from_toml(cls, path: str | Path, overrides: Sequence[str] = ()) -> "Settings":
        """Returns a file's settings with `section.name=value` overrides. Raises: SettingsError."""
        return cls(**with_overrides(read_toml(path), overrides))

    def to_toml(self) -> str:
        """Returns the TOML text of all settings that are not None."""
        lines: list[str] = []
        for name, value in self.model_dump(exclude_none=True).items():
            lines += ["", f"[{name}]"] if isinstance(value, dict) else []
            section = value if isinstance(value, dict) else {name: value}
            lines += [f"{key} = {to_toml_value(item)}" for key, item in section.items()]
        return "\n".join(lines) + "\n"


_ENVIRONMENT_KEYWORDS = (
    ("environment", "kwargs"),
    ("warm_start", "env_kwargs"),
    ("warm_start", "stages"),
    ("warm_start", "promote_at"),
    ("evaluation", "env_kwargs"),
    ("curriculum", "stages"),
)


def setting_names() -> list[str]:
    """Returns the dotted names of all settings."""
    names: list[str] = []
    for name, field in Settings.model_fields.items():
        section = field.default
        is_section = isinstance(section, Section)
        names += [f"{name}.{key}" for key in dict(section)] if is_section else [name]
    return names


def unknown_setting(name: str) -> SettingsError:
    """Returns the error for a dotted name that is no setting's."""
    names = setting_names()
    same_leaf = [n for n in names if n.rpartition(".")[2] == name.rpartition(".")[2]]
    return SettingsError(f"unknown setting {name!r}{did_you_mean(name, same_leaf or names)}")


def read_toml(
    path: str | Path, presets: Path | None = None, above: tuple[Path, ...] = ()
) -> dict[str, Any]:
    """Returns a TOML file's values, over those of the file that it names as its `base`.

    Several `[[environment]]` tables are the sources of one mixture. A base is a file
    (`base = "mine.toml"`, beside this one) or the name of one in `presets` (`base = "db_bench"`).
    `above` are the files that build on this one. Raises: SettingsError.
    """
    own = Path(path).resolve()
    try:
        values = tomllib.loads(own.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"cannot read settings from {str(path)!r}: {error}") from None
    if isinstance(values.get("environment"), list):
        values["environment"] = mix_tables(values["environment"])
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str) or not base:
        raise SettingsError(f"{path}: base must be a config's name or file, got {base!r:.60}")
    folder = own.parent if presets is None or base.endswith(".toml") else presets
    below = (folder / f"{base.removesuffix('.toml')}.toml").resolve()
    if below in (own, *above):
        raise SettingsError(f"{path}: base {base!r} leads back to {below.name}")
    return merge_settings(read_toml(below, presets, (own, *above)), values)


def merge_settings(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested settings in which `above` wins, setting by setting and keyword by keyword.

    Where it names another environment, the keywords for the one of `below` are left out.
    """
    result = deepcopy(dict(below))
    env_id = _table(above, "environment").get("id")
    if env_id not in (None, _table(below, "environment").get("id")):
        for section, key in _ENVIRONMENT_KEYWORDS:
            _table(result, section).pop(key, None)
    return _merge(result, above)


def _table(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = values.get(name)
    return table if isinstance(table, dict) else {}


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in above.items():
        old = below.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            below[name] = _merge(old, value)
        else:
            below[name] = deepcopy(value)
    return below


def with_overrides(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Returns nested settings with `section.name=value` overrides applied.

    A value is read as TOML, else as a bare word; empty is the default. Raises: SettingsError.
    """
    result = deepcopy(dict(values))
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals:
            raise SettingsError(f"an override is written section.name=value, got {override!r}")
        *path, leaf = parts = name.strip().split(".")
        section = result
        for part in path:
            section = section.setdefault(part, {}) if isinstance(section, dict) else None
        if ".".join(parts[:2]) not in setting_names() or not isinstance(section, dict):
            raise unknown_setting(name.strip())
        section[leaf] = parse_value(text.strip())
        if not text.strip():
            del section[leaf]
    return result


def _message(error: ValidationError) -> str:
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        return str(unknown_setting(".".join(path)))
    known = [n for n in setting_names() if path[: n.count(".") + 1] == n.split(".")]
    reason = first["msg"][0].lower() + first["msg"][1:]
    return f"{(known or path)[0]}: {reason}, got {first['input']!r:.60}"
