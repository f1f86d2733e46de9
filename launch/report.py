"""Writes a run, or several side by side, as one HTML page that needs no network.

```sh
agentpeft report outputs/quickstart/20260101-120000
agentpeft report RUN_A RUN_B --output comparison.html --png plots
```

Off a terminal, or with --json, the last line is JSON: the page, its size in bytes, the plots.

Exit status: 0 done; 1 nothing could be written; 2 wrong input.
"""

import agentpeft.launch  # noqa: F401 (takes this folder off the path, before all others)

# isort: split
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from typer import Argument, Option

from agentpeft.envs import SettingsError
from agentpeft.envs.system.whole_files import write_file
from agentpeft.launch.reporting.alarms import AlarmPeriod, find_periods
from agentpeft.launch.reporting.plots import find_constants, make_plots, to_image
from agentpeft.launch.reporting.report_episodes import read_episodes
from agentpeft.launch.reporting.run_data import Row, RunData, read_run
from agentpeft.launch.run.command_line import CommandLine
from agentpeft.launch.run.ending import AsJson, finish
from agentpeft.policies.settings.config import Settings

_PAGE = Path(__file__).parent / "reporting" / "report_page"
_MAX_EPISODE_BYTES = 3_000_000


main = CommandLine()


@main.add(help=__doc__)
def report(
    runs: Annotated[list[Path], Argument(help="Folders of runs.")],
    *,
    output: Annotated[
        Path | None, Option(show_default="RUN/report.html; of several, comparison.html")
    ] = None,
    png: Annotated[Path | None, Option(help="Write the plots as PNG into this folder.")] = None,
    smoothing: Annotated[float, Option(help="Of the curves, in [0, 1); 0 is none.")] = 0.8,
    as_json: AsJson = False,
) -> int:
    """Writes the page, and prints where. Raises: DataError, SettingsError, OSError."""
    written = write_report(runs, output, png, smoothing)
    finish(written, f"report: {written['report']} (open it in a browser)", as_json=as_json)
    return 0


def write_report(
    runs: Sequence[Path],
    output: Path | None = None,
    png: Path | None = None,
    smoothing: float = 0.8,
) -> Row:
    """Writes the page and the plots; returns their paths, and the page's size in bytes.

    Raises: DataError, SettingsError, OSError.
    """
    if not 0 <= smoothing < 1:
        raise SettingsError(f"--smoothing must be in [0, 1), got {smoothing}")
    data = [_name_control(read_run(path)) for path in runs]
    figures = make_plots(data, smoothing)
    output = output or (runs[0] / "report.html" if len(runs) == 1 else Path("comparison.html"))
    images = {name: to_image(figure, "svg").decode() for name, figure in figures.items()}
    write_file(output, render(data, smoothing, images).encode())
    plots = [png / f"{name}.png" for name in figures] if png else []
    for path, figure in zip(plots, figures.values(), strict=False):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, to_image(figure, "png"))
    return {
        "report": str(output),
        "bytes": output.stat().st_size,
        "plots": [*map(str, plots)],
    }


def _name_control(run: RunData) -> RunData:
    """Returns a run, named as what it is if its rewards were shuffled."""
    is_control = run.settings.get("training.shuffle_rewards") == "true"
    return replace(run, name=f"{run.name} (control)") if is_control else run


def render(runs: Sequence[RunData], smoothing: float, images: Mapping[str, str]) -> str:
    """Returns the page. Raises: DataError on sessions that cannot be read."""
    episodes = [
        {"run": index, **episode}
        for index, run in enumerate(runs)
        for episode in read_episodes(run.path, _MAX_EPISODE_BYTES // len(runs))
    ]
    page = Environment(loader=FileSystemLoader(_PAGE), autoescape=True).get_template("page.html")
    return page.render(
        runs=runs,
        alarms=[_find_alarms(run) for run in runs],
        read_setting=json.loads,
        settings=_compare_settings(runs),
        smoothing=smoothing,
        constants=find_constants(runs),
        plots={name: Markup(svg[svg.index("<svg") :]) for name, svg in images.items()},  # noqa: S704
        episodes=episodes,
        style=Markup((_PAGE / "page.css").read_text(encoding="utf-8")),  # noqa: S704
        script=Markup((_PAGE / "page.js").read_text(encoding="utf-8")),  # noqa: S704
    )


def _find_alarms(run: RunData) -> list[AlarmPeriod]:
    """Returns when alarms were up; a run that has counted none is not searched for them."""
    has_alarms = any(name.startswith("alarm/") for row in run.metrics for name in row)
    return find_periods(run.metrics) if has_alarms else []


def _compare_settings(runs: Sequence[RunData]) -> list[tuple[str, list[str], str]]:
    """Returns (name, each run's value, the default), those first in which the runs differ."""
    defaults = Settings().model_dump(mode="json")
    rows = []
    for name in dict.fromkeys(name for run in runs for name in run.settings):
        section, _, key = name.rpartition(".")
        default = (defaults.get(section, {}) if section else defaults).get(key)
        rows.append((name, [run.settings.get(name, "null") for run in runs], json.dumps(default)))
    return sorted(rows, key=lambda row: len({*row[1]}) == 1)


if __name__ == "__main__":
    sys.exit(main())
