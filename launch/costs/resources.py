"""How much memory a run needs, from the model's config alone: an estimate, within a factor of 2."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from agentpeft.envs import SettingsError
from agentpeft.envs.tasks.hub import is_hub_reachable
from agentpeft.policies.delivery.adapter_files import read_base_name
from agentpeft.policies.delivery.version import ADAPTER_CONFIG
from agentpeft.policies.engines.vllm.settings import divide_gpus
from agentpeft.policies.learning.algorithms import algorithm_of
from agentpeft.policies.learning.passes.sharded_base import find_layers
from agentpeft.policies.models.linear_logprobs import slice_size
from agentpeft.policies.models.load import choose_dtype, choose_serving, multiplies_bfloat16
from agentpeft.policies.models.tiny import make_tiny_config
from agentpeft.policies.settings.config import Settings, to_toml_value

_MIB = 2**20
_PER_HIDDEN, _PER_INTERMEDIATE = 10, 4
"""Values that a layer keeps of each token for its backward pass, of its two widths."""
_NORM_BYTES = 16
"""What two norms over bfloat16 keep besides per hidden unit: input and output in float32, twice."""
_NUM_GATHERED = 3
"""Layers of a sharded base that a learner has whole at a time: two, and one on its way."""
_RELIEFS: tuple[tuple[str, str, object], ...] = (
    ("env_runners", "max_context_tokens", 2048),
    ("env_runners", "max_concurrent_episodes", 32),
    ("learners", "gradient_checkpointing", True),
    ("learners", "max_tokens_per_micro_batch", 4096),
    ("model", "dtype", "bfloat16"),
)
"""Settings that take less memory, the mildest first."""
_OUTPUTS = {"lm_head", "embed_out"}
_LOGIT_CHANGES = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Settings of models that change what their output layer gives."""


def estimate_memory(settings: Settings) -> dict[str, float]:
    """Returns MiB by what needs them; "learner" and "env_runner" are each process's sums.

    The optimizer's are the gradient, AdamW's two moments, and the sum over several learners. Of a
    sharded base a learner's weights are its part; the layers that are gathered come on top. Of a
    vLLM engine over several GPUs "env_runner" is one GPU's sum. Where learner and engine are in one
    process, the base that they share is the learner's.

    Raises: OSError or ValueError where the model's config cannot be read.
    """
    config = read_model_config(settings)
    model, num_base = _count_weights(config)
    rank = settings.lora.rank
    num_trained = num_base
    if settings.lora.use_lora:
        layers = _adapted_layers(model, settings)
        num_trained = sum(rank * (layer.in_features + layer.out_features) for layer in layers)
    gpus = settings.learners.num_gpus_per_learner, settings.env_runners.num_gpus_per_env_runner
    devices = [torch.device("cuda" if num_gpus > 0 else "cpu") for num_gpus in gpus]
    dtype, runner_dtype = (choose_dtype(settings.model, device) for device in devices)
    size, teacher = dtype.itemsize, settings.training.teacher
    num_held, num_gathered = _count_held(model, num_base, settings)
    num_teacher = num_gathered_teacher = 0.0
    if teacher is not None and not settings.training.is_taught_by_endpoint:
        other = read_model_config(settings.with_model(name=teacher, adapter=None))
        num_teacher, num_gathered_teacher = _count_held(*_count_weights(other), settings)
    parts = {
        "base_weights": num_held * (0.55 if settings.model.is_in_4_bits else size),
        "gathered": max(num_gathered, num_gathered_teacher) * size,
        "float32_base": num_base * (4.0 - size) * (not settings.lora.use_lora),
        "teacher": num_teacher * size,
        "adapter": num_trained * 4.0,
        "optimizer": num_trained * (12.0 if settings.learners.num_learners == 1 else 16.0),
        # Before an update weights and moments are copied, to go back to if it is given up.
        "roll_back": num_trained
        * 12.0
        * (settings.lora.use_lora and not settings.learners.shard_base),
        "critic": num_trained * 16.0 if settings.training.critic == "separate" else 0.0,
        # On a CPU the transformers engine keeps those of grouped heads in float32
        "kv_cache": _kv_cache_bytes(config, settings)
        * (4 if devices[1].type == "cpu" else runner_dtype.itemsize),
        "activations": _activation_bytes(config, settings, size, devices[0]),
    }
    mib = {name: number / _MIB for name, number in parts.items()}
    is_vllm, kv_cache_gib = settings.env_runners.engine == "vllm", settings.env_runners.kv_cache_gib
    if is_vllm and (kv_cache_gib or gpus[1] == 0):
        mib["kv_cache"] = 1024 * (kv_cache_gib or 1.0)
    mib["learner"] = sum(mib[name] for name in parts if name != "kv_cache")
    # Several GPUs of a vLLM engine divide its weights and its cache; each has its whole slots
    num_parts = divide_gpus(gpus[1])[1]
    if is_vllm and not kv_cache_gib:
        mib["kv_cache"] /= num_parts
    # Where the transformers engine fuses, it keeps an untouched copy; vLLM's is in the files
    is_copied = not is_vllm and choose_serving(settings, runner_dtype) == "fused"
    served = num_base * (runner_dtype.itemsize if settings.model.is_in_4_bits else size) / _MIB
    # A CPU's products of few rows have a copy of weights in bfloat16, laid out for them
    is_in_bfloat16 = devices[1].type == "cpu" and runner_dtype == torch.bfloat16
    is_packed = not is_vllm and is_in_bfloat16 and multiplies_bfloat16()
    num_copies = 1 + is_copied + is_packed - _is_base_shared(settings, *devices)
    weights = num_copies * served / num_parts
    if settings.env_runners.shared_engines is not None:  # both are the engines'
        weights = mib["kv_cache"] = 0.0
    # Its cache is copied into a larger one where episodes join that need more room
    mib["env_runner"] = weights + mib["adapter"] + (1 if is_vllm else 2) * mib["kv_cache"]
    return mib


