"""Settings that contradict each other or would have no effect: one table, one message each."""

from collections.abc import Callable

import agentpeft.envs  # noqa: F401 (registers the suite)
from agentpeft.envs.core.errors import SettingsError
from agentpeft.envs.registration import find_spec
from agentpeft.policies.settings.config import Settings, TinySettings, TrainingSettings
from agentpeft.policies.settings.section import Section

_CLIP = ("clip_range", "clip_range_high")
_CRITIC = ("critic", "critic_lr", "gamma", "lambda_", "vf_loss_coeff", "clip_range_vf")
_PROOF = ("max_probe_difference", "min_served_effect")
_KL = ("kl_coeff", "kl_estimator", "kl_placement")
_IGNORED: dict[str, tuple[str, ...]] = {
    "reinforce": (*_CLIP, *_CRITIC),
    "rloo": (*_CLIP, *_CRITIC, "baseline_momentum"),
    "raft": (*_CLIP, *_CRITIC, "baseline_momentum"),
    "grpo": (*_CRITIC, "baseline_momentum"),
    "dr_grpo": (*_CRITIC, "baseline_momentum"),
    "ppo": ("baseline_momentum",),
    "a2c": (*_CLIP, "clip_range_vf", "baseline_momentum"),
    "sft": (
        *_CLIP,
        *_CRITIC,
        *_KL,
        "baseline_momentum",
        "dynamic_sampling",
        "entropy_coeff",
        "group_size",
        "importance_cap",
    ),
}
"""Which settings of `training` an algorithm does not read."""
_RESERVED = frozenset(
    {
        *("messages", "conversation", "conversations", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "tokenize", "padding", "truncation", "max_length"),
        *("return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
    }
)
"""What `apply_chat_template` takes for itself, or `ChatFormat` gives it."""
_WITHOUT_RATIO = ("reinforce", "rloo", "a2c")
_NEEDS_GROUPS = ("rloo", "grpo", "dr_grpo", "raft")


def _changed(section: Section) -> dict[str, object]:
    """Returns what differs from the defaults."""
    default = type(section)()
    return {
        name: value
        for name in type(section).model_fields
        if (value := dict(section)[name]) != dict(default)[name]
    }


def _is_rl(s: Settings) -> bool:
    return s.training.algorithm != "sft"


def _is_tiny(s: Settings) -> bool:
    return s.model.name == "tiny"


def _max_context(s: Settings) -> int | None:
    limits = [s.env_runners.max_context_tokens, s.tiny.max_context_tokens if _is_tiny(s) else None]
    return min((limit for limit in limits if limit is not None), default=None)


def _asks_gpus(s: Settings) -> bool:
    return s.env_runners.num_gpus_per_env_runner > 0 or s.learners.num_gpus_per_learner > 0


def _evaluates_training_file(s: Settings) -> bool:
    own, held_out = s.environment.kwargs, {**s.environment.kwargs, **s.evaluation.env_kwargs}
    names = ("data", "split")
    return own.get("data") is not None and all(own.get(n) == held_out.get(n) for n in names)


_RULES: dict[str, Callable[[Settings], bool]] = {
    "training.group_size must be >= 2, got 1: algorithm {s.training.algorithm!r} or "
    "training.dynamic_sampling compares the episodes of a group": lambda s: (
        s.training.group_size == 1
        and (s.training.dynamic_sampling or s.training.algorithm in _NEEDS_GROUPS)
    ),
    "max_adapter_lag {s.max_adapter_lag} samples while it learns, which the serial mode "
    "(env_runners.num_env_runners = 0), deterministic runs and algorithm 'sft' cannot: set it to "
    "0": lambda s: (
        s.max_adapter_lag > 0
        and (s.env_runners.num_env_runners == 0 or s.deterministic or not _is_rl(s))
    ),
    "learners.num_learners {s.learners.num_learners} are processes of their own, which the serial "
    "mode (env_runners.num_env_runners = 0) does not start: set it to 1": lambda s: (
        s.learners.num_learners > 1 and s.env_runners.num_env_runners == 0
    ),
    "learners.num_learners {s.learners.num_learners} must be <= training.num_groups "
    "{s.training.num_groups}: a group is one learner's": lambda s: (
        s.learners.num_learners > s.training.num_groups
    ),
    "training.num_minibatches {s.training.num_minibatches} must be <= training.num_groups "
    "{s.training.num_groups}: a group is in one minibatch": lambda s: (
        s.training.num_minibatches > s.training.num_groups
    ),
    "training.num_epochs {s.training.num_epochs}: the loss of algorithm {s.training.algorithm!r} "
    "has no ratio to the policy that sampled, which later epochs need: set it to 1, or take grpo, "
    "dr_grpo or ppo": lambda s: (
        (s.training.num_epochs or 1) > 1 and s.training.algorithm in _WITHOUT_RATIO
    ),
    "training.kl_estimator 'k1' has no useful gradient as a loss (its expectation is zero): set "
    "training.kl_placement to 'reward', or take k2 or k3": lambda s: (
        s.training.kl_coeff > 0
        and (s.training.kl_placement, s.training.kl_estimator) == ("loss", "k1")
    ),
    "learners.num_gpus_per_learner {s.learners.num_gpus_per_learner} must be whole with several "
    "learners, which nccl cannot place on one GPU": lambda s: (
        s.learners.num_learners > 1 and s.learners.num_gpus_per_learner % 1 > 0
    ),
    "deterministic runs are on CPUs: learners.num_gpus_per_learner and "
    "env_runners.num_gpus_per_env_runner must be 0": lambda s: s.deterministic and _asks_gpus(s),
    "env_runners.kv_cache_gib has no effect with engine {s.env_runners.engine!r}": (
        lambda s: s.env_runners.engine != "vllm" and s.env_runners.kv_cache_gib is not None
    ),
    "env_runners.serving {s.env_runners.serving!r} has no effect with engine 'scripted'": (
        lambda s: s.env_runners.engine == "scripted" and s.env_runners.serving != "auto"
    ),
    "deterministic runs need env_runners.engine = 'transformers': vLLM's rounding depends on what "
    "else is in a batch": lambda s: s.deterministic and s.env_runners.engine == "vllm",
    "model.load_in_4bit cannot be served by env_runners.engine 'vllm': set it to false": (
        lambda s: s.model.load_in_4bit and s.env_runners.engine == "vllm"
    ),
    "env_runners.num_gpus_per_env_runner {s.env_runners.num_gpus_per_env_runner:g}: a vLLM engine "
    "has one GPU or a share of it; take more env runners instead": lambda s: (
        s.env_runners.engine == "vllm" and s.env_runners.num_gpus_per_env_runner > 1
    ),
    "env_runners.serving = 'native' serves adapters: it needs lora.use_lora = true": (
        lambda s: s.env_runners.serving == "native" and not s.lora.use_lora
    ),
    "env_runners.temperature {s.env_runners.temperature:g} is taken for 0.01 by vLLM: raise it": (
        lambda s: s.env_runners.engine == "vllm" and 0 < s.env_runners.temperature < 0.01
    ),
    "lora.dropout {s.lora.dropout} is for algorithm 'sft': with RL the learner's probabilities "
    "would differ from those that were sampled; set it to 0": (
        lambda s: s.lora.dropout > 0 and _is_rl(s)
    ),
    "lora.use_lora = false trains all weights, with algorithm 'sft' only: RL needs the base as "
    "its reference and broadcasts the adapter": lambda s: not s.lora.use_lora and _is_rl(s),
    "model.load_in_4bit needs a GPU (bitsandbytes): set learners.num_gpus_per_learner and "
    "env_runners.num_gpus_per_env_runner, or load_in_4bit = false": (
        lambda s: s.model.load_in_4bit and not _asks_gpus(s)
    ),
    "model.load_in_4bit freezes a large base: it needs lora.use_lora = true and another model.name "
    "than 'tiny'": lambda s: s.model.load_in_4bit and (not s.lora.use_lora or _is_tiny(s)),
    "training.kl_placement and kl_estimator have no effect without training.kl_coeff > 0": (
        lambda s: (
            s.training.kl_coeff == 0
            and (s.training.kl_placement, s.training.kl_estimator) != ("loss", "k3")
        )
    ),
    "training.critic_lr, gamma, lambda_, vf_loss_coeff and clip_range_vf have no effect without a "
    "critic: set training.critic to 'shared' or 'separate'": lambda s: (
        s.training.algorithm == "ppo"
        and s.training.critic is None
        and not _changed(s.training).keys().isdisjoint(_CRITIC)
    ),
    "fault_tolerance.max_probe_difference and min_served_effect have no effect with "
    "fault_tolerance.probe_interval = 0, nor with env_runners.engine 'scripted', which has no "
    "weights": lambda s: (
        not _changed(s.fault_tolerance).keys().isdisjoint(_PROOF)
        and (s.fault_tolerance.probe_interval == 0 or s.env_runners.engine == "scripted")
    ),
    "training.clip_range_high {s.training.clip_range_high} must be >= training.clip_range (0.2 "
    "unless set)": lambda s: (s.training.clip_range_high or 1e9) < (s.training.clip_range or 0.2),
    "training.num_warmup_iterations {s.training.num_warmup_iterations} must be below "
    "training.num_iterations {s.training.num_iterations}": (
        lambda s: 0 < s.training.num_iterations <= s.training.num_warmup_iterations
    ),
    "env_runners.max_new_tokens {s.env_runners.max_new_tokens} leaves no room for a prompt: it "
    "must be below env_runners.max_context_tokens (of the tiny model: tiny.max_context_tokens)": (
        lambda s: s.env_runners.max_new_tokens >= (_max_context(s) or 10**9)
    ),
    "evaluation.samples_per_task {s.evaluation.samples_per_task} would be equal samples at "
    "env_runners.temperature 0": (
        lambda s: s.evaluation.samples_per_task > 1 and s.env_runners.temperature == 0
    ),
    "evaluation would play the training file {s.environment.kwargs[data]!r}: name other data, or "
    "another split of it, in evaluation.env_kwargs, or set evaluation.num_tasks = 0": (
        lambda s: s.evaluation.num_tasks > 0 and _evaluates_training_file(s)
    ),
    "'adaptive' makes tasks follow the outcomes, and those of a run follow from seed and position: "
    "leave it out of environment.kwargs and env_kwargs": lambda s: any(
        kwargs.get("adaptive")
        for kwargs in (s.environment.kwargs, s.warm_start.env_kwargs, s.evaluation.env_kwargs)
    ),
    "evaluation.interval {s.evaluation.interval} has no effect with evaluation.num_tasks = 0": (
        lambda s: s.evaluation.interval > 0 and s.evaluation.num_tasks == 0
    ),
    "env_runners.temperature 0 always samples the same episode: RL needs > 0 (evaluation is "
    "greedy by itself)": lambda s: s.env_runners.temperature == 0 and _is_rl(s),
    "warm_start.target_success {s.warm_start.target_success} is for the tiny model's base weights, "
    "not for {s.model.name!r}": (
        lambda s: s.warm_start.target_success is not None and not _is_tiny(s)
    ),
    "warm_start.num_steps {s.warm_start.num_steps} trains the adapter of model {s.model.name!r}, "
    "and lora.use_lora is false: use algorithm 'sft' alone": (
        lambda s: s.warm_start.num_steps > 0 and not (s.lora.use_lora or _is_tiny(s))
    ),
    "model.adapter {s.model.adapter!r} is trained further: lora.use_lora must be true": (
        lambda s: s.model.adapter is not None and not s.lora.use_lora
    ),
    "model.chat_template_kwargs has no effect with model.use_chat_template = false": (
        lambda s: bool(s.model.chat_template_kwargs) and not s.model.use_chat_template
    ),
    "model.chat_template_kwargs are the template's own variables, such as enable_thinking, not "
    "transformers' arguments, got {s.model.chat_template_kwargs!r}": (
        lambda s: not _RESERVED.isdisjoint(s.model.chat_template_kwargs)
    ),
    "the section tiny describes the built-in model, and model.name is {s.model.name!r}": (
        lambda s: not _is_tiny(s) and s.tiny != TinySettings()
    ),
    "tiny.hidden_size {s.tiny.hidden_size} must be a multiple of 2 * tiny.num_heads "
    "({s.tiny.num_heads})": lambda s: s.tiny.hidden_size % (2 * s.tiny.num_heads) != 0,
}
"""Messages, formatted with the settings, and when they are raised."""


def check_contradictions(settings: Settings) -> None:
    """Raises: SettingsError for the first thing in `settings` that cannot work together."""
    algorithm = settings.training.algorithm
    ignored = set(_changed(settings.training)) & set(_IGNORED.get(algorithm, ()))
    if ignored:
        name = min(ignored)
        readers = [known for known, names in _IGNORED.items() if name not in names]
        raise SettingsError(
            f"training.{name} has no effect with algorithm {algorithm!r} (it is for "
            f"{', '.join(readers)}): leave it at {dict(TrainingSettings())[name]!r}"
        )
    for message, is_broken in _RULES.items():
        if is_broken(settings):
            raise SettingsError(message.format(s=settings))
    find_spec(settings.environment.id)
