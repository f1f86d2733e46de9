"""Weights in files: a saved model's, which never change, and an adapter's, in PEFT's format."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from agentpeft.envs.core.errors import SettingsError
from agentpeft.policies.delivery.version import ADAPTER_CONFIG, ADAPTER_WEIGHTS, LORA_A
from agentpeft.policies.engines.fusing import tensor_of
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import AdapterVersion, Bits, Floats


class CheckpointFiles(Mapping[str, torch.Tensor]):
    """A folder's safetensors, read when they are asked for; the system keeps them in its cache.

    So a pristine copy costs no memory of a process, and several engines share it.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, device: str) -> None:
        """Tensors come as `dtype`, on `device`. Raises: SettingsError where there are none."""
        self._dtype = dtype
        try:
            paths = folder.glob("*.safetensors")
            files: list[Any] = [safe_open(path, "pt", device) for path in paths]
        except (OSError, SafetensorError) as error:
            raise SettingsError(f"the weights in {folder} cannot be read: {error}") from None
        self._files: dict[str, Any] = {name: file for file in files for name in list(file.keys())}
        if not self._files:
            raise SettingsError(f"{folder} has no *.safetensors, which vLLM's workers read")

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor.to(self._dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns all shapes, without reading the tensors."""
        slices = ((name, file.get_slice(name)) for name, file in self._files.items())
        return {name: tuple(part.get_shape()) for name, part in slices}


def lora_rank(adapter: AdapterVersion) -> int | None:
    """Returns the adapter's rank; None for a version of all weights."""
    ranks = [len(weight) for name, weight in adapter.weights.items() if name.endswith(LORA_A)]
    return max(ranks, default=None)


def write_adapter(adapter: AdapterVersion, folder: Path) -> None:
    """Writes an adapter (or all weights, which then have no PEFT config) into a folder."""
    fields = {name: str(vars(adapter)[name]) for name in ("version", "name", "sha256", "scaling")}
    weights = {name: tensor_of(weight) for name, weight in adapter.weights.items()}
    save_file(weights, folder / ADAPTER_WEIGHTS, {"format": "pt", **fields})
    rank = lora_rank(adapter)
    if rank is None:
        return
    modules = {
        name.removesuffix(LORA_A).rpartition(".")[2] for name in weights if name.endswith(LORA_A)
    }
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": adapter.scaling * rank,
        "target_modules": sorted(modules),
    }
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config), encoding="utf-8")


def read_adapter(folder: Path) -> AdapterVersion:
    """Returns what `write_adapter` wrote; the hash is the one noted. Raises: EngineError."""
    try:
        with safe_open(folder / ADAPTER_WEIGHTS, "pt") as file:
            noted = file.metadata()
            weights = {name: _array_of(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        return AdapterVersion(
            int(noted["version"]), noted["name"], noted["sha256"], float(noted["scaling"]), weights
        )
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise EngineError(f"the adapter in {folder} cannot be read: {error}") from None


def _array_of(weight: torch.Tensor) -> Floats | Bits:
    is_bfloat16 = weight.dtype == torch.bfloat16
    array: Floats | Bits = (weight.view(torch.uint16) if is_bfloat16 else weight).numpy()
    return array