def _is_base_shared(
    settings: Settings, learner_device: torch.device, runner_device: torch.device
) -> bool:
    """Returns whether the engine has the learner's own copy of the frozen base."""
    is_one_process = settings.env_runners.num_env_runners == 0
    is_here = settings.env_runners.engine == "transformers" and learner_device == runner_device
    is_frozen = settings.lora.use_lora and not settings.model.is_in_4_bits
    return is_one_process and is_here and is_frozen


def _count_weights(config: PreTrainedConfig) -> tuple[PreTrainedModel, int]:
    """Returns a model without memory, and how many weights it has."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return model, sum(weight.numel() for weight in model.parameters())


def _count_held(
    model: PreTrainedModel, num_weights: int, settings: Settings
) -> tuple[float, float]:
    """Returns how many of a model's weights a learner holds, and how many it gathers at a time."""
    if not settings.learners.shard_base:
        return float(num_weights), 0.0
    layers = [sum(weight.numel() for weight in layer.parameters()) for layer in find_layers(model)]
    gone = sum(layers) * (1 - 1 / settings.learners.num_learners)
    return num_weights - gone, float(_NUM_GATHERED * max(layers, default=0))


def read_model_config(settings: Settings) -> PreTrainedConfig:
    """Returns the model's config, of an adapter its base's.

    Raises: OSError, ValueError, KeyError.
    """
    name = settings.model.name
    if name == "tiny":
        return make_tiny_config(settings.tiny)
    adapter = Path(name).expanduser()
    if (adapter / ADAPTER_CONFIG).is_file():
        name = read_base_name(adapter)
    is_local = Path(name).expanduser().is_dir() or not is_hub_reachable()
    config: PreTrainedConfig = AutoConfig.from_pretrained(name, local_files_only=is_local)
    return config


@contextmanager
def naming_model(settings: Settings) -> Iterator[None]:
    """Raises: SettingsError that names the model, where the block cannot read its config."""
    try:
        yield
    except SettingsError:
        raise
    except (OSError, ValueError, KeyError) as error:
        problem = " ".join(str(error).split())
        raise SettingsError(f"model.name {settings.model.name!r}: {problem}") from None


def _adapted_layers(model: nn.Module, settings: Settings) -> Iterator[nn.Linear]:
    targets = settings.lora.target_modules
    for name, module in model.named_modules():
        leaf = name.rpartition(".")[2]
        is_chosen = leaf not in _OUTPUTS if targets == "all-linear" else leaf in targets
        if isinstance(module, nn.Linear) and is_chosen:
            yield module


def _kv_cache_bytes(config: PreTrainedConfig, settings: Settings) -> float:
    """Returns how many values the key/value cache of all concurrent episodes has at most."""
    shape: dict[str, int] = config.to_dict()
    num_heads, hidden = shape["num_attention_heads"], shape["hidden_size"]
    head_size = shape.get("head_dim") or hidden // num_heads
    width = (shape.get("num_key_value_heads") or num_heads) * head_size
    runners = settings.env_runners
    num_tokens = runners.limit_context(shape["max_position_embeddings"])
    episodes = runners.max_concurrent_episodes
    return 2.0 * shape["num_hidden_layers"] * width * num_tokens * episodes


