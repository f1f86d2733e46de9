"""A bank: a folder of adapters over one base, and what chooses among them by a prompt's words.

It is a multinomial naive Bayes over pairs of neighbouring characters, with add-one smoothing
(Manning et al. 2008, "Introduction to Information Retrieval", 13.2). All adapters are as likely.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from agentpeft.envs import SettingsError
from agentpeft.policies.delivery.version import ADAPTER_CONFIG

BANK_FILE = "bank.json"


class PromptRouter:
    """Names the stage that a prompt is most likely of."""

    def __init__(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """`counts`: how often each pair of neighbouring characters is in prompts of each stage."""
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
    return (folder / BANK_FILE).is_file()


def read_bank(folder: Path) -> AdapterBank:
    """Returns the bank in a folder. Raises: SettingsError where it is not whole."""
    try:
        content = json.loads((folder / BANK_FILE).read_text(encoding="utf-8"))
        names, counts = content["adapters"], content["pairs"]
        adapters = {name: (folder / name).resolve() for name in names}
        router = PromptRouter({name: counts[name] for name in names})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(f"{folder / BANK_FILE} cannot be read as a bank's: {error!r}") from None
    for name, path in adapters.items():
        if not (path / ADAPTER_CONFIG).is_file():
            raise SettingsError(f"the bank {folder} lacks its adapter {name} (no {ADAPTER_CONFIG})")
    return AdapterBank(adapters, router)
