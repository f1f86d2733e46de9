"""A run's curves, and its success by skill, as matplotlib figures."""

import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from agentpeft.launch.reporting.run_data import RunData

CURVES = {
    "success": ("train/accuracy", "success rate"),
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
_TRAINED, _SUCCESS, _SKILL = "train/accuracy", "eval/success_rate", "eval/skill/"
_EXACT = ("train/lr", _SKILL)
"""What a metric begins with that is drawn as it is: a schedule, and evaluations."""
_MAX_POINTS = 1000
_MIN_EVALUATIONS = 3
"""From so many on, a skill has a curve: bars tell the first and the last."""
STYLE = Path(__file__).parent / "report_page" / "plots.mplstyle"
_INK = b"#222222"
"""The colour of text and axes in `STYLE`."""


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


def find_constants(runs: Sequence[RunData]) -> dict[str, float]:
    """Returns what each curve that is not drawn shows, and its value, which never changes."""
    values = {title: _values(runs, metric) for metric, title in CURVES.values()}
    return {title: same.pop() for title, same in values.items() if len(same) == 1}


def make_plots(runs: Sequence[RunData], smoothing: float) -> dict[str, Figure]:
    """Returns figures, by name, of all that the runs have measured and that changes.

    Equal curves, such as success and a return of 0 or 1, are one figure with both titles.
    """
    with style.context(STYLE):
        return dict(_plot_all(runs, smoothing))


def _plot_all(runs: Sequence[RunData], smoothing: float) -> Iterator[tuple[str, Figure]]:
    drawn: dict[str, tuple[str, str, list[str]]] = {}
    for name, (metric, title) in CURVES.items():
        if len(_values(runs, metric)) > 1:
            points = str([run.series(metric) for run in runs])
            drawn.setdefault(points, (name, metric, []))[2].append(title)
    for name, metric, titles in drawn.values():
        yield name, _plot_curve(runs, metric, " = ".join(titles), smoothing)
    rows = [row for run in runs for row in run.evaluations()]
    skills = sorted({name for row in rows for name in row if name.startswith(_SKILL)})
    if skills:
        yield "skills", _plot_skills(runs, skills)
    long = [s for s in skills if any(len(run.series(s)[0]) >= _MIN_EVALUATIONS for run in runs)]
    for number, skill in enumerate(long):
        yield f"skill_{number}", _plot_curve(runs, skill, _name_skill(skill), smoothing)


def to_image(figure: Figure, kind: str) -> bytes:
    """Returns a figure as "png", or as "svg" on the page's ground, in the colour of its text.

    Equal figures give equal bytes.
    """
    buffer, is_svg = io.BytesIO(), kind == "svg"
    metadata = {"Date": None} if is_svg else None
    with style.context(STYLE):
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata, transparent=is_svg)
    return buffer.getvalue().replace(_INK, b"currentColor" if is_svg else _INK)


def _values(runs: Sequence[RunData], metric: str) -> set[float]:
    """Returns all values of a curve. That of success is never flat: it has a scale from 0 to 1."""
    values = {value for run in runs for value in run.series(metric)[1]}
    return values | {0.0, 1.0} if values and metric == _TRAINED else values


def _make_figure(title: str, height_inches: float = 2.6) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.4, height_inches), layout="constrained")
    axes = figure.subplots()
    axes.set_title(fill(title, 60), loc="left")
    return figure, axes


def _plot_curve(runs: Sequence[RunData], metric: str, title: str, smoothing: float) -> Figure:
    """Draws a metric, measured (pale) and smoothed, with success also that of evaluations."""
    figure, axes = _make_figure(title)
    is_exact, is_success = metric.startswith(_EXACT), metric == _TRAINED
    for index, run in enumerate(runs):
        steps, values = run.series(metric)
        smoothed = smooth(values, 0.0 if is_exact else smoothing)
        colour, label = f"C{index}", run.name if len(runs) > 1 else "training episodes"
        every = slice(None, None, math.ceil(len(steps) / _MAX_POINTS) or 1)
        axes.plot(steps[every], values[every], color=colour, alpha=0.45, linewidth=1)
        axes.plot(steps[every], smoothed[every], color=colour, linewidth=1.8, label=label)
        if is_success:
            _draw_evaluations(axes, run, colour, "evaluations" if run is runs[-1] else "")
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlabel("iteration")
    if is_success or metric.startswith(_SKILL):
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if is_success or len(runs) > 1:
        axes.legend()
    return figure


def _draw_evaluations(axes: Axes, run: RunData, colour: str, label: str) -> None:
    """Draws the success of evaluations with its 95 % interval."""
    steps, rates = run.series(_SUCCESS)
    low, high = (run.series(f"{_SUCCESS}_{end}")[1] for end in ("low", "high"))
    if len(low) == len(high) == len(rates):
        axes.vlines(steps, low, high, colors=colour, linewidth=1)
    axes.plot(steps, rates, "o", color=colour, markersize=4, label=label)


def _plot_skills(runs: Sequence[RunData], skills: Sequence[str]) -> Figure:
    """Draws success by skill as bars: of each run a pale one before, and a full one after."""
    bars = [
        (row, f"C{index}", alpha, f"{run.name}, {when}" if len(runs) > 1 else when)
        for index, run in enumerate(runs)
        for row, alpha, when in zip(run.evaluations(), (0.5, 1.0), ("before", "after"), strict=True)
        if when == "after" or row is not run.evaluations()[1]
    ]
    height = 0.8 / len(bars)
    inches = 0.7 + 0.16 * len(bars) + max(0.32, 0.2 * len(bars)) * len(skills)
    figure, axes = _make_figure("success by skill, %", inches)
    for number, (row, colour, alpha, label) in enumerate(bars):
        places = [place + height * (number + 0.5) - 0.4 for place in range(len(skills))]
        rates = [100 * row.get(skill, math.nan) for skill in skills]
        drawn = axes.barh(places, rates, height, color=colour, alpha=alpha, label=label)
        axes.bar_label(drawn, fmt="%.0f", padding=2, fontsize=7)
    axes.set_yticks(range(len(skills)), [fill(_name_skill(skill), 24) for skill in skills])
    axes.set(xlim=(0, 109), ylim=(len(skills) - 0.5, -0.5))
    if len(bars) > 1:
        figure.legend(loc="outside lower left", ncols=2 if len(runs) == 1 else 1)
    return figure


def _name_skill(metric: str) -> str:
    return metric.removeprefix(_SKILL).replace("_", " ")
