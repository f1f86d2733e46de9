"""A run's curves, success by skill and seconds, as matplotlib figures."""

import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agentpeft.launch.reporting.run_data import RunData

CURVES = {
    "success": ("train/accuracy", "share of episodes that succeed"),
    "reward": ("train/avg_reward", "mean return of an episode"),
    "loss": ("train/policy_loss", "policy loss"),
    "kl": ("train/kl", "KL to the reference, nats a token"),
    "entropy": ("train/entropy", "entropy, nats a token"),
    "gradient": ("train/grad_norm", "norm of the gradient"),
    "clipped": ("train/clip_fraction", "share of tokens that are clipped"),
    "mismatch": ("train/mismatch_mean", "|log-probability: learner - engine|"),
    "learning_rate": ("train/lr", "learning rate"),
    "tokens": ("train/num_tokens", "sampled tokens of an iteration"),
    "seconds": ("time/total_s", "seconds of an iteration"),
}
PARTS = ("sample", "learn", "broadcast", "orchestration")
_MAX_POINTS = 1000
_PANELS_IN_A_ROW = 3
_SUCCESS = "eval/success_rate"
STYLE = Path(__file__).parent / "report_page" / "plots.mplstyle"


def smooth(values: Sequence[float], weight: float) -> list[float]:
    """Returns running means in which the past counts `weight` times as much at each step.

    The start is not drawn to zero: `smooth([1, 2], 0.5)` is `[1, (0.5 * 1 + 2) / 1.5]`.
    """
    total = norm = 0.0
    smoothed = []
    for value in values:
        total, norm = weight * total + value, weight * norm + 1
        smoothed.append(total / norm)
    return smoothed


def make_plots(runs: Sequence[RunData], smoothing: float) -> Iterator[tuple[str, Figure]]:
    """Yields (name, figure) of all that the runs have measured."""
    for name, (metric, label) in CURVES.items():
        dots = _SUCCESS if name == "success" else ""
        if any(run.series(metric)[1] or run.series(dots)[1] for run in runs):
            yield name, _plot_curves(runs, metric, dots, label, smoothing)
    rows = [row for run in runs for row in run.evaluations()]
    skills = sorted({name for row in rows for name in row if "eval/skill/" in name})
    if skills:
        yield "skills", _plot_skills(runs, skills)
        yield "skill_curves", _plot_skill_curves(runs, skills)
    yield "timing", _plot_timing(runs)


def to_image(figure: Figure, kind: str) -> bytes:
    """Returns a figure as "svg" or "png"; equal figures give equal bytes."""
    buffer = io.BytesIO()
    with style.context(STYLE):
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    return buffer.getvalue()


def _make_figure(x_label: str, y_label: str, height_inches: float = 2.6) -> tuple[Figure, Axes]:
    with style.context(STYLE):
        figure = Figure(figsize=(4.4, height_inches), layout="constrained")
        axes = figure.subplots()
    axes.set(xlabel=x_label, ylabel=y_label)
    return figure, axes


def _plot_curves(
    runs: Sequence[RunData], metric: str, dots: str, label: str, smoothing: float
) -> Figure:
    """Draws a metric, measured and smoothed; `dots` is one of evaluations, "" for none."""
    figure, axes = _make_figure("iteration", label)
    for index, run in enumerate(runs):
        steps, values = run.series(metric)
        smoothed, colour = smooth(values, smoothing), f"C{index}"
        every = slice(None, None, math.ceil(len(steps) / _MAX_POINTS) or 1)
        axes.plot(steps[every], values[every], color=colour, alpha=0.25, linewidth=1)
        axes.plot(steps[every], smoothed[every], color=colour, linewidth=1.8, label=run.name)
        if dots:
            _draw_evaluations(axes, run, colour)
    _add_legend(axes, len(runs) > 1 or dots != "")
    return figure


def _draw_evaluations(axes: Axes, run: RunData, colour: str) -> None:
    """Draws held-out success with its 95 % interval."""
    steps, rates = run.series(_SUCCESS)
    low, high = (run.series(f"{_SUCCESS}_{end}")[1] for end in ("low", "high"))
    if len(low) == len(high) == len(rates):
        axes.vlines(steps, low, high, colors=colour, linewidth=1)
    axes.plot(steps, rates, "o", color=colour, markersize=4, label=f"{run.name}, held-out")


def _plot_skills(runs: Sequence[RunData], skills: Sequence[str]) -> Figure:
    """Draws held-out success by skill: an open mark before, a full one after."""
    ends = [run.evaluations() for run in runs]
    height = 1.2 + 0.22 * len(skills) * len(runs)
    figure, axes = _make_figure("held-out success before (open) and after (full)", "", height)
    for index, (run, (before, after)) in enumerate(zip(runs, ends, strict=True)):
        places = [place + 0.7 * (index + 0.5) / len(runs) - 0.35 for place in range(len(skills))]
        starts, finals = ([row.get(s, math.nan) for s in skills] for row in (before, after))
        axes.hlines(places, starts, finals, colors=f"C{index}", alpha=0.5)
        axes.plot(starts, places, "o", color=f"C{index}", fillstyle="none")
        axes.plot(finals, places, "o", color=f"C{index}", label=run.name)
    axes.set_yticks(range(len(skills)), [name.removeprefix("eval/skill/") for name in skills])
    axes.set_xlim(-0.03, 1.03)
    axes.invert_yaxis()
    _add_legend(axes, len(runs) > 1)
    return figure


def _plot_skill_curves(runs: Sequence[RunData], skills: Sequence[str]) -> Figure:
    """Draws held-out success over the iterations, a panel for each skill."""
    num_rows = math.ceil(len(skills) / _PANELS_IN_A_ROW)
    with style.context(STYLE):
        figure = Figure(figsize=(4.4, 0.5 + 1.2 * num_rows), layout="constrained")
        panels = figure.subplots(
            num_rows, _PANELS_IN_A_ROW, sharex=True, sharey=True, squeeze=False
        ).flat
    for skill, axes in zip(skills, panels, strict=False):
        for run in runs:
            axes.plot(*run.series(skill), "o-", markersize=2.5, linewidth=1.2, label=run.name)
        name = skill.removeprefix("eval/skill/").replace("_", " ")
        axes.set_title(fill(name, 22), fontsize=6)
        axes.tick_params(labelsize=6)
        axes.set_ylim(-0.03, 1.03)
    for axes in panels[len(skills) :]:
        axes.set_axis_off()
    figure.supxlabel("iteration", fontsize=8)
    figure.supylabel("held-out success", fontsize=8)
    if len(runs) > 1:
        names = [run.name for run in runs]
        figure.legend(panels[0].lines, names, fontsize=7, loc="outside upper right", frameon=False)
    return figure


def _plot_timing(runs: Sequence[RunData]) -> Figure:
    figure, axes = _make_figure("seconds, all iterations", "", 1.2 + 0.35 * len(runs))
    start_s = [0.0] * len(runs)
    for part in PARTS:
        seconds = [run.total(f"time/{part}_s") for run in runs]
        axes.barh(range(len(runs)), seconds, left=start_s, label=part)
        start_s = [a + b for a, b in zip(start_s, seconds, strict=True)]
    axes.set_yticks(range(len(runs)), [run.name for run in runs])
    axes.invert_yaxis()
    figure.legend(fontsize=7, ncols=len(PARTS), loc="outside upper right", frameon=False)
    return figure


def _add_legend(axes: Axes, is_wanted: bool) -> None:
    if is_wanted:
        axes.legend(fontsize=7, frameon=False)
