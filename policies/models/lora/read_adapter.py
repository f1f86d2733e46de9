"""Reads saved adapters: their weights and settings, and whether they fit a base and a run."""

import math
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
from peft import LoraConfig, load_peft_weights
from safetensors import SafetensorError
from safetensors.torch import load_file

from agentpeft.envs import SettingsError
from agentpeft.policies.checkpointing.reading import check_policy
from agentpeft.policies.delivery.adapter_files import PICKLED_WEIGHTS
from agentpeft.policies.delivery.version import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.messages import Floats
from agentpeft.policies.models.policy_base import PolicyBase

_COMPARED_OR_INERT = {
    *("r", "lora_alpha", "use_rslora", "target_modules", "base_model_name_or_path", "revision"),
    *("task_type", "peft_type", "auto_mapping", "peft_version", "inference_mode"),
    *("lora_dropout", "loftq_config", "eva_config", "corda_config", "megatron_config"),
    *("megatron_core", "runtime_config"),
}
"""What of PEFT's `LoraConfig` is compared by its value, or does nothing once there are weights."""
ONLY_SHAPES = {
    *("alpha_pattern", "rank_pattern", "layers_to_transform", "layers_pattern"),
    *("exclude_modules", "lora_bias"),
}
"""What changes which layers have an adapter, and of which shape and scale, and nothing else."""
_NOT_MERGED = ("layer_replication", "alora_invocation_tokens", "arrow_config")
"""What PEFT computes, but does not merge, or merges into another model."""
_UNREADABLE = (OSError, SafetensorError, UnpicklingError, RuntimeError, EOFError, AttributeError)
"""What PEFT raises on a file that does not hold named tensors."""
PLAIN_STARTS = (True, False, "gaussian", "orthogonal", "eva")
"""Values of `init_lora_weights` that leave the base as it is."""
_LOST_STARTS = ("pissa_niter", "corda", "loftq", "lora_ga")
"""Beginnings of those that change the base in a way that the adapter's files do not tell."""


def read_weights(path: Path) -> dict[str, Floats]:
    """Returns a file's weights in float32, whatever type they have. Raises: CheckpointError."""
    try:
        return {name: weight.float().numpy() for name, weight in load_file(path).items()}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def read_adapter(folder: Path) -> dict[str, Floats]:
    """Returns an adapter's weights in float32, by the names that PEFT saves them under.

    Raises: CheckpointError, also on a weight that is no number, or of no floating-point type, and
    where a checkpoint's adapter is not the one of its manifest.
    """
    check_policy(folder)
    if not any((folder / name).is_file() for name in (ADAPTER_WEIGHTS, PICKLED_WEIGHTS)):
        files = ", ".join(sorted(path.name for path in folder.glob("*") if path.is_file()))
        raise CheckpointError(
            f"the adapter {folder} cannot be read: PEFT reads one {ADAPTER_WEIGHTS} or "
            f"{PICKLED_WEIGHTS}, and its files are {files or 'none':.200}: join what is in parts"
        )
    try:
        tensors = load_peft_weights(str(folder), device="cpu")
        not_floats = [name for name, tensor in tensors.items() if not tensor.is_floating_point()]
        weights: dict[str, Floats] = {n: w.float().numpy() for n, w in tensors.items()}
    except _UNREADABLE as error:
        raise CheckpointError(f"the adapter {folder} cannot be read: {shorten(error)}") from None
    if nameless := [name for name in tensors if not isinstance(name, str)]:
        raise CheckpointError(
            f"the adapter {folder} cannot be read: its weights are named {nameless[0]!r:.60}, "
            "expected texts"
        )
    if not_floats:  # quantized, say, and without a scale
        raise CheckpointError(
            f"the adapter {folder} has {not_floats[0]} as {tensors[not_floats[0]].dtype}, and "
            "weights are floating-point numbers: save it in one of their types"
        )
    for name, weight in weights.items():
        if not np.isfinite(weight).all():
            raise CheckpointError(
                f"the adapter {folder} has NaN or infinity in {name}: its training has diverged, "
                "so take an earlier checkpoint"
            )
    return weights


def read_config(folder: Path) -> LoraConfig:
    """Raises: CheckpointError if it cannot be read; SettingsError if this is no LoRA adapter.

    Also if it is one that its files and the base do not restore.
    """
    if not (folder / ADAPTER_CONFIG).is_file():
        raise CheckpointError(f"{folder} is no adapter: it has no {ADAPTER_CONFIG}")
    try:
        config = LoraConfig.from_pretrained(str(folder))
    except (OSError, ValueError, TypeError, KeyError, ImportError) as error:
        raise CheckpointError(
            f"{folder / ADAPTER_CONFIG} cannot be read: {shorten(error)}"
        ) from None
    if type(config) is not LoraConfig:
        kind = type(config).__name__.removesuffix("Config")
        raise SettingsError(
            f"the adapter {folder} is of PEFT's kind {kind}, and only Lora is supported: merge it "
            "with PEFT (merge_and_unload), where that kind can be merged"
        )
    for name in _NOT_MERGED:
        if setting := getattr(config, name):
            raise SettingsError(
                f"the adapter {folder} has {name} = {setting!r:.100}, which is not supported, and "
                "cannot be merged: train one without it"
            )
    if not isinstance(config.lora_alpha, int | float) or not math.isfinite(config.lora_alpha):
        raise CheckpointError(
            f"the adapter {folder} has lora_alpha = {config.lora_alpha!r:.60}, expected a number"
        )
    if str(config.init_lora_weights).lower().startswith(_LOST_STARTS):
        raise SettingsError(
            f"the adapter {folder} has init_lora_weights = {config.init_lora_weights!r}: it "
            "belongs to a base that its training has changed, and that its files do not hold. Save "
            "it there with save_pretrained's path_initial_model_for_weight_conversion, or merged"
        )
    return config


