"""Compares two runs: settings that differ, curves side by side, and where two equal runs part.

```sh
agentpeft diff RUN_A RUN_B
```

Two runs of the same settings with `deterministic = true` have the same metrics and episodes, but
for times and faults: the first iteration at which they do not is named, with the metrics and the
episode that differ. Other runs part early, by chance alone. Off a terminal, or with
--json, the last line is JSON.

Exit status: 0 done; 2 wrong input.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Annotated

from typer import Argument

from agentpeft.apps.lab.sparklines import sparkline
from agentpeft.launch.reporting.run_data import Row, RunData, read_run, read_sessions
from agentpeft.launch.run.command_line import CommandLine
from agentpeft.launch.run.ending import AsJson, finish
from agentpeft.launch.run.run_folder import as_word

CURVES = {
    "success": "eval/success_rate",
    "training success": "train/accuracy",
    "reward": "train/avg_reward",
    "loss": "train/policy_loss",
    "entropy": "train/entropy",
    "KL": "train/kl",
    "gradient": "train/grad_norm",
    "tokens": "train/num_tokens",
    "seconds": "time/total_s",
}
_WIDTH = 30
_MAX_SHOWN = 6
_MAX_CHARS = 60
_NOT_COMPARED = ("time/", "fault/")
main = CommandLine()


@dataclass(frozen=True)
class Parting:
    """The first iteration at which two runs differ, and the metrics that do."""

    iteration: int
    metrics: tuple[str, ...]


@main.add(help=__doc__)
def diff(
    first: Annotated[Path, Argument(help="A run's folder.")],
    second: Annotated[Path, Argument(help="Another's.")],
    *,
    as_json: AsJson = False,
) -> int:
    """Prints what differs, and a summary. Raises: DataError, SettingsError."""
    runs = [read_run(first), read_run(second)]
    settings = compare_settings(runs)
    parting = find_parting(runs[0].metrics, runs[1].metrics)
    for line in _describe(runs, settings, parting):
        print(line)
    summary = {"settings": sorted(settings), "parting": parting and asdict(parting)}
    page = f"next: agentpeft report {as_word(first)} {as_word(second)}  # both on one page"
    finish(summary, page, as_json=as_json)
    return 0


def compare_settings(runs: Sequence[RunData]) -> dict[str, list[str]]:
    """Returns the values of the settings that differ, by name; "-" where a run has none."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    values = {name: [run.settings.get(name, "-") for run in runs] for name in names}
    return {name: each for name, each in values.items() if len(set(each)) > 1}


def find_parting(one: Sequence[Row], other: Sequence[Row]) -> Parting | None:
    """Returns where the metrics that both runs have differ first; None where they nowhere do.

    0 is the evaluation before training. Times and counts of faults are not compared.
    """
    first, second = _by_step(one), _by_step(other)
    for step in sorted(first.keys() & second.keys()):
        ours, theirs = first[step], second[step]
        names = tuple(
            name
            for name in sorted(ours.keys() & theirs.keys())
            if ours[name] != theirs[name] and not name.startswith(_NOT_COMPARED)
        )
        if names:
            return Parting(step, names)
    return None


def _by_step(lines: Sequence[Row]) -> dict[int, Row]:
    """Returns one row for each step; that of the last has its update and its evaluation."""
    rows: dict[int, Row] = {}
    for line in lines:
        rows.setdefault(int(line["train/step"]), {}).update(line)
    return rows


def _describe(
    runs: Sequence[RunData], settings: Mapping[str, Sequence[str]], parting: Parting | None
) -> Iterator[str]:
    yield f"A  {runs[0].name}"
    yield f"B  {runs[1].name}"
    yield ""
    yield "settings that differ" if settings else "all settings are the same"
    for name, values in settings.items():
        yield f"  {name}: {_cut(values[0])}  |  {_cut(values[1])}"
    yield ""
    yield from _draw(runs)
    yield ""
    yield from _tell_parting(runs, parting)


def _draw(runs: Sequence[RunData]) -> Iterator[str]:
    """Yields two lines for each metric, on one scale, with the first value and the last."""
    for label, metric in CURVES.items():
        series = [run.series(metric)[1] for run in runs]
        if not all(series):
            continue
        bounds = min(map(min, series)), max(map(max, series))
        for name, values in zip("AB", series, strict=True):
            title = label if name == "A" else ""
            line = sparkline(values, _WIDTH, bounds)
            yield f"{title:<17} {name} {line:<{_WIDTH}} {values[0]:.4g} -> {values[-1]:.4g}"


def _tell_parting(runs: Sequence[RunData], parting: Parting | None) -> Iterator[str]:
    last = min(int(run.metrics[-1]["train/step"]) for run in runs)
    if parting is None:
        yield f"the metrics are equal up to iteration {last}, the last that both have"
    else:
        more = len(parting.metrics) - _MAX_SHOWN
        names = ", ".join(parting.metrics[:_MAX_SHOWN]) + (f" and {more} more" * (more > 0))
        yield f"the runs part at iteration {parting.iteration}: {names}"
    yield from _tell_episode(*(read_sessions(run.path, "train") for run in runs))
    if parting and any(run.settings.get("deterministic") != "true" for run in runs):
        yield "not both are deterministic: batches form as requests come, and rounding may differ"


def _tell_episode(one: Iterable[Row], other: Iterable[Row]) -> Iterator[str]:
    """Yields where the episodes of training differ first, with what was said there.

    A run may have deleted its oldest ones: what both still have is compared.
    """
    for ours, theirs in zip_longest(*_from_same_iteration(iter(one), iter(other))):
        if ours is None or theirs is None:
            return
        if ours != theirs:
            place = "iteration {}, group {}, sample {}".format(
                ours["iteration"] + 1, ours["group_id"], ours["sample"]
            )
            yield f"the first episode that differs: {place}"
            pairs = zip(ours["messages"], theirs["messages"], strict=False)
            for index, (said, other_said) in enumerate(pairs):
                if said != other_said:
                    yield f"  message {index + 1}, A: {said[0]}: {_cut(repr(said[1]))}"
                    yield f"  message {index + 1}, B: {other_said[0]}: {_cut(repr(other_said[1]))}"
                    return
            return


def _from_same_iteration(*runs: Iterator[Row]) -> list[Iterator[Row]]:
    """Returns the episodes from the first iteration on that all have; an iteration is whole."""
    firsts = [next(rows, None) for rows in runs]
    start = max((row["iteration"] for row in firsts if row is not None), default=0)
    return [
        (row for row in chain([first] if first else [], rows) if row["iteration"] >= start)
        for first, rows in zip(firsts, runs, strict=True)
    ]


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…"
