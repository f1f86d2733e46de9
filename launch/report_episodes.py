"""The episodes that a report shows: few enough for its size, spread over the whole run."""

import json
import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

from agentpeft.launch.run_data import Row, read_rows

_FACTS = ("iteration", "task_id", "skills", "adapter_version", "outcome", "episode_return")
_KEY = ("iteration", "group_id", "sample")


def read_episodes(run_dir: Path, max_bytes: int) -> list[Row]:
    """Returns episodes of training, token by token, and of the first and the last evaluation.

    Each has `set` ("train", "before" or "after"), its facts and messages; those of training also
    what `TokenRecord` has. Raises: DataError.
    """
    sessions = run_dir / "sessions"
    tokens = {_key(row): row for row in read_rows(sessions / "tokens.jsonl")}
    tokens = {_key(row): row for row in thin(list(tokens.values()), max_bytes // 2, _iteration)}
    episodes = [
        {"set": "train", **_facts(row), **tokens[_key(row)], "messages": row["messages"][-1:]}
        for row in read_rows(sessions / "train.jsonl")
        if _key(row) in tokens
    ]
    evaluated: dict[int, list[Row]] = {}
    for row in read_rows(sessions / "eval.jsonl"):
        evaluated.setdefault(row["iteration"], []).append(row)
        if len(evaluated) > 2:  # neither the first nor the last
            del evaluated[sorted(evaluated)[1]]
    for name, iteration in zip(("before", "after"), sorted(evaluated), strict=False):
        rows = thin(evaluated[iteration], max_bytes // 4, lambda row: int(row["group_id"]))
        episodes += [{"set": name, **_facts(row), "messages": row["messages"]} for row in rows]
    return episodes


def thin(rows: Sequence[Row], max_bytes: int, place: Callable[[Row], int]) -> list[Row]:
    """Returns all rows, or those of every n-th place, so that as JSON they take `max_bytes`."""
    sizes = [len(json.dumps(row)) for row in rows]
    stride = math.ceil(sum(sizes) / max_bytes) or 1
    places = set(sorted({place(row) for row in rows})[::stride])
    chosen = [(row, size) for row, size in zip(rows, sizes, strict=True) if place(row) in places]
    ends = accumulate(size for _, size in chosen)
    return [row for (row, _), end in zip(chosen, ends, strict=True) if end <= max_bytes]


def _key(row: Row) -> tuple[int, ...]:
    return tuple(row[name] for name in _KEY)


def _facts(row: Row) -> Row:
    return {name: row[name] for name in _FACTS}


def _iteration(row: Row) -> int:
    return int(row["iteration"])
