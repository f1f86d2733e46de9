"""Folders of adapters and of whole models, in the formats of PEFT and Hugging Face."""

import json
from collections.abc import Mapping
from pathlib import Path

from agentpeft.policies.delivery.version import ADAPTER_CONFIG

BASE_NAME = "base_model_name_or_path"
"""The key of the base in an adapter's config."""
PICKLED_WEIGHTS = "adapter_model.bin"
"""What PEFT wrote before it wrote safetensors."""
MODEL_CONFIG = "config.json"
"""The file that a model of its own has in Hugging Face's format."""


def is_whole_model(folder: Path) -> bool:
    """Returns whether a folder holds a model of its own, as a run on all weights saves it."""
    return (folder / MODEL_CONFIG).is_file() and not (folder / ADAPTER_CONFIG).is_file()


def read_base_name(adapter: Path) -> str:
    """Returns the base that an adapter's config names: a hub id or a folder.

    A relative path is meant from the working folder, or else from the adapter's. Raises: OSError;
    ValueError where it names none.
    """
    config = json.loads((adapter / ADAPTER_CONFIG).read_bytes())
    name = config.get(BASE_NAME) if isinstance(config, dict) else None
    if not (isinstance(name, str) and name):
        raise ValueError(f"{BASE_NAME} is {name!r}")
    beside = adapter / Path(name).expanduser()
    is_beside = beside.is_dir() and not Path(name).expanduser().exists()
    return str(beside.resolve()) if is_beside else name


def rename_base(files: Mapping[str, bytes], names: Mapping[str, str]) -> dict[str, bytes]:
    """Returns an adapter's files with another name of its base, where `names` has it."""
    renamed = dict(files)
    for name in (name for name in files if Path(name).name == ADAPTER_CONFIG):
        config = json.loads(files[name])
        if config.get(BASE_NAME) in names:
            config[BASE_NAME] = names[config[BASE_NAME]]
            renamed[name] = json.dumps(config, indent=2, sort_keys=True).encode()
    return renamed
