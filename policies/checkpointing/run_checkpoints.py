"""A run's own checkpoints: what is in one, which is the newest and which the best.

How a folder is written whole and read verified is in `checkpoints`.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agentpeft.policies.checkpointing.checkpoints import (
    STATE_FILE,
    WANDB_ID_FILE,
    checkpoint_path,
    forget_best,
    name_best,
    prune_checkpoints,
    read_best,
    write_checkpoint,
)
from agentpeft.policies.checkpointing.run_logs import (
    SESSIONS,
    measure_logs,
    seal_logs,
)
from agentpeft.policies.settings.config import Settings

STATS_FILE = "training_stats.json"
SEEN_FILE = "seen_tasks.bin"
_TRAINED = {"avg_reward": "train/avg_reward", "success_rate": "train/accuracy"}
_EVALUATED = ("success_rate", "avg_reward", "num_episodes")


@dataclass
class RunHistory:
    """Rewards and success of each iteration and each evaluation (of iteration 0 too).

    `metrics.jsonl` has all metrics of the run; this is the little that is read most, in one small
    file beside the adapter, so that a checkpoint that was copied elsewhere still has its history.
    """

    iterations: list[dict[str, float]] = field(default_factory=list)
    evaluations: list[dict[str, float]] = field(default_factory=list)

    def add_iteration(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Adds what an iteration of training has measured; without episodes there is nothing."""
        measured = {name: metrics.get(key, math.nan) for name, key in _TRAINED.items()}
        finite = {name: value for name, value in measured.items() if math.isfinite(value)}
        self.iterations.append({"iteration": iteration, **finite})

    def add_evaluation(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Adds an evaluation after `iteration`, in place of an earlier one of that iteration."""
        if "success_rate" in metrics:
            measured = {name: metrics[name] for name in _EVALUATED}
            others = [e for e in self.evaluations if e["iteration"] != iteration]
            self.evaluations = [*others, {"iteration": iteration, **measured}]

    def success_rate_at(self, iteration: int) -> float | None:
        """Returns the success rate evaluated after an iteration; None if it was not evaluated."""
        rates = [e["success_rate"] for e in self.evaluations if e["iteration"] == iteration]
        return rates[0] if rates else None

    def to_bytes(self, iteration: int, num_episodes: int) -> bytes:
        """Returns the content of the file."""
        totals = {"iteration": iteration, "num_episodes": num_episodes}
        stats = {**totals, "iterations": self.iterations, "evaluations": self.evaluations}
        return json.dumps(stats, indent=1).encode()


class RunCheckpoints:
    """The checkpoints in a run's folder, and what is saved beside the learner's state.

    `seen`: hashes of the contents of the tasks that training has learnt from. `history`: rewards
    and success so far. `newest`: the checkpoint that was saved or restored last, None before;
    `saved_iteration`: of the run's own one.
    """

    def __init__(self, run_dir: Path, settings: Settings) -> None:
        """Makes the run's folder. It is never made again: a run whose folder is deleted fails."""
        self.run_dir, self.settings = run_dir, settings
        self.folder = run_dir / "checkpoints"
        self.folder.mkdir(parents=True, exist_ok=True)
        if settings.output.episodes:
            (run_dir / SESSIONS).mkdir(exist_ok=True)
        self.seen: set[int] = set()
        self.history = RunHistory()
        self.newest: Path | None = None
        self.saved_iteration: int | None = None
        self.first_logs: dict[str, int] = {}

    def is_best(self, iteration: int) -> bool:
        """Whether the policy was evaluated after `iteration`, and beats the best checkpoint."""
        rate, best = self.history.success_rate_at(iteration), read_best(self.folder)
        return rate is not None and (best is None or rate > best.success_rate)

    def mark_beginning(self) -> None:
        """Remembers how long the logs are: `go_back_to_beginning` cuts them to that."""
        self.first_logs = measure_logs(self.run_dir)

    def save(
        self, path: str | Path | None, state: Mapping[str, Any], learner_files: Mapping[str, bytes]
    ) -> Path:
        """Writes a checkpoint, whole or not at all, and returns its path.

        `path` None: the run's own folder, which keeps the newest and the best. `state` is a JSON
        object with `iteration` and `num_episodes`. Raises: CheckpointError.
        """
        iteration = state["iteration"]
        target = checkpoint_path(self.folder, iteration) if path is None else Path(path)
        if path is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
        settings = self.settings.model_dump(mode="json")
        state = {**state, "settings": settings, **seal_logs(self.run_dir)}
        files = {
            **learner_files,
            SEEN_FILE: np.sort(np.fromiter(self.seen, "<u8", len(self.seen))).tobytes(),
            STATE_FILE: json.dumps(state, indent=1).encode(),
            STATS_FILE: self.history.to_bytes(iteration, state["num_episodes"]),
        }
        wandb_id = self.run_dir / "logs" / WANDB_ID_FILE
        if wandb_id.is_file():
            files[WANDB_ID_FILE] = wandb_id.read_bytes()
        if path is None and self.saved_iteration != iteration:
            best = read_best(self.folder)
            if best is not None and best.checkpoint == target.name:  # another policy's
                forget_best(self.folder)
        write_checkpoint(target, files)
        if path is None:
            self.newest, self.saved_iteration = target, iteration
            self.name_best(iteration)
            prune_checkpoints(self.folder, self.settings.output.num_checkpoints_kept)
        return target

    def name_best(self, iteration: int) -> None:
        """Names the checkpoint of an iteration the best, once it is saved and evaluated so."""
        rate = self.history.success_rate_at(iteration)
        checkpoint = checkpoint_path(self.folder, iteration)
        is_there = self.saved_iteration == iteration and checkpoint.is_dir()
        if rate is not None and is_there and self.is_best(iteration):
            name_best(checkpoint, rate)
            prune_checkpoints(self.folder, self.settings.output.num_checkpoints_kept)
