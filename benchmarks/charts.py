"""What do the learning curves of the documentation's pages look like?

    python benchmarks/charts.py

draws them from `benchmarks/results/` into `docs/training/`, on a transparent ground and in colours
that are legible on a light page and on a dark one.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGES = ROOT / "docs/training"
GREY, BLUE, ORANGE = "#808080", "#3f8fd2", "#d9822b"
REAL_MODEL = {0: 24.7, 6: 62.3, 12: 76.7, 18: 78.0}
"""Success of a 0.5B model on one H200 after so many updates: one run, one seed, no control."""

Curves = dict[tuple[int, bool], dict[int, float]]
"""By seed, and whether the rewards were shuffled: success in percent after an iteration."""


def read_rows(name: str) -> list[dict[str, Any]]:
    """Returns the lines of a file of raw results."""
    return [json.loads(line) for line in (RESULTS / name).read_text("utf-8").splitlines()]


def is_control(row: Mapping[str, Any]) -> bool:
    """Returns whether a line is of a run whose rewards were shuffled."""
    return row.get("control", False) or "training.shuffle_rewards=true" in row.get("settings", ())


def read_curves(name: str) -> Curves:
    """Returns the curves of a file with a line for each evaluation."""
    curves: Curves = {}
    for row in read_rows(name):
        if "eval/success_rate" in row:
            curve = curves.setdefault((row.get("seed", 0), is_control(row)), {})
            curve[row["train/step"]] = 100 * row["eval/success_rate"]
    return curves


def read_quickstart() -> Curves:
    """Returns the curves of the quickstart and of its controls."""
    return {
        (row["seed"], row["kind"] == "control"): in_percent(row["curve"])
        for row in read_rows("control-quickstart.jsonl")
        if "curve" in row
    }


def read_addition() -> Curves:
    """Returns the curves of 3-digit addition."""
    result = json.loads((RESULTS / "arithmetic_add.json").read_text("utf-8"))
    return {(int(seed), False): in_percent(curve) for seed, curve in result["curves"].items()}


def in_percent(curve: Mapping[str, float]) -> dict[int, float]:
    """Returns a curve of shares as one of percent."""
    return {int(step): 100 * share for step, share in curve.items()}


def draw(axes: Axes, title: str, curves: Curves) -> None:
    """Draws a run's curves: those of shuffled rewards broken."""
    for (_, shuffled), curve in sorted(curves.items()):
        colour, style = (ORANGE, "--") if shuffled else (BLUE, "-")
        axes.plot(list(curve), list(curve.values()), style, color=colour, marker="o", markersize=3)
    axes.set_title(title, color=GREY, fontsize=10, loc="left")
    axes.set_ylim(0, 103)
    axes.set_xlim(left=0)
    axes.set_xticks(sorted({step for curve in curves.values() for step in curve}))
    axes.tick_params(colors=GREY, labelsize=9)
    axes.grid(color=GREY, alpha=0.25)
    for name, spine in axes.spines.items():
        spine.set_visible(name in {"left", "bottom"})
        spine.set_color(GREY)


def save(name: str, panels: Sequence[tuple[str, Curves]], columns: int, legend: bool) -> None:
    """Writes a picture of one or several runs."""
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.9 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, (title, curves) in zip(grid.flat, panels, strict=False):
        draw(axes, title, curves)
        axes.set_xlabel("iterations", color=GREY, fontsize=9)
    for axes in grid[:, 0]:
        axes.set_ylabel("success, %", color=GREY, fontsize=9)
    spare = list(grid.flat)[len(panels) :]
    for axes in spare:
        axes.set_axis_off()
    if legend:
        place = spare[0] if spare else grid[0, 0]
        place.plot([], [], "-", color=BLUE, label="with rewards")
        place.plot([], [], "--", color=ORANGE, label="rewards shuffled")
        where = "center" if spare else "center right"
        place.legend(loc=where, frameon=False, labelcolor=GREY, fontsize=9)
    metadata = {"Date": None, "Creator": None}
    figure.savefig(PAGES / name, transparent=True, metadata=metadata)


def main() -> None:
    """Draws all pictures."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "agentpeft"})
    mpl.rcParams["font.family"] = "sans-serif"
    save("quickstart.svg", [("quickstart: nine SQL skills, CPU", read_quickstart())], 1, True)
    real: Curves = {(0, False): {step: float(share) for step, share in REAL_MODEL.items()}}
    save("real_model.svg", [("0.5B model, 22 SQL skills, one H200, one run", real)], 1, False)
    panels = [
        ("db_bench: 22 SQL skills", read_curves("db_bench.jsonl")),
        ("os_interaction: ten shell skills", read_curves("os_interaction.jsonl")),
        ("word_problems: GSM8K's format", read_curves("word_problems.jsonl")),
        ("arithmetic_add: 3 digits", read_addition()),
        ("arithmetic_mul_at_once: 2 digits", read_curves("arithmetic_mul_at_once.jsonl")),
    ]
    save("learning.svg", panels, 3, True)


if __name__ == "__main__":
    main()
