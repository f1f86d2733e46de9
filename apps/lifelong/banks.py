"""Writing a bank: a folder with the experts of a sequence, and what the router needs to know."""

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

from agentpeft.envs.system.whole_files import making
from agentpeft.launch.evaluating.adapter_bank import BANK_FILE
from agentpeft.policies.checkpointing.checkpoints import write_config
from agentpeft.policies.settings.config import Settings


def count_pairs(prompts: Iterable[str]) -> dict[str, int]:
    """Returns how often each pair of neighbouring characters is in the prompts."""
    return dict(Counter("".join(pair) for prompt in prompts for pair in pairwise(prompt)))


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
        (new / BANK_FILE).write_text(json.dumps(content), encoding="utf-8")
        write_config(new, settings)
