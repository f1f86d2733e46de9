"""A proof as one HTML page that needs no network."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill

from matplotlib import style
from matplotlib.figure import Figure as Plot
from matplotlib.ticker import MaxNLocator, PercentFormatter

from agentpeft.apps.lifelong.page import render_page, to_svg
from agentpeft.apps.prove.measures import REWARDS, read_evaluation
from agentpeft.apps.prove.split import (
    TOLERANCE,
    Figures,
    Part,
    RewardProof,
    TaskResult,
    find_part,
)
from agentpeft.envs.system.whole_files import write_file
from agentpeft.launch.reporting.plots import STYLE
from agentpeft.policies.messages import EpisodeRecord

_NUM_EPISODES = 5
_COLOURS = dict(zip((*REWARDS, Part.LOST), ("C0", "C1", "C2", "C3"), strict=True))
_BARS = {"as before": "#9a9a9a", Part.FORM: "C2", Part.ELICITED: "C1", Part.NEW: "C0"}


def write_page(proof: RewardProof, folder: Path) -> Path:
    """Writes `prove.html` into a study's folder, and returns its path. Raises: OSError."""
    groups = dict[str | None, Figures]([(None, proof.figures), *proof.by_skill.items()])
    with style.context(STYLE):
        plots = {"split": _draw_split(groups), "curves": _draw_curves(proof)}
    text = render_page(
        Path(__file__).with_name("page.html"),
        title=f"What the reward taught: {folder.name}",
        proof=proof,
        tolerance=TOLERANCE,
        groups=groups,
        plots={name: to_svg(plot) for name, plot in plots.items()},
        episodes=list(_find_episodes(proof, folder)),
    )
    path = folder / "prove.html"
    write_file(path, text.encode(errors="replace"))
    return path


def choose_new(tasks: Sequence[TaskResult]) -> list[TaskResult]:
    """Returns up to five tasks that the trained policy alone solves, of different skills first."""
    alone = [task for task in tasks if find_part(task) is Part.NEW and not task.shuffled]
    first = {task.skills: task for task in reversed(alone)}.values()
    others = [task for task in alone if task not in first]
    return sorted([*reversed(first), *others][:_NUM_EPISODES], key=lambda task: task.position)


def _find_episodes(proof: RewardProof, folder: Path) -> Iterator[dict[str, object]]:
    """Yields the first seed's episodes of `choose_new`, with what the base does there."""
    first = proof.seeds[0]
    if tasks := choose_new(first.tasks):
        run_dir = folder / f"seed-{first.seed}" / "true"
        before, after = (read_evaluation(run_dir, is_first=is_it) for is_it in (True, False))
        for task in tasks:
            base, trained = before[task.position], after[task.position]
            yield {
                "task_id": task.task_id,
                "skills": ", ".join(task.skills).replace("_", " "),
                "prompt": next(text for role, text in trained.messages if role == "user"),
                "base": _list_actions(base),
                "outcome": base.outcome.value.replace("_", " "),
                "trained": _list_actions(trained),
            }


def _list_actions(record: EpisodeRecord) -> str:
    return "\n".join(text for role, text in record.messages if role == "assistant")


def _draw_split(groups: Mapping[str | None, Figures]) -> Plot:
    """Draws what success after training consists of, and what was lost, of each group of tasks."""
    plot = Plot(figsize=(4.4, 1.1 + 0.3 * len(groups)), layout="constrained")
    axes = plot.subplots()
    places, starts = range(len(groups)), [0.0] * len(groups)
    for name, colour in _BARS.items():
        widths = [
            group.parts[name].mean
            if name in group.parts
            else group.rates["before"] - group.parts[Part.LOST].mean
            for group in groups.values()
        ]
        axes.barh(places, widths, 0.7, left=starts, color=colour, label=name)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    lost = [-group.parts[Part.LOST].mean for group in groups.values()]
    axes.barh(places, lost, 0.7, color=_COLOURS[Part.LOST], label=Part.LOST)
    axes.set_yticks(places, [fill((name or "all").replace("_", " "), 28) for name in groups])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlim(min([*lost, -0.01]) * 1.1, 1.01)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    plot.suptitle("success after training, and what was lost", x=0.01, ha="left")  # wider than axes
    axes.grid(visible=False, axis="y")
    plot.legend(loc="outside lower left", ncols=5, columnspacing=1.0, handlelength=1.0)
    return plot


def _draw_curves(proof: RewardProof) -> Plot:
    """Draws success over the iterations of all runs."""
    plot = Plot(figsize=(4.4, 2.9), layout="constrained")
    axes = plot.subplots()
    for rewards in REWARDS:
        label = "reward for form" if rewards == "form" else f"{rewards} rewards"
        for seed in proof.seeds:
            curve = seed.curves[rewards]
            axes.plot(
                list(curve), list(curve.values()), "o-", ms=3, c=_COLOURS[rewards], label=label
            )
            label = "_"  # one line in the legend for all seeds
    axes.set(xlabel="iteration", ylim=(-0.03, 1.03))
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_title("success on held-out tasks", loc="left")
    plot.legend(loc="outside lower left", ncols=3)
    return plot
