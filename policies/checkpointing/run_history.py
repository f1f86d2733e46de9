"""Rewards and success of a run by iteration, as each checkpoint's `training_stats.json` has them.

`metrics.jsonl` has all metrics of the run; this is the little that is read most, in one small file
beside the adapter, so that a checkpoint that was copied elsewhere still says how it came about.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from agentpeft.policies.errors import CheckpointError

STATS_FILE = "training_stats.json"
_TRAINED = {"avg_reward": "train/avg_reward", "success_rate": "train/accuracy"}
_EVALUATED = ("success_rate", "avg_reward", "num_episodes")


class RunHistory:
    """What was earned in each iteration, and at each evaluation (of iteration 0 too)."""

    def __init__(self, content: bytes | None = None) -> None:
        """Goes on from a checkpoint's file; None, or one of before there were histories: anew.

        Raises: CheckpointError.
        """
        try:
            stats: dict[str, Any] = json.loads(content) if content is not None else {}
            self._iterations: list[dict[str, float]] = stats.get("iterations", [])
            self._evaluations: list[dict[str, float]] = stats.get("evaluations", [])
        except (ValueError, AttributeError) as error:
            raise CheckpointError(f"{STATS_FILE} cannot be read ({error})") from None

    def add_iteration(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Takes what an iteration of training has measured; without episodes there is nothing."""
        measured = {name: metrics.get(key, math.nan) for name, key in _TRAINED.items()}
        finite = {name: value for name, value in measured.items() if math.isfinite(value)}
        self._iterations.append({"iteration": iteration, **finite})

    def add_evaluation(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Takes an evaluation after `iteration`; a later one of the same iteration counts."""
        if "success_rate" in metrics:
            measured = {name: metrics[name] for name in _EVALUATED}
            others = [each for each in self._evaluations if each["iteration"] != iteration]
            self._evaluations = [*others, {"iteration": iteration, **measured}]

    def success_rate_at(self, iteration: int) -> float | None:
        """Returns the success rate that was evaluated after an iteration; None of no evaluation."""
        rates = [e["success_rate"] for e in self._evaluations if e["iteration"] == iteration]
        return rates[0] if rates else None

    def to_bytes(self, iteration: int, num_episodes: int) -> bytes:
        """Returns the file: how far the run is, and both lists."""
        stats = {
            "iteration": iteration,
            "num_episodes": num_episodes,
            "iterations": self._iterations,
            "evaluations": self._evaluations,
        }
        return json.dumps(stats, indent=1).encode()
