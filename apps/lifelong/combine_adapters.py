"""Several adapters become one, by PEFT's `add_weighted_adapter`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

from peft import LoraConfig, LoraModel
from safetensors import SafetensorError
from safetensors.numpy import save_file

from agentpeft.envs import SettingsError
from agentpeft.envs.system.whole_files import making
from agentpeft.policies.delivery.version import ADAPTER_WEIGHTS
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.models.lora.attach_lora import TRAINED, adapter_parameters
from agentpeft.policies.models.lora.open_adapters import open_adapters
from agentpeft.policies.models.policy_base import PolicyBase

_COMBINED = "combined"
_TIES_DENSITY = 0.2
"""The share of weights that TIES keeps of each adapter, as its paper does."""


def combine_adapters(
    base: PolicyBase, folders: Sequence[Path], kind: Literal["cat", "ties_svd"], output: Path
) -> None:
    """Writes one adapter that stands for several, by PEFT's `add_weighted_adapter`.

    "cat" is the mean of their updates, exactly, at the sum of their ranks. "ties_svd" trims each
    update to its largest fifth, elects signs, averages what agrees, and brings that to their rank.
    The base is changed in place. Source of TIES: Yadav et al. 2023, "TIES-Merging". Raises: as
    `open_adapter`; SettingsError for rsLoRA, whose scale PEFT does not carry over.
    """
    model, names = open_adapters(base, folders)
    if cast(LoraConfig, model.peft_config[TRAINED]).use_rslora:
        raise SettingsError("adapters of rsLoRA (use_rslora) cannot be combined")
    tuner = cast(LoraModel, model.base_model)
    density = _TIES_DENSITY if kind == "ties_svd" else None
    weights = [1 / len(names) if kind == "cat" else 1.0] * len(names)
    tuner.add_weighted_adapter(list(names), weights, _COMBINED, kind, density=density)
    config = cast(LoraConfig, model.peft_config[_COMBINED])
    weights_by_name = {
        name: parameter.detach().float().cpu().numpy().copy()
        for name, parameter in adapter_parameters(model, _COMBINED).items()
    }
    try:
        with making(output) as new:
            config.save_pretrained(str(new))
            save_file(weights_by_name, new / ADAPTER_WEIGHTS, {"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"the adapter cannot be written to {output}: {error}") from None
