"""Curves as a line of text."""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(
    values: Sequence[float], width: int, bounds: tuple[float, float] | None = None
) -> str:
    """Returns a line of at most `width` characters, each the mean of its share of the values.

    `bounds` are the lowest and the highest block (None: those of the values); values beyond them
    are cut. What is no finite number is left out.

    >>> sparkline([0.0, 0.5, 1.0], 3)
    '▁▅█'
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    edges = [round(i * len(finite) / width) for i in range(width + 1)]
    shares = [finite[a:b] for a, b in pairwise(edges) if a < b]
    means = [fmean(share) for share in shares]
    low, high = bounds or (min(means), max(means))
    span = (high - low) or 1.0
    places = [min(max((mean - low) / span, 0.0), 1.0) * (len(_BLOCKS) - 1) for mean in means]
    return "".join(_BLOCKS[math.floor(place + 0.5)] for place in places)
