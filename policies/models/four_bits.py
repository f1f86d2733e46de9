"""Bases in 4 bits."""

import torch
from transformers import BitsAndBytesConfig, PreTrainedModel

from agentpeft.envs import SettingsError
from agentpeft.envs.core.errors import is_installed


def keep_layout(network: PreTrainedModel) -> None:
    """Keeps bitsandbytes from packing weights in place, on CPUs with bfloat16 instructions.

    It would do so in evaluation mode, and in training fail on what it has packed.
    """
    from bitsandbytes.nn import Linear4bit  # slow to import, and seldom there

    for layer in network.modules():
        if isinstance(layer, Linear4bit):
            layer.support_avx512bf16_for_cpu = False


def need_quantizer() -> None:
    """Raises: SettingsError without the packages."""
    for package in ("bitsandbytes", "accelerate"):
        if not is_installed(package):
            raise SettingsError(
                f"model.dtype 'nf4' needs {package}: pip install 'agentpeft[quantize]', or set "
                "another type"
            )


def make_four_bit_config(dtype: torch.dtype) -> BitsAndBytesConfig:
    """Returns how a base is quantized. Raises: SettingsError without the packages."""
    need_quantizer()
    return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
    )
