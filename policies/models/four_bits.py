"""Bases in 4 bits, and dequantized copies of them for engines with loaders of their own."""

import fcntl
import gc
import hashlib
import logging
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import BitsAndBytesConfig, PreTrainedModel

from agentpeft.envs import SettingsError
from agentpeft.envs.core.errors import is_installed
from agentpeft.envs.system.whole_files import making
from agentpeft.policies.models.load import choose_device, choose_dtype, load_served_base
from agentpeft.policies.models.policy_base import read_file_states
from agentpeft.policies.settings.config import Settings

logger = logging.getLogger(__name__)


def find_dequantized(folder: Path, settings: Settings, num_gpus: float) -> Path:
    """Returns the folder of a base's copy, written once on each machine. Raises: SettingsError."""
    from agentpeft.policies.models.tiny_cache import CACHE_VARIABLE, cache_dir

    _need_quantizer()
    device, cache = choose_device(num_gpus), cache_dir()
    dtype = choose_dtype(settings.model, device)
    depends_on = (read_file_states(folder), str(dtype), device.type, version("bitsandbytes"))
    key = hashlib.sha256(repr(depends_on).encode()).hexdigest()[:16]
    copy = cache / f"dequantized-{key}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with copy.with_suffix(".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the runners of a machine begin at once
            if not copy.is_dir():
                logger.info("writes what the 4 bits of %s stand for to %s", folder, copy)
                with making(copy, kind="dequantized") as new:
                    load_served_base(settings, num_gpus).model.save_pretrained(new)
                gc.collect()
                torch.cuda.empty_cache()  # the engine takes a share of what is free
    except (OSError, SafetensorError) as error:
        raise SettingsError(
            f"the cache {cache} cannot be written ({error}); set {CACHE_VARIABLE}"
        ) from None
    return copy


def keep_layout(network: PreTrainedModel) -> None:
    """Keeps bitsandbytes from packing weights in place, on CPUs with bfloat16 instructions.

    It would do so in evaluation mode, and in training fail on what it has packed.
    """
    from bitsandbytes.nn import Linear4bit  # slow to import, and seldom there

    for layer in network.modules():
        if isinstance(layer, Linear4bit):
            layer.support_avx512bf16_for_cpu = False


def _need_quantizer() -> None:
    for package in ("bitsandbytes", "accelerate"):
        if not is_installed(package):
            raise SettingsError(
                f"model.dtype 'nf4' needs {package}: pip install 'agentpeft[quantize]', or set "
                "another type"
            )


def make_four_bit_config(dtype: torch.dtype) -> BitsAndBytesConfig:
    """Returns how a base is quantized. Raises: SettingsError without the packages."""
    _need_quantizer()
    return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
    )
