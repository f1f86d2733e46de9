"""Where a base's files are, for engines with loaders of their own, and its tokenizer without it."""

import fcntl
import gc
import hashlib
import logging
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import PreTrainedTokenizerBase

from agentpeft.envs import SettingsError
from agentpeft.envs.system.whole_files import making
from agentpeft.policies.models.load import (
    choose_device,
    choose_dtype,
    load_base,
    load_served_base,
)
from agentpeft.policies.models.policy_base import read_file_states
from agentpeft.policies.models.saved_model import find_saved
from agentpeft.policies.models.tiny_cache import CACHE_VARIABLE, cache_dir
from agentpeft.policies.settings.config import Settings

logger = logging.getLogger(__name__)


def find_base(settings: Settings) -> tuple[Path, PreTrainedTokenizerBase]:
    """Returns the base's folder and its tokenizer, without loading weights.

    But for the tiny model, which is made where it is not in the cache. Raises: SettingsError.
    """
    if settings.model.name == "tiny":
        base = load_base(settings)
        return Path(base.name), base.tokenizer
    return find_saved(settings.model)


def find_served_base(
    settings: Settings, num_gpus: float = 0.0
) -> tuple[Path, PreTrainedTokenizerBase]:
    """Returns the folder of the weights that an engine serves; else as `find_base`.

    A base in 4 bits is written into the cache as `load_served_base` has it, once on each machine.
    """
    folder, tokenizer = find_base(settings)
    if settings.model.is_in_4_bits:
        folder = _dequantize(folder, settings, num_gpus)
    return folder, tokenizer


def _dequantize(folder: Path, settings: Settings, num_gpus: float) -> Path:
    """Returns the folder of a base's copy, written once on each machine."""
    from agentpeft.policies.models.four_bits import need_quantizer

    need_quantizer()
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