def _activation_bytes(
    config: PreTrainedConfig, settings: Settings, size: int, device: torch.device
) -> float:
    """Returns what a step over a full micro-batch takes, all of whose tokens were sampled.

    At its peak the output layer has three float32 arrays of a slice's logits, and of each token a
    state, its gradient's means, and its target's weights; an entropy bonus keeps one more. Models
    that change their logits make all of them: those, what sums their exponentials, and two parts
    of their gradient; an entropy bonus keeps two more. Over 16-bit weights the slice's (there: all
    of the layer's, twice) are in float32; a GPU leaves them, and cuts a slice's odds into parts.
    """
    shape: dict[str, int] = config.to_dict()
    tokens, num_layers = settings.learners.max_tokens_per_micro_batch, shape["num_hidden_layers"]
    hidden, vocabulary = shape["hidden_size"], shape["vocab_size"]
    intermediate = shape.get("intermediate_size") or 4 * hidden
    layer = (_PER_HIDDEN * hidden + _PER_INTERMEDIATE * intermediate) * size
    layer += _NORM_BYTES * hidden if size == 2 else 0
    has_bonus = algorithm_of(settings.training).entropy_coeff > 0
    if _makes_all_logits(shape, settings):
        logits = (6 if has_bonus else 4) * vocabulary * 4
        head = 2 * vocabulary * hidden * 4 if size == 2 else 0
    else:
        width = min(slice_size(tokens, device), vocabulary)
        is_cut = size == 2 and device.type == "cuda"
        logits = (6 if is_cut else 3) * width * 4 + (4 if has_bonus else 3) * hidden * 4
        head = width * hidden * 4 if size == 2 and not is_cut else 0
    if settings.learners.gradient_checkpointing:
        # The layers' inputs; a layer is recomputed only when the logits' arrays are gone
        return float(tokens * (num_layers * hidden * size + max(layer, logits)) + head)
    return float(tokens * (num_layers * layer + logits) + head)


def _makes_all_logits(shape: dict[str, int], settings: Settings) -> bool:
    targets = settings.lora.target_modules
    is_adapted = targets != "all-linear" and not _OUTPUTS.isdisjoint(targets)
    is_changed = any(shape.get(name) not in {None, 1.0} for name in _LOGIT_CHANGES)
    return is_changed or (settings.lora.use_lora and is_adapted)


def compare_memory(settings: Settings) -> tuple[str, str] | None:
    """Returns how much more memory than this machine's a run may need, and what to do; None: none.

    Its GPUs must be there. Raises: SettingsError where the weights alone do not fit, or no layer
    gets an adapter.
    """
    with naming_model(settings):
        held, most = _find_loads(settings)
    if held > 1:
        raise SettingsError(
            f"memory: the weights alone need {held:.1f} times what this machine has: take a "
            "smaller model, model.dtype=bfloat16 or nf4, or learners.shard_base=true"
        )
    if most <= 1:
        return None
    words, load = list[str](), most
    for section, name, value in _RELIEFS:
        old = dict(settings)[section]
        changed = settings.model_copy(update={section: old.model_copy(update={name: value})})
        if load > 1 and (less := _find_loads(changed)[1]) < 0.9 * load:
            settings, load = changed, less
            words.append(f"{section}.{name}={to_toml_value(value)}")
    remedy = f"set {' '.join(words)}" if words else "take a smaller model"
    return f"up to {most:.1f} times what this machine has", remedy


def _find_loads(settings: Settings) -> tuple[float, float]:
    """Returns the shares of this machine's memory that the weights need, and that all needs.

    Of RAM and a GPU, the larger share. Raises: SettingsError where no layer gets an adapter.
    """
    learners, runners = settings.learners, settings.env_runners
    mib, is_vllm = estimate_memory(settings), runners.engine == "vllm"
    if settings.lora.use_lora and not mib["adapter"]:
        names = settings.lora.target_modules
        raise SettingsError(
            f"lora.target_modules {names!r} names no linear layer of the model (usual: q_proj, "
            "k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj; 'all-linear' means all)"
        )
    learner = mib["learner"] - mib["activations"]
    runner = mib["env_runner"] - (1 if is_vllm else 2) * mib["kv_cache"]
    ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / _MIB
    gpu = torch.cuda.get_device_properties(0).total_memory / _MIB if settings.asks_gpus else ram

    def find_load(learner: float, runner: float) -> float:
        processes = (
            (learner, learners.num_learners, learners.num_gpus_per_learner),
            (runner, max(runners.num_env_runners, 1), runners.num_gpus_per_env_runner),
        )
        in_ram = sum(need * count for need, count, num_gpus in processes if num_gpus == 0)
        on_gpus = [need / min(gpus, 1) for need, _, gpus in processes if gpus > 0]
        return max(in_ram / ram, *(need / gpu for need in on_gpus), 0.0)

    # vLLM takes its share for keys and values, no more
    return find_load(learner, runner), find_load(
        mib["learner"], runner if is_vllm else mib["env_runner"]
    )


def describe_memory(settings: Settings) -> list[str]:
    """Returns the estimate in lines; one line with the reason where there is none."""
    try:
        mib = estimate_memory(settings)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        return [f"memory: no estimate, {settings.model.name!r} has no readable config ({reason})"]
    parts = [f"  {name:<13} {value:>10,.1f} MiB" for name, value in mib.items()]
    learners, runners = settings.learners.num_learners, settings.env_runners.num_env_runners
    is_embedded = settings.env_runners.engine == "transformers"
    return [
        f"memory, at most, in each process (learners: {learners}, env runners: {runners}):",
        *parts,
        *(["  (an env runner has kv_cache twice while it grows)"] if is_embedded else []),
    ]
