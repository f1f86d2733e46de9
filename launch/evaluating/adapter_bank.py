"""A bank: a folder of adapters over one base, and what chooses among them by a prompt's words.

It is a multinomial naive Bayes over pairs of neighbouring characters, with add-one smoothing
(Manning et al. 2008, "Introduction to Information Retrieval", 13.2). All adapters are as likely.
"""

import json
import math
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from agentpeft.envs import SettingsError
from agentpeft.envs.system.whole_files import making
from agentpeft.policies.checkpointing.checkpoints import write_config
from agentpeft.policies.delivery.version import ADAPTER_CONFIG
from agentpeft.policies.settings.config import Settings

_FILE = "bank.json"


def count_pairs(prompts: Iterable[str]) -> dict[str, int]:
    """Returns how often each pair of neighbouring characters is in the prompts."""
    return dict(Counter("".join(pair) for prompt in prompts for pair in pairwise(prompt)))


class PromptRouter:
    """Names the stage that a prompt is most likely of."""

    def __init__(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """`counts` are `count_pairs` of examples of each stage."""
        known = set().union(*counts.values())
        self._scores, self._unknown = {}, {}
        for name, pairs in counts.items():
            total = math.log(sum(pairs.values()) + len(known) + 1)
            self._scores[name] = {pair: math.log(pairs.get(pair, 0) + 1) - total for pair in known}
            self._unknown[name] = -total

    def find_stage(self, prompt: str) -> str:
        """Returns the name of the likeliest stage; of equals the first."""
        pairs = list(map("".join, pairwise(prompt)))
        likelihoods = {
            name: sum(scores.get(pair, self._unknown[name]) for pair in pairs)
            for name, scores in self._scores.items()
        }
        return max(likelihoods, key=lambda name: likelihoods[name])


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
