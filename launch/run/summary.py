"""How long a run still takes, what a success has cost it, and its last line."""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentpeft.launch.reporting.run_data import RunData
from agentpeft.launch.run.ending import say_time
from agentpeft.launch.run.run_folder import as_word, shown
from agentpeft.policies.checkpointing.checkpoints import checkpoint_path, read_best

PARTS = ("sample", "learn", "broadcast")
_WINDOW = 10
LEFT = "time/left_s"
"""The metric of the seconds that a run still takes."""


class Pace:
    """Expects of the iterations to come what the last ten took, evaluations and saving included."""

    def __init__(self, num_iterations: int) -> None:
        """The first iteration begins now."""
        self._num_iterations = num_iterations
        self._ends_s = deque([time.monotonic()], _WINDOW + 1)

    def end_iteration(self, iteration: int) -> dict[str, float]:
        """Returns the seconds left after an iteration."""
        self._ends_s.append(time.monotonic())
        mean_s = (self._ends_s[-1] - self._ends_s[0]) / (len(self._ends_s) - 1)
        return {LEFT: mean_s * max(self._num_iterations - iteration, 0)}


def compute_cost(lines: Iterable[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Returns the seconds of training and the sampled tokens for each episode that succeeded.

    Over all lines of `metrics.jsonl`, evaluations left out; None where nothing has succeeded, as
    with algorithm `sft`, which plays no episodes.
    """
    lines = list(lines)
    successes = _sum_of(lines, "sample/outcome/success")
    if not successes:
        return {"seconds": None, "tokens": None}
    seconds, tokens = (
        _sum_of(lines, name) / successes for name in ("time/total_s", "sample/num_sampled_tokens")
    )
    return {"seconds": round(seconds, 4), "tokens": round(tokens, 1)}


def _sum_of(lines: Iterable[Mapping[str, float | None]], name: str) -> float:
    return sum(line.get(name) or 0.0 for line in lines)


def summarize(
    run_dir: Path,
    lines: Sequence[Mapping[str, float | None]],
    iteration: int,
    before: Mapping[str, float],
    after: Mapping[str, float],
    total_s: float,
) -> dict[str, Any]:
    """Returns the summary of a run that has saved the checkpoint of its last `iteration`.

    `lines` are those of `metrics.jsonl`, `before` and `after` evaluations' metrics; `total_s` is
    the run's time, resumed parts too.
    """
    seconds = {part: sum(line.get(f"time/{part}_s") or 0.0 for line in lines) for part in PARTS}
    seconds["total"] = total_s
    folder = run_dir / "checkpoints"
    return {
        "before": _evaluated(before),
        "after": _evaluated(after),
        "adapter": shown(checkpoint_path(folder, iteration) / "adapter"),
        "best": _describe_best(folder),
        "seconds": {part: round(value, 3) for part, value in seconds.items()},
        "per_success": compute_cost(lines),
    }


def describe_end(run: RunData, summary: Mapping[str, Any]) -> list[str]:
    """Returns what a person is told at the end of a run: what it did, and what can be done next."""
    before, after = (summary[side]["success_rate"] for side in ("before", "after"))
    is_measured = before is not None and after is not None
    rates = f"success {before:.0%} -> {after:.0%} on {run.evaluated_tasks}, " if is_measured else ""
    time_spent, folder = say_time(summary["seconds"]["total"]), as_word(run.path)
    return [
        f"{rates}{run.metrics[-1]['train/step']} iterations, {time_spent}",
        f"adapter: {summary['adapter']}",
        f"next: agentpeft why {folder}",
        f"      agentpeft report {folder}",
        f"      agentpeft play {folder} --model {folder}",
    ]


def _evaluated(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Returns the overall figures of an evaluation; a success rate of None was not measured."""
    evaluated = {n.removeprefix("eval/"): v for n, v in metrics.items() if n.startswith("eval/")}
    return {"success_rate": None, **{n: v for n, v in evaluated.items() if "/" not in n}}


def _describe_best(folder: Path) -> dict[str, Any] | None:
    best = read_best(folder)
    if best is None:
        return None
    adapter = shown(folder / best.checkpoint / "adapter")
    return {"adapter": adapter, "success_rate": best.success_rate}
