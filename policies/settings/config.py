"""The settings of a training run: one strict model, from Python, from TOML, or both.

Sections are one level deep, so that every setting has one dotted name (`training.lr`).
"""

import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic.types import NonNegativeFloat

from agentpeft.envs.core.errors import SettingsError, did_you_mean
from agentpeft.policies.rollout.thoughts import END_OF_THOUGHT
from agentpeft.policies.settings.fault_settings import FaultToleranceSettings
from agentpeft.policies.settings.section import Count, CountOrZero, Section, Threads
from agentpeft.policies.settings.toml_values import parse_value, to_toml_value

AlgorithmName = Literal["reinforce", "rloo", "grpo", "dr_grpo", "raft", "ppo", "a2c", "sft"]
CriticKind = Literal["shared", "separate"]
Normalization = Literal["token", "sequence", "constant"]


class EnvironmentSettings(Section):
    """Which Gymnasium environment is trained on, and its keyword arguments."""

    id: str = "AgentPEFT/Arithmetic-v0"
    kwargs: dict[str, Any] = Field(default_factory=dict)


class ModelSettings(Section):
    """The base model: "tiny" (built in), a Hugging Face id or folder, or an adapter's folder.

    `adapter`: a trained one's folder, to start from. `dtype` is the base's ("auto": float32 on a
    CPU, bfloat16 on a GPU). Without `use_chat_template` a conversation is plain text, in lines.
    `chat_template_kwargs` are the template's own variables, such as `enable_thinking`. The
    environment is told what a turn says after its last `end_of_thought`; empty: all of it.
    """

    name: str = "tiny"
    adapter: str | None = None
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    load_in_4bit: bool = False
    use_chat_template: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    system_prompt: str | None = Field(default=None, min_length=1)
    end_of_thought: str = END_OF_THOUGHT


CHAT_SETTINGS = {
    "use_chat_template",
    "chat_template_kwargs",
    "system_prompt",
    "end_of_thought",
}
"""The settings of `model` that say how it reads and writes, whichever weights it has."""


class TinySettings(Section):
    """The architecture (Llama's) of the built-in model; used where `model.name` is "tiny"."""

    hidden_size: Count = 192
    num_layers: Count = 4
    num_heads: Count = 4
    intermediate_size: Count = 512
    vocab_size: int = Field(default=512, ge=300, le=65536)
    max_context_tokens: Count = 1024


class LoraSettings(Section):
    """The adapter. `use_lora` False trains all weights (with algorithm "sft" only)."""

    use_lora: bool = True
    rank: Count = 16
    alpha: float = Field(default=32.0, gt=0)
    target_modules: Literal["all-linear"] | Annotated[tuple[str, ...], Field(strict=False)] = (
        "all-linear"
    )
    dropout: float = Field(default=0.0, ge=0, lt=1)


class WarmStartSettings(Section):
    """At most `num_steps` supervised steps on oracle episodes before RL; 0 are none.

    They train the tiny model's base weights (cached), any other model's adapter. `env_kwargs`
    override the environment's. The tiny model's learning rate decays over the last `decay` of the
    steps, or over a tenth of those taken once `target_success` of the episodes are right.
    """

    num_steps: CountOrZero = 0
    target_success: float | None = Field(default=None, gt=0, le=1)
    decay: float = Field(default=0.1, ge=0, le=1)
    batch_size: Count = 64
    lr: float = Field(default=2e-3, gt=0)
    env_kwargs: dict[str, Any] = Field(default_factory=dict)


class EnvRunnerSettings(Section):
    """Who plays the episodes. 0 runners play in the driver's process, for debugging.

    `num_cpus_per_env_runner` is what Ray reserves; `num_threads` what torch uses.
    `max_concurrent_episodes`, per runner. `temperature` 0 is greedy. `serving` "auto" is
    "native" over a base in bfloat16, else "fused". `kv_cache_gib` is vLLM's; None is 1 on a CPU.
    """

    num_env_runners: CountOrZero = 1
    num_cpus_per_env_runner: float = Field(default=0.5, ge=0)
    num_gpus_per_env_runner: float = Field(default=0.0, ge=0)
    num_threads: Threads = 2
    engine: Literal["transformers", "vllm", "scripted"] = "transformers"
    serving: Literal["auto", "native", "fused"] = "auto"
    kv_cache_gib: float | None = Field(default=None, gt=0)
    max_concurrent_episodes: Count = 256
    max_new_tokens: Count = 256
    max_context_tokens: Count | None = None
    temperature: NonNegativeFloat = 1.0
    step_timeout_s: float = Field(default=60.0, gt=0)
    episode_timeout_s: float = Field(default=600.0, gt=0)


