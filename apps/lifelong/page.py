"""The results of a lifelong study as a page, CSV and PNG."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from matplotlib import style
from matplotlib.figure import Figure

from agentpeft.apps.lifelong.course import CourseResult, MethodResult, prompt_of, read_episodes
from agentpeft.apps.lifelong.methods import METHODS
from agentpeft.envs import Outcome
from agentpeft.envs.system.whole_files import write_file
from agentpeft.launch.reporting.plots import STYLE, to_image
from agentpeft.policies.messages import EpisodeRecord

_STYLE = STYLE.with_name("page.css")
_MAX_LOST = 5
"""Episodes that a cell shows."""
_IN_A_ROW = 4


def write_page(results: Sequence[CourseResult], summary: Mapping[str, Any], folder: Path) -> Path:
    """Writes lifelong.html, matrix.csv and matrices.png into a study's folder.

    Returns the page. Matrices are those of the first course, in the CSV of all.
    """
    first = results[0]
    write_file(folder / "matrix.csv", _to_csv(results).encode())
    write_file(folder / "matrices.png", to_image(_draw_matrices(first), "png"))
    scores = list(next(iter(first.methods.values())).scores)
    text = render_page(
        Path(__file__).with_name("page.html"),
        title=f"Lifelong learning: {folder.name}",
        scores=scores,
        methods=summary["methods"],
        comparisons=summary["comparisons"],
        about={name: METHODS[name].about for name in first.methods},
        num_courses=len(results),
        dropped=_tell_dropped(summary["dropped"]),
        course=first,
        lost=_find_lost(first, folder / f"seed-{first.seed}"),
        plot=to_svg(_draw_first_stage(first)),
    )
    path = folder / "lifelong.html"
    write_file(path, text.encode())
    return path


def render_page(template: Path, **values: Any) -> str:
    """Returns a template filled with `values`, and with the style that all pages share."""
    pages = Environment(loader=FileSystemLoader(template.parent), autoescape=True)
    css = Markup(_STYLE.read_text(encoding="utf-8"))  # noqa: S704 (ours)
    return pages.get_template(template.name).render(style=css, **values)


def to_svg(figure: Figure) -> Markup:
    """Returns a figure as an element of a page."""
    svg = to_image(figure, "svg").decode()
    return Markup(svg[svg.index("<svg") :])  # noqa: S704 (matplotlib's)


def _tell_dropped(dropped: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{', '.join(names)} ({seed})" for seed, names in dropped.items())


def _to_csv(results: Sequence[CourseResult]) -> str:
    """Returns a line for each cell of each matrix."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["seed", "order", "method", "after", "stage", "success"])
    for result in results:
        for name, own in result.methods.items():
            for place, row in enumerate(own.matrix):
                after = result.stages[place] if len(own.matrix) > 1 else "all"
                for stage, value in zip(result.stages, row, strict=True):
                    writer.writerow([result.seed, result.order, name, after, stage, f"{value:.4f}"])
    return text.getvalue()


def _find_lost(course: CourseResult, folder: Path) -> dict[str, list[dict[str, str]]]:
    """Returns, by method/row/column, episodes of tasks that were solved when they were learnt."""
    lost = {}
    for name, result in course.methods.items():
        for j, stage in enumerate(course.stages[:-1]):
            for i in range(j + 1, len(result.matrix)):
                episodes = _compare_episodes(result, folder, stage, (i, j))
                if episodes:
                    lost[f"{name}/{i}/{j}"] = episodes[:_MAX_LOST]
    return lost


def _compare_episodes(
    result: MethodResult, folder: Path, stage: str, cell: tuple[int, int]
) -> list[dict[str, str]]:
    i, j = cell
    then, now = result.players[j][j], result.players[i][j]
    if then == now or not (then and now):
        return []
    earlier = read_episodes(folder, then, stage)
    later = read_episodes(folder, now, stage)
    return [
        {
            "task": after.task_id,
            "prompt": prompt_of(after),
            "then": _last_action(before),
            "now": _last_action(after),
            "outcome": after.outcome.value,
        }
        for before, after in ((earlier[task], later[task]) for task in earlier if task in later)
        if before.outcome is Outcome.SUCCESS and after.outcome is not Outcome.SUCCESS
    ]


def _last_action(record: EpisodeRecord) -> str:
    said = [text for role, text in record.messages if role == "assistant"]
    return said[-1] if said else ""


def _draw_matrices(course: CourseResult) -> Figure:
    """Draws a heat map for each method."""
    num_rows = -(-len(course.methods) // _IN_A_ROW)
    with style.context(STYLE):
        figure = Figure(figsize=(3.2 * _IN_A_ROW, 3.0 * num_rows), layout="constrained")
        panels = list(figure.subplots(num_rows, _IN_A_ROW, squeeze=False).flat)
    for axes, (name, result) in zip(panels, course.methods.items(), strict=False):
        axes.imshow(result.matrix, vmin=0, vmax=1, cmap="Greens", aspect="auto")
        axes.grid(visible=False)
        axes.set_title(name, fontsize=9)
        axes.set_xticks(range(len(course.stages)), course.stages, rotation=40, ha="right", size=6)
        rows = course.stages if len(result.matrix) > 1 else ("all",)
        axes.set_yticks(range(len(rows)), rows, size=6)
        for i, row in enumerate(result.matrix):
            for j, value in enumerate(row):
                colour = "white" if value > 0.6 else "black"
                axes.text(j, i, f"{100 * value:.0f}", ha="center", va="center", size=7, c=colour)
    for axes in panels[len(course.methods) :]:
        axes.set_axis_off()
    return figure


def _draw_first_stage(course: CourseResult) -> Figure:
    """Draws the success on the first stage after each stage."""
    with style.context(STYLE):
        figure = Figure(figsize=(6.4, 3.2), layout="constrained")
        axes = figure.subplots()
    for name, result in course.methods.items():
        if len(result.matrix) > 1:
            values = [100 * row[0] for row in result.matrix]
            axes.plot(range(len(values)), values, "o-", markersize=3, linewidth=1.4, label=name)
    axes.set_xticks(range(len(course.stages)), course.stages, size=7)
    axes.set(xlabel="after the stage", ylabel=f"success on {course.stages[0]}, %", ylim=(-3, 103))
    axes.legend(fontsize=7, frameon=False)
    return figure
