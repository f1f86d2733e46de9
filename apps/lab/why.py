"""Explains how a run went: what it learnt, what went wrong and when, and which setting to turn.

```sh
agentpeft why outputs/quickstart/20260101-120000
```

Exit status: 0 done; 2 wrong input.
"""

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from typer import Argument

from agentpeft.launch.reporting.alarms import find_periods
from agentpeft.launch.reporting.run_data import Row, RunData, read_run
from agentpeft.launch.run.command_line import CommandLine

_FAULTS = {
    "sample/num_faults": "faults of the environment, each in an episode that was played again",
    "sample/num_dropped_groups": "groups left out, since their episodes kept failing",
    "sample/num_slow_episodes": "episodes over env_runners.episode_timeout_s",
    "sample/num_stale_groups": "groups left out as older than max_adapter_lag",
    "fault/num_env_runner_restarts": "restarts of env runners",
    "fault/num_learner_restarts": "restarts of learners",
    "fault/num_drained_env_runners": "env runners whose machine was being drained",
    "fault/num_joined_env_runners": "env runners that had a place again and joined",
    "fault/num_failed_deliveries": "deliveries of an adapter that had to be repeated",
}
main = CommandLine()


@main.add(help=__doc__)
def why(run: Annotated[Path, Argument(help="A run's folder.")]) -> int:
    """Prints what there is to say, a line each. Raises: DataError, SettingsError."""
    for line in explain(read_run(run)):
        print(line)
    return 0


def explain(run: RunData) -> Iterator[str]:
    """Yields what a run's metrics tell, in lines."""
    updates = [row for row in run.metrics if row.get("train/accuracy") is not None]
    yield f"{run.name}: {len(updates)} updates"
    yield from _tell_success(*run.evaluations(), updates)
    periods = find_periods(run.metrics)
    for period in periods:
        first, last = period.first_step, period.last_step
        when = f"update {first}" if first == last else f"updates {first} to {last}"
        yield f"{when}: {period.alarm.name}: {period.alarm.seen}"
        yield f"    {period.alarm.advice}"
    for name, what in _FAULTS.items():
        if number := _count(run, name):
            yield f"{number} {what}"
    if not periods:
        yield "no alarm was up"


def _count(run: RunData, name: str) -> int:
    """Returns how often something happened; `fault/…` counts from the start of each process."""
    values = run.series(name)[1]
    if name.startswith("sample/"):
        return int(sum(values))
    steps = pairwise([0.0, *values])
    return int(sum(late - early if late >= early else late for early, late in steps))


def _tell_success(before: Row, after: Row, updates: list[Row]) -> Iterator[str]:
    if before.get("eval/success_rate") is None or before is after:
        if updates:
            first, last = (f"{row['train/accuracy']:.1%}" for row in (updates[0], updates[-1]))
            yield f"success of sampled episodes {first} -> {last}"
        if before:
            yield f"success on held-out tasks {_interval(before)}, not played again yet"
        else:
            yield "no held-out tasks were played"
        return
    yield (
        f"success on held-out tasks {_interval(before)} -> {_interval(after)}: "
        + _compare(before, after)
    )
    for name in before:
        if name.startswith("eval/skill/") and after.get(name) is not None:
            skill = name.removeprefix("eval/skill/")
            yield f"    {skill}: {before[name]:.1%} -> {after[name]:.1%}"


def _interval(row: Row) -> str:
    low, high = row.get("eval/success_rate_low"), row.get("eval/success_rate_high")
    bounds = "" if low is None or high is None else f" ({low:.1%} to {high:.1%})"
    return f"{row['eval/success_rate']:.1%}{bounds}"


def _compare(before: Row, after: Row) -> str:
    if after.get("eval/success_rate_low", 0.0) > before.get("eval/success_rate_high", 1.0):
        return "it has learnt"
    if after.get("eval/success_rate_high", 1.0) < before.get("eval/success_rate_low", 0.0):
        return "it has become worse"
    return "within what chance explains (95 % intervals overlap)"


if __name__ == "__main__":
    sys.exit(main())