class TrainingSettings(Section):
    """What is learnt, and how. None means the algorithm's own default.

    An iteration plays `num_groups` tasks, `group_size` episodes each.
    """

    algorithm: AlgorithmName = "grpo"
    num_iterations: CountOrZero = 100
    num_groups: Count = 32
    group_size: Count = 8
    lr: float = Field(default=1e-4, gt=0)
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    num_warmup_iterations: CountOrZero = 0
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: float = Field(default=1.0, gt=0)
    num_epochs: Count | None = None
    num_minibatches: Count = 1
    clip_range: float | None = Field(default=None, gt=0)
    clip_range_high: float | None = Field(default=None, gt=0)
    loss_normalization: Normalization | None = None
    kl_coeff: NonNegativeFloat = 0.0
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    kl_placement: Literal["loss", "reward"] = "loss"
    entropy_coeff: float | None = Field(default=None, ge=0)
    baseline_momentum: float = Field(default=0.9, ge=0, lt=1)
    importance_cap: float | None = Field(default=None, gt=0)
    critic: CriticKind | None = None
    critic_lr: float | None = Field(default=None, gt=0)
    gamma: float = Field(default=1.0, ge=0, le=1)
    lambda_: float = Field(default=1.0, ge=0, le=1)
    vf_loss_coeff: float = Field(default=0.5, gt=0)
    clip_range_vf: float | None = Field(default=None, gt=0)
    dynamic_sampling: bool = False


class LearnerSettings(Section):
    """How many learners share an update, where, and in what portions each computes."""

    num_learners: Count = 1
    num_cpus_per_learner: float = Field(default=0.5, ge=0)
    num_gpus_per_learner: float = Field(default=0.0, ge=0)
    num_threads: Threads = 2
    autocast: Literal["auto", "off", "bfloat16"] = "auto"
    gradient_checkpointing: bool = False
    share_prompts: bool = True
    max_tokens_per_micro_batch: Count = 8192


class EvaluationSettings(Section):
    """Greedy episodes on held-out tasks, before and after, and every `interval` iterations (0: no).

    `env_kwargs` override `environment.kwargs`. With `samples_per_task` > 1 they are sampled at the
    training temperature, and pass@k is reported.
    """

    interval: CountOrZero = 0
    num_tasks: CountOrZero = 200
    samples_per_task: Count = 1
    env_kwargs: dict[str, Any] = Field(default_factory=dict)


class OutputSettings(Section):
    """What a run writes, below `dir`/<experiment>/<timestamp>."""

    dir: str = "outputs"
    checkpoint_interval: CountOrZero = 10
    num_checkpoints_kept: Count = 2
    tensorboard: bool = True
    wandb: Literal["off", "online", "offline"] = "off"
    episodes: bool = True


class Settings(Section):
    """All settings of a run; contradictions between them are refused.

    `max_adapter_lag` 0 samples and learns in turn; n >= 1 samples up to n updates ahead.
    `deterministic` makes a run on CPUs repeatable, and a resumed one equal, to the bit.
    """

    experiment: str = Field(default="experiment", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    seed: int = Field(default=0, ge=0, lt=2**63)
    deterministic: bool = False
    max_adapter_lag: CountOrZero = 0
    environment: EnvironmentSettings = EnvironmentSettings()
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
        from agentpeft.policies.settings.contradictions import check_contradictions

        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError(_message(error)) from None
        check_contradictions(self)

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


def read_toml(path: str | Path) -> dict[str, Any]:
    """Returns a TOML file's values. Raises: SettingsError."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"cannot read settings from {str(path)!r}: {error}") from None


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
