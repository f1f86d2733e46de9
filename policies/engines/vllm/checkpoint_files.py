"""The weights of a saved model, by name: the base that never changes, whatever is served."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from agentpeft.envs.core.errors import SettingsError


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
        self._files: dict[str, Any] = {name: file for file in files for name in _names(file)}
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


def _names(file: Any) -> list[str]:
    return list(file.keys())
