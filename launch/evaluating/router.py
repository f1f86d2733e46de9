"""Which stage a prompt is of, told from its words: a classifier that chooses an adapter of a bank.

It is a multinomial naive Bayes over pairs of neighbouring characters, with add-one smoothing
(Manning et al. 2008, "Introduction to Information Retrieval", 13.2). All stages are as likely.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise


def count_pairs(prompts: Iterable[str]) -> dict[str, int]:
    """Returns how often each pair of neighbouring characters is in the prompts."""
    return dict(Counter("".join(pair) for prompt in prompts for pair in pairwise(prompt)))


class PromptRouter:
    """Names the stage that a prompt is most likely of."""

    def __init__(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """`counts` are `count_pairs` of examples of each stage."""
        known = set().union(*counts.values())
        self._scores, self._unknown = {}, {}
        for name, own in counts.items():
            total = math.log(sum(own.values()) + len(known) + 1)
            self._scores[name] = {pair: math.log(own.get(pair, 0) + 1) - total for pair in known}
            self._unknown[name] = -total

    def find_stage(self, prompt: str) -> str:
        """Returns the name of the likeliest stage; of equals the first."""
        pairs = list(map("".join, pairwise(prompt)))
        likelihoods = {
            name: sum(scores.get(pair, self._unknown[name]) for pair in pairs)
            for name, scores in self._scores.items()
        }
        return max(likelihoods, key=lambda name: likelihoods[name])
