"""The episodes that a report shows: few enough for its size, spread over the whole run."""

import json
import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import itemgetter
from pathlib import Path

from agentpeft.launch.reporting.run_data import Row, read_sessions

_NOT_SHOWN = {"sample", "num_turns", "num_tokens"}
_key = itemgetter("iteration", "group_id", "sample")


def read_episodes(run_dir: Path, max_bytes: int) -> list[Row]:
    """Returns episodes of training, token by token, and of the first and the last evaluation.

    Each has `set` ("train", "before" or "after"), its facts and messages; those of training also
    what `TokenRecord` has. Raises: DataError.
    """
    tokens = {_key(row): row for row in read_sessions(run_dir, "tokens")}
    trained = [
        {**_facts("train", row), **tokens[_key(row)]}
        for row in read_sessions(run_dir, "train")
        if _key(row) in tokens
    ]
    episodes = thin(trained, max_bytes // 2, itemgetter("iteration"))
    evaluated: dict[int, list[Row]] = {}
    for row in read_sessions(run_dir, "eval"):
        evaluated.setdefault(row["iteration"], []).append(row)
        if len(evaluated) > 2:  # neither the first nor the last
            del evaluated[sorted(evaluated)[1]]
    for name, iteration in zip(("before", "after"), sorted(evaluated), strict=False):
        rows = [_facts(name, row) for row in evaluated[iteration]]
        episodes += thin(rows, max_bytes // 4, itemgetter("group_id"))
    return episodes


def thin(rows: Sequence[Row], max_bytes: int, place: Callable[[Row], int]) -> list[Row]:
    """Returns all rows, or those of every n-th place, so that as JSON they take `max_bytes`."""
    sizes = [len(json.dumps(row)) for row in rows]
    stride = math.ceil(sum(sizes) / max_bytes) or 1
    places = set(sorted({place(row) for row in rows})[::stride])
    chosen = [(row, size) for row, size in zip(rows, sizes, strict=True) if place(row) in places]
    ends = accumulate(size for _, size in chosen)
    return [row for (row, _), end in zip(chosen, ends, strict=True) if end <= max_bytes]


def _facts(name: str, row: Row) -> Row:
    return {"set": name, **{fact: value for fact, value in row.items() if fact not in _NOT_SHOWN}}
