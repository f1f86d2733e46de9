"""The sources of `AgentPEFT/Mixture-v0`, as they stand in an environment's keyword arguments."""

from collections.abc import Mapping
from typing import Any

SOURCES = "sources"


def drawn_kwargs(kwargs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the keyword arguments of all environments whose tasks are drawn.

    Of a mixture they are those of each source that has a weight, with its `id`; of any other
    environment its own. What is no mixture's form is left to the environment to refuse.

    >>> drawn_kwargs({"sources": [{"id": "a", "kwargs": {"n": 1}}, {"id": "b"}], "split": "test"})
    [{'n': 1, 'split': 'test', 'id': 'a'}, {'split': 'test', 'id': 'b'}]
    """
    sources, weights = kwargs.get(SOURCES), kwargs.get("weights")
    if not isinstance(sources, list | tuple):
        return [dict(kwargs)]
    shared = {name: value for name, value in kwargs.items() if name not in (SOURCES, "weights")}
    if not (isinstance(weights, list | tuple) and len(weights) == len(sources)):
        weights = [1.0] * len(sources)
    found = []
    for source, weight in zip(sources, weights, strict=True):
        own = source.get("kwargs", {}) if isinstance(source, Mapping) else None
        if isinstance(own, Mapping) and weight != 0:
            found += drawn_kwargs({**own, **shared, "id": source.get("id")})
    return found
