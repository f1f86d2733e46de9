"""A bank: a folder of adapters over one base, and what chooses among them by a prompt."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentpeft.envs import SettingsError
from agentpeft.envs.system.whole_files import making
from agentpeft.launch.evaluating.router import PromptRouter
from agentpeft.policies.checkpointing.checkpoints import write_config
from agentpeft.policies.delivery.version import ADAPTER_CONFIG
from agentpeft.policies.settings.config import Settings

_FILE = "bank.json"


@dataclass(frozen=True)
class AdapterBank:
    """Adapters by name, in order; the router's stages are these names."""

    adapters: Mapping[str, Path]
    router: PromptRouter

    def choose(self, prompt: str) -> int:
        """Returns the number, from 0, of the adapter that answers a prompt."""
        return list(self.adapters).index(self.router.find_stage(prompt))


def is_bank(folder: Path) -> bool:
    """Returns whether a folder holds a bank."""
    return (folder / _FILE).is_file()


def write_bank(
    folder: Path,
    adapters: Mapping[str, Path],
    pair_counts: Mapping[str, Mapping[str, int]],
    settings: Settings,
) -> None:
    """Copies adapters into a new folder, with the router's counts and what evaluation needs.

    `settings` are those that `agentpeft evaluate FOLDER` plays by.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with making(folder) as new:
        for name, adapter in adapters.items():
            shutil.copytree(adapter, new / name)
        content = {"adapters": list(adapters), "pairs": pair_counts}
        (new / _FILE).write_text(json.dumps(content), encoding="utf-8")
        write_config(new, settings)


def read_bank(folder: Path) -> AdapterBank:
    """Returns what `write_bank` wrote. Raises: SettingsError where it is not whole."""
    try:
        content = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        names, counts = content["adapters"], content["pairs"]
        adapters = {name: (folder / name).resolve() for name in names}
        router = PromptRouter({name: counts[name] for name in names})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(f"{folder / _FILE} cannot be read as a bank's: {error!r}") from None
    for name, path in adapters.items():
        if not (path / ADAPTER_CONFIG).is_file():
            raise SettingsError(f"the bank {folder} lacks its adapter {name} (no {ADAPTER_CONFIG})")
    return AdapterBank(adapters, router)
