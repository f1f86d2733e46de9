"""Which base a run stands on: the built-in model, a Hugging Face model, or an adapter's base.

`tiny_cache` and `saved_model` are imported where they are needed: the first plays environments, and
learners of other models are for machines without any, too.
"""

import logging
import platform
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from agentpeft.envs import SettingsError
from agentpeft.policies.models.policy_base import PolicyBase, place
from agentpeft.policies.models.scoring import use_float_head
from agentpeft.policies.settings.config import ModelSettings, Settings

logger = logging.getLogger(__name__)
SLOW_IN_BFLOAT16 = (
    "this processor has no instructions for bfloat16, and computes with it many times slower"
)
_MIN_PARAMETERS_FOR_CPU_AUTOCAST = 50_000_000


def load_base(
    settings: Settings,
    num_gpus: float = 0.0,
    *,
    stays_on_cpu: bool = False,
    is_frozen: bool = False,
) -> PolicyBase:
    """Returns the base of `settings.model` on a GPU if `num_gpus` > 0, in evaluation mode.

    A base that `is_frozen` shares its weights with others of this process, so nobody may write
    into them; one in 4 bits has its own.

    With `stays_on_cpu` it has the type that it has there, but is not moved to the GPU. Such weights
    are pages of the model's files, where these have that type; they take no memory of their own.
    The tiny model is made, and warm-started, where it is not in the cache. A name `module:rest`
    imports `module` first, as to register one's own classes with `AutoModelForCausalLM`. Nothing
    is fetched for local folders. Raises: SettingsError, in one line.
    """
    device, model = choose_device(num_gpus), settings.model
    dtype = choose_dtype(model, device)
    if dtype == torch.bfloat16 and device.type == "cpu" and is_slow_in_bfloat16():
        logger.warning("%s: set model.dtype to 'float32'", SLOW_IN_BFLOAT16)
    device = torch.device("cpu") if stays_on_cpu else device
    if model.name == "tiny":
        from agentpeft.policies.models.tiny_cache import load_tiny

        base = load_tiny(settings)
        base.model.to(dtype)  # type: ignore[arg-type]
        place(base.model, device, Path(base.name) if is_frozen else None)
        use_float_head(base.model)
        return replace(base, adapter_path=model.adapter)
    from agentpeft.policies.models.saved_model import load_saved

    return load_saved(model, device, dtype, is_frozen)


def load_served_base(settings: Settings, num_gpus: float = 0.0) -> PolicyBase:
    """Returns the base as an engine serves it: of 4 bits a copy in the base's type.

    Its weights are those that the learner's 4 bits stand for. Others are shared: see `is_frozen`.
    Raises: SettingsError.
    """
    base = load_base(settings, num_gpus, is_frozen=True)
    if settings.model.is_in_4_bits:
        dtype = choose_dtype(settings.model, choose_device(num_gpus))
        plain = base.model.dequantize(dtype)  # type: ignore[no-untyped-call]
        base = replace(base, model=plain.train(False))
    return base


def choose_device(num_gpus: float) -> torch.device:
    """Returns where to compute. Raises: SettingsError if a GPU is asked for where none is."""
    if num_gpus > 0 and not torch.cuda.is_available():
        raise SettingsError(
            f"a GPU is asked for ({num_gpus:g}) and torch {torch.__version__} sees none: set "
            "learners.num_gpus_per_learner and env_runners.num_gpus_per_env_runner to 0"
        )
    return torch.device("cuda" if num_gpus > 0 else "cpu")


def choose_dtype(model: ModelSettings, device: torch.device) -> torch.dtype:
    """Returns the type of the base's weights, or in 4 bits of what they stand for."""
    is_open = model.dtype in ("auto", "nf4")
    is_bfloat16 = model.dtype == "bfloat16" or (is_open and device.type == "cuda")
    return torch.bfloat16 if is_bfloat16 else torch.float32


def choose_serving(settings: Settings, dtype: torch.dtype) -> Literal["native", "fused"]:
    """Returns how adapters are served over a base of this type."""
    asked = settings.env_runners.serving
    if asked != "auto":
        return asked
    return "native" if dtype == torch.bfloat16 and settings.lora.use_lora else "fused"


def uses_autocast(settings: Settings, model: nn.Module, device: torch.device) -> bool:
    """Returns whether updates compute in bfloat16; a small model on a CPU is bound by overhead."""
    if settings.learners.autocast != "auto":
        return settings.learners.autocast == "bfloat16"
    if device.type != "cpu":
        return True
    if not multiplies_bfloat16():
        return False
    num_parameters = sum(p.numel() for p in model.parameters())
    return num_parameters >= _MIN_PARAMETERS_FOR_CPU_AUTOCAST


def is_slow_in_bfloat16() -> bool:
    """Returns whether this processor is known to be; of others than x86 nothing is known."""
    return platform.machine() in {"x86_64", "AMD64"} and not multiplies_bfloat16()


def multiplies_bfloat16() -> bool:
    """Returns whether this processor has instructions for products of bfloat16.

    Without them some products, the backward pass's among them, run in plain loops on one core.
    """
    return torch.cpu._is_avx512_bf16_supported()  # AMX never comes without it


def travels_in_bfloat16(settings: Settings, model: nn.Module) -> bool:
    """Returns whether an adapter loses nothing in bfloat16 that any of its readers would see.

    Under autocast the learner, whose `model` it is, rounds A and B to it in every pass, as slots
    over a bfloat16 base do.
    """
    # Not `choose_device`: the learner may be where no GPU is
    device = torch.device("cuda" if settings.env_runners.num_gpus_per_env_runner > 0 else "cpu")
    is_served = choose_dtype(settings.model, device) == torch.bfloat16
    is_computed = uses_autocast(settings, model, next(model.parameters()).device)
    return settings.lora.use_lora and is_served and is_computed
