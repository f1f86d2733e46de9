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
    """The Gymnasium environment that is trained on."""

    id: str = "AgentPEFT/Arithmetic-v0"
    """A Gymnasium id whose observations and actions are text; `module:id` imports the module
    that registers it first.
    """
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """The environment's keyword arguments. A task file that `data` names and that is missing
    is made first (DB-bench, OS-interaction, GSM8K).
    """


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
    """Quantizes the base with bitsandbytes; needs a GPU. The `transformers` engine cannot
    serve such a base yet.
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
    end_of_thought: str = END_OF_THOUGHT
    """The environment is told what a turn says [after the last such
    mark](how_it_works.md#thinking-models). Empty: it is told the whole turn.
    """


CHAT_SETTINGS = {
    "use_chat_template",
    "chat_template_kwargs",
    "system_prompt",
    "end_of_thought",
}
"""The settings of `model` that say how it reads and writes, whichever weights it has."""


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


class LoraSettings(Section):
    """The adapter that is trained."""

    use_lora: bool = True
    """False trains all weights, with algorithm `sft` only."""
    rank: Count = 16
    """Rank of the adapter."""
    alpha: float = Field(default=32.0, gt=0)
    """The update is scaled by alpha / rank."""
    target_modules: Literal["all-linear"] | Annotated[tuple[str, ...], Field(strict=False)] = (
        "all-linear"
    )
    """Names of the layers that get an adapter, such as `["q_proj", "v_proj"]`. `all-linear`:
    all linear layers but the output layer.
    """
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of the adapter's input, with algorithm `sft` only."""


class WarmStartSettings(Section):
    """Supervised steps on the oracle's episodes before RL."""

    num_steps: CountOrZero = 0
    """Number of steps at most. They train the tiny model's base weights (cached in
    `~/.cache/agentpeft`, or in `AGENTPEFT_CACHE`) or any other model's adapter. 0: no warm
    start.
    """
    target_success: float | None = Field(default=None, gt=0, le=1)
    """Tiny model only: the learning rate begins to fall once greedy decoding would play this
    share of the episodes right. None: all `num_steps` are taken.
    """
    decay: float = Field(default=0.1, ge=0, le=1)
    """Tiny model only: share of `num_steps` over which the learning rate falls to 0 at the
    end, without a target.
    """
    batch_size: Count = 64
    """Episodes in a step."""
    lr: float = Field(default=2e-3, gt=0)
    """Learning rate. The tiny model's rises over the first 5 % of the steps, stays, and falls
    linearly to 0 at the end.
    """
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Override `environment.kwargs`, for easier tasks to learn from."""


class EnvRunnerSettings(Section):
    """The processes that play the episodes, and their engines."""

    num_env_runners: CountOrZero = 1
    """Number of runner processes (Ray actors). 0 plays and learns in this process, without
    Ray.
    """
    num_cpus_per_env_runner: float = Field(default=0.5, ge=0)
    """CPUs that Ray reserves for each runner."""
    num_gpus_per_env_runner: float = Field(default=0.0, ge=0)
    """GPUs that Ray reserves for each runner. Above 0 the model is on the GPU."""
    num_threads: Threads = 2
    """Torch's threads in each runner."""
    engine: Literal["transformers", "vllm", "scripted"] = "transformers"
    """`transformers` and [`vllm`](vllm.md) sample from the model; `scripted` plays the
    oracle.
    """
    serving: Literal["auto", "native", "fused"] = "auto"
    """How an adapter is served: `native` in LoRA layers, `fused` into the weights. Auto is
    `native` over a base in bfloat16, else `fused`
    ([why](delivery.md#small-steps-over-a-bfloat16-base)).
    """
    kv_cache_gib: float | None = Field(default=None, gt=0)
    """Memory of a vLLM engine for keys and values, in GiB. None: 1 on a CPU; on a GPU what is
    left of its share.
    """
    max_concurrent_episodes: Count = 256
    """Episodes that each runner plays at once."""
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


class TrainingSettings(Section):
    """What is learnt, and how: [what the algorithms compute](algorithms.md).

    A setting that the algorithm does not read is refused when it is set. None means the
    algorithm's own default.
    """

    algorithm: AlgorithmName = "grpo"
    """`reinforce`, `rloo`, `grpo`, `dr_grpo`, `raft`, `ppo`, `a2c` or `sft`."""
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
    max_grad_norm: float = Field(default=1.0, gt=0)
    """The norm of the gradient is clipped to this."""
    num_epochs: Count | None = None
    """Passes over an iteration's episodes. None: 2 with `ppo`, else 1. `reinforce`, `rloo`
    and `a2c` allow 1 only, since their loss has no ratio.
    """
    num_minibatches: Count = 1
    """Optimizer steps in a pass. A group is never cut."""
    clip_range: float | None = Field(default=None, gt=0)
    """ε of the clipped ratio (`grpo`, `dr_grpo`, `ppo`). None: 0.2."""
    clip_range_high: float | None = Field(default=None, gt=0)
    """Upper ε of the clipped ratio (clip-higher). None: `clip_range`."""
    loss_normalization: Normalization | None = None
    """What the loss is averaged over: `token`, `sequence`, `constant`. None: `constant` with
    `dr_grpo`, `sequence` with `raft`, else `token`.
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
    engine's. None: 2.0 with `max_adapter_lag` above 0, else off.
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
    dynamic_sampling: bool = False
    """Drops groups of equal returns before the update. No others are sampled in their place."""


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
    gradient_checkpointing: bool = False
    """Takes less memory and more time. Prompts are then not shared."""
    share_prompts: bool = True
    """Computes the prompt of a group once; the gradient is the same."""
    max_tokens_per_micro_batch: Count = 8192
    """Padded tokens of a forward pass. Halved when memory does not suffice, and doubled again
    after 20 updates for which it did.
    """


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


class OutputSettings(Section):
    """What a run writes."""

    dir: str = "outputs"
    """A run writes below `dir`/experiment/timestamp."""
    checkpoint_interval: CountOrZero = 10
    """Saves after every so many iterations, at the end and when stopped. 0: only at the end
    and when stopped, so that a killed run is lost.
    """
    num_checkpoints_kept: Count = 2
    """Number of checkpoints that are kept, the newest."""
    tensorboard: bool = True
    """Writes TensorBoard's event files to `logs/`."""
    wandb: Literal["off", "online", "offline"] = "off"
    """Logs to Weights & Biases (`pip install wandb`)."""
    episodes: bool = True
    """Writes every episode with its messages to `sessions/`."""


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
    """0 samples and learns in turn. n samples up to n updates ahead and drops what is older
    (counted in `sample/num_stale_groups`); needs a runner process.
    """
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


_ENVIRONMENT_KEYWORDS = (
    ("environment", "kwargs"),
    ("warm_start", "env_kwargs"),
    ("evaluation", "env_kwargs"),
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

    A base is a file (`base = "mine.toml"`, beside this one) or the name of one in `presets`
    (`base = "db_bench"`). `above` are the files that build on this one. Raises: SettingsError.
    """
    own = Path(path).resolve()
    try:
        values = tomllib.loads(own.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"cannot read settings from {str(path)!r}: {error}") from None
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
