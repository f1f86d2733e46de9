"""What is said of wrong settings: of values, of unknown names, and of other libraries' names."""

import re
from difflib import get_close_matches

from pydantic import ValidationError

from agentpeft.envs.core.errors import SettingsError, did_you_mean, in_sentence
from agentpeft.policies.settings.config import SECTIONS, setting_names
from agentpeft.policies.settings.retired import RETIRED

_OTHERS: dict[str, tuple[str, ...]] = {
    "training.algorithm": ("adv_estimator", "advantage_estimator", "loss_type"),
    "training.lr": ("learning_rate", "actor_learning_rate"),
    "training.lr_schedule": ("lr_scheduler_type",),
    "training.num_warmup_iterations": ("warmup_steps", "warmup_ratio", "lr_warmup_steps"),
    "training.num_iterations": ("num_train_epochs", "max_steps", "total_epochs", "total_timesteps"),
    "training.num_epochs": ("ppo_epochs", "num_ppo_epochs", "num_sgd_iter", "n_epochs"),
    "training.num_minibatches": ("mini_batch_size", "minibatch_size", "ppo_mini_batch_size"),
    "training.num_groups": ("batch_size", "train_batch_size", "per_device_train_batch_size"),
    "training.group_size": ("num_generations", "n"),
    "training.kl_coeff": ("beta", "init_kl_coef", "kl_coef", "kl_loss_coef"),
    "training.entropy_coeff": ("ent_coef",),
    "training.clip_range": ("epsilon", "epsilon_high", "cliprange", "clip_param", "clip_ratio"),
    "training.max_grad_norm": ("grad_clip",),
    "training.lambda_": ("gae_lambda", "lam"),
    "training.critic": ("use_critic",),
    "training.importance_cap": ("vllm_importance_sampling_cap",),
    "learners.max_tokens_per_micro_batch": ("gradient_accumulation_steps", "micro_batch_size"),
    "learners.gradient_checkpointing": ("enable_gradient_checkpointing",),
    "learners.shard_base": ("fsdp",),
    "learners.autocast": ("bf16", "fp16"),
    "learners.num_gpus_per_learner": ("n_gpus_per_node",),
    "env_runners.max_new_tokens": ("max_completion_length", "max_response_length", "max_tokens"),
    "env_runners.max_context_tokens": ("max_model_len", "max_prompt_length", "max_seq_length"),
    "env_runners.max_concurrent_episodes": ("num_envs", "n_envs", "num_envs_per_env_runner"),
    "env_runners.num_env_runners": ("num_rollout_workers", "num_workers"),
    "env_runners.engine": ("use_vllm",),
    "env_runners.num_gpus_per_env_runner": (
        "gpu_memory_utilization",
        "vllm_gpu_memory_utilization",
        "tensor_parallel_size",
    ),
    "model.name": ("model_name", "model_name_or_path", "model_path"),
    "model.dtype": ("torch_dtype", "load_in_4bit"),
    "lora.rank": ("r", "lora_r", "lora_rank"),
    "lora.alpha": ("lora_alpha",),
    "lora.target_modules": ("lora_target_modules",),
    "environment.id": ("env", "env_id", "env_name"),
    "environment.kwargs": ("env_config",),
    "environment.kwargs.max_turns": ("max_turns",),
    "environment.kwargs.reward.reward_fn": ("reward_fn", "reward_funcs"),
    "evaluation.interval": ("eval_steps", "evaluation_interval", "test_freq"),
    "evaluation.num_tasks": ("evaluation_duration",),
    "output.dir": ("output_dir",),
    "output.loggers": ("logger", "report_to"),
    "output.checkpoint_interval": ("save_steps", "save_freq"),
    "output.num_checkpoints_kept": ("save_total_limit",),
    "experiment": ("experiment_name", "run_name"),
    "seed": ("random_seed",),
}
OTHER_NAMES = {name: ours for ours, names in _OTHERS.items() for name in names}
"""Our settings by the names of TRL, transformers, RLlib and verl, whose sections are left out."""
_CONSTANTS = {
    "weight_decay": "AdamW's is always 0",
    "adam_beta1": "AdamW's is always 0.9",
    "adam_beta2": "AdamW's is always 0.999",
    "lora_dropout": "there is none, since the learner must see what was sampled",
}
"""What others set and we do not, by their names."""


def unknown_setting(name: str) -> SettingsError:
    """Returns the error for a dotted name that is no setting's."""
    if name in RETIRED:
        return SettingsError(f"{name} is no longer a setting: {RETIRED[name]}")
    names, leaf = setting_names(), name.rpartition(".")[2]
    if name in SECTIONS:
        first = next(iter(SECTIONS[name].model_fields))
        hint = f": it is a section, of which {name}.{first} is one"
    elif leaf in OTHER_NAMES:
        here = f"{name.rpartition('.')[0]}.{OTHER_NAMES[leaf].rpartition('.')[2]}"
        hint = f": here it is {here if here in names else OTHER_NAMES[leaf]}"
    elif leaf in _CONSTANTS:
        hint = f": {_CONSTANTS[leaf]}"
    else:
        same_leaf = [known for known in names if known.rpartition(".")[2] == leaf]
        sections = () if "." in name else SECTIONS
        hint = did_you_mean(name, same_leaf or [*names, *sections])
    return SettingsError(f"unknown setting {name!r}{hint}")


def describe_wrong(error: ValidationError) -> str:
    """Returns the name of a setting and what is wrong with its value, in one line."""
    errors = error.errors()
    same = [other for other in errors if other["loc"][:2] == errors[0]["loc"][:2]]
    # Of a setting that may be of several types, the one that the value came closest to
    first = max(same, key=lambda e: (not e["type"].endswith("_type"), len(e["loc"])))
    path = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        return str(unknown_setting(".".join(path)))
    known = [n for n in setting_names() if path[: n.count(".") + 1] == n.split(".")]
    reason = in_sentence(first["msg"]).replace("valid tuple", "list")
    hint = ""
    if first["type"] == "missing":  # an item of a list
        reason = "too few values"
    elif first["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", first["ctx"]["expected"])
        near = get_close_matches(str(first["input"]).lower()[:100], choices, n=1)
        hint = "".join(f"; did you mean {choice!r}?" for choice in near)
    return f"{(known or path)[0]}: {reason}, got {first['input']!r:.60}{hint}"
