"""Which stage a prompt is of, told from its words: a classifier that chooses an adapter of a bank.

It is a multinomial naive Bayes over pairs of neighbouring characters, with add-one smoothing
(Manning et al. 2008, "Introduction to Information Retrieval", 13.2). All stages are as likely.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise


class PromptRouter:
    """Names the stage that a prompt is most likely of."""

    def __init__(self, prompts: Mapping[str, Iterable[str]]) -> None:
        """`prompts` are examples of each stage, one at least."""
        counts = {name: Counter(map("".join, _pairs(own))) for name, own in prompts.items()}
        known = set().union(*counts.values())
        self._scores = {}
        for name, own in counts.items():
            total = math.log(own.total() + len(known) + 1)
            self._scores[name] = {pair: math.log(own[pair] + 1) - total for pair in known}
        self._unknown = {
            name: -math.log(own.total() + len(known) + 1) for name, own in counts.items()
        }

    def find_stage(self, prompt: str) -> str:
        """Returns the name of the likeliest stage; of equals the first."""
        pairs = list(map("".join, pairwise(prompt)))
        likelihoods = {
            name: sum(scores.get(pair, self._unknown[name]) for pair in pairs)
            for name, scores in self._scores.items()
        }
        return max(likelihoods, key=lambda name: likelihoods[name])


def _pairs(prompts: Iterable[str]) -> Iterable[tuple[str, str]]:
    return (pair for prompt in prompts for pair in pairwise(prompt))
