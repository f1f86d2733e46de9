"""The last line of a run: success before and after, where the adapter is, and what it took."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentpeft.launch.run.metric_writers import read_metrics
from agentpeft.launch.run.pace import compute_cost
from agentpeft.launch.run.run_folder import shown
from agentpeft.policies.checkpointing.checkpoints import checkpoint_path, read_best

PARTS = ("sample", "learn", "broadcast")


def summarize(
    run_dir: Path,
    iteration: int,
    before: Mapping[str, float],
    after: Mapping[str, float],
    total_s: float,
) -> dict[str, Any]:
    """Returns the summary of a run that has saved the checkpoint of its last `iteration`.

    `before` and `after` are evaluations' metrics; `total_s` is the run's time, resumed parts too.
    """
    lines = read_metrics(run_dir)
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


def _evaluated(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Returns the overall figures of an evaluation; a success rate of None was not measured."""
    found = {n.removeprefix("eval/"): v for n, v in metrics.items() if n.startswith("eval/")}
    return {"success_rate": None, **{n: v for n, v in found.items() if "/" not in n}}


def _describe_best(folder: Path) -> dict[str, Any] | None:
    best = read_best(folder)
    if best is None:
        return None
    adapter = shown(folder / best.checkpoint / "adapter")
    return {"adapter": adapter, "success_rate": best.success_rate}