def find_unusual(config: LoraConfig, own: LoraConfig, allowed: Collection[str] = ()) -> str | None:
    """Returns the first setting of an adapter beyond plain LoRA; None is none.

    What `own` has as well is plain, as is what is `allowed`.
    """
    default = LoraConfig()
    for name in sorted({field.name for field in fields(config)} - _COMPARED_OR_INERT - {*allowed}):
        setting = getattr(config, name)
        usual = [None, getattr(default, name), getattr(own, name)]
        if name == "init_lora_weights":
            usual += PLAIN_STARTS
        if setting not in usual and setting not in ({}, []):
            return f"{name} = {setting!r:.100}"
    return None


def read_fitting_adapter(
    folder: Path, own: LoraConfig, names: Collection[str]
) -> dict[str, Floats]:
    """Returns the weights of an adapter that a run with the config `own` can train further.

    `names` are those of the run's weights: one set of layers can be named in several ways in a
    config, also by a pattern. Raises: SettingsError with both values for the first thing that
    differs, CheckpointError if it cannot be read.
    """
    saved, weights = read_config(folder), read_adapter(folder)
    if unusual := find_unusual(saved, own):
        biases = "where its layers have biases, " if saved.lora_bias else ""
        raise SettingsError(
            f"the adapter {folder} has {unusual}, which changes what it computes and is not "
            f"supported in training: {biases}merge it into its base (agentpeft merge) and start "
            "from that"
        )
    if not is_base(saved, folder, str(own.base_model_name_or_path), own.revision):
        is_known = bool(saved.revision and own.revision)
        was, has = (c.revision if is_known else c.base_model_name_or_path for c in (saved, own))
        remedy = f"if they are the same, name it so in its {ADAPTER_CONFIG}"
        if is_known:
            remedy = "its warm start, or the code of its environment, was another: train anew"
        raise SettingsError(
            f"the adapter {folder} has the base model {was}, this run {has}: {remedy}"
        )
    compared: list[tuple[str, object, object]] = [
        ("rank", saved.r, own.r),
        ("alpha", _plain_alpha(saved), _plain_alpha(own)),
    ]
    if weights.keys() != names:
        compared.append(("target_modules", _list_targets(saved), _list_targets(own)))
    for name, theirs, ours in compared:
        if theirs != ours:
            raise SettingsError(
                f"the adapter {folder} has the lora.{name} {theirs!s:.300}, this run "
                f"{ours!s:.300}: set it alike, or merge the adapter into its base (agentpeft "
                "merge) and start from that"
            )
    return weights


def _plain_alpha(config: LoraConfig) -> float:
    """Returns the alpha of the plain adapter that is the same: rsLoRA scales by alpha / sqrt(r).

    Source: Kalajdzievski 2023, "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA".
    """
    return config.lora_alpha * config.r**0.5 if config.use_rslora else config.lora_alpha


def _list_targets(config: LoraConfig) -> object:
    """Returns the names of the layers that have an adapter, or the pattern that they match."""
    targets = config.target_modules
    return targets if isinstance(targets, str) else sorted(targets or ())


def check_base(base: PolicyBase, folder: Path, config: LoraConfig, is_trusted: bool) -> None:
    """Raises: SettingsError if an adapter was trained on another base."""
    if is_trusted and not (config.revision and base.fingerprint):
        return
    if not is_base(config, folder, base.name, base.fingerprint):
        names = config.base_model_name_or_path, base.name
        known = config.revision, base.fingerprint
        was, given = (
            f"{name} ({fingerprint or 'which has no fingerprint'})"
            for name, fingerprint in zip(names, known, strict=True)
        )
        remedy = "" if all(known) else "; --same-base takes it as the same model, moved or renamed"
        raise SettingsError(
            f"wrong base: the adapter {folder} was trained on {was}, not {given}{remedy}"
        )


def is_base(config: LoraConfig, folder: Path, name: str, fingerprint: str | None) -> bool:
    """Returns whether `name` is the base that an adapter's config names.

    Built-in models are known by their fingerprints. A path may be meant from the working folder, or
    from the adapter's.
    """
    if config.revision and fingerprint:
        return config.revision == fingerprint
    named = Path(str(config.base_model_name_or_path)).expanduser()
    places = {named.resolve(), (folder / named).resolve()}
    return name == config.base_model_name_or_path or Path(name).resolve() in places


def shorten(error: Exception) -> str:
    """Returns an error of a library in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
