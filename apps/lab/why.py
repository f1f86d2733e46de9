"""Explains how a run went: what it learnt, what went wrong, what still fails, and what to do next.

```sh
agentpeft why outputs/quickstart/20260101-120000
```

Exit status: 0 done; 2 wrong input.
"""

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Annotated

from typer import Argument

from agentpeft.apps.lab.run_view import find_question
from agentpeft.envs import Outcome
from agentpeft.launch.reporting.alarms import SOLVED, WINDOW, find_periods
from agentpeft.launch.reporting.run_data import Row, RunData, read_run, read_sessions
from agentpeft.launch.run.command_line import CommandLine
from agentpeft.launch.run.run_folder import as_word, is_held
from agentpeft.policies.checkpointing.checkpoints import list_checkpoints

_FAULTS = {
    "sample/num_faults": "faults of the environment, each in an episode that was played again",
    "sample/num_dropped_groups": "groups left out, since their episodes kept failing",
    "sample/num_slow_episodes": "episodes over env_runners.episode_timeout_s",
    "sample/num_stale_groups": "groups left out as older than max_adapter_lag",
    "fault/num_env_runner_restarts": "restarts of env runners",
    "fault/num_learner_restarts": "restarts of learners",
    "fault/num_drained_env_runners": "env runners whose machine was being drained",
    "fault/num_joined_env_runners": "env runners that had a place again and joined",
    "fault/num_failed_deliveries": "syncs of an adapter that had to be repeated",
}
_NUM_SHOWN = 3
_NOT_CARRIED_OVER = 0.2
"""How far success in training may be above all that an evaluation's success may be."""
main = CommandLine()


@main.add(help=__doc__)
def why(run: Annotated[Path, Argument(help="A run's folder.")]) -> int:
    """Prints what there is to say, a line each. Raises: DataError, SettingsError."""
    for line in explain(read_run(run)):
        print(line)
    return 0


def explain(run: RunData) -> Iterator[str]:
    """Yields what a run's files tell, in lines. Raises: DataError."""
    updates = [row for row in run.metrics if row.get("train/accuracy") is not None]
    yield f"{run.name}: {len(updates)} update{'s' * (len(updates) != 1)}"
    yield from _tell_success(run, updates)
    yield from _tell_gradients(updates)
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
        few = f" (alarms need {2 * WINDOW} updates)" if len(updates) < 2 * WINDOW else ""
        yield f"no alarm was up{few}"
    yield from _tell_failures(run)
    if _count_learnt(updates):
        yield from _tell_next(run)


def _count(run: RunData, name: str) -> int:
    """Returns how often something happened; `fault/…` counts from the start of each process."""
    values = run.series(name)[1]
    if name.startswith("sample/"):
        return int(sum(values))
    steps = pairwise([0.0, *values])
    return int(sum(late - early if late >= early else late for early, late in steps))


def _tell_success(run: RunData, updates: list[Row]) -> Iterator[str]:
    before, after = run.evaluations()
    if before.get("eval/success_rate") is None or before is after:
        if updates:
            first, last = (f"{row['train/accuracy']:.1%}" for row in (updates[0], updates[-1]))
            yield f"success of sampled episodes {first} -> {last}"
        if before:
            yield f"success on {run.evaluated_tasks} {_interval(before)}, not played again yet"
        else:
            yield "no evaluation tasks were played"
        return
    yield (
        f"success on {run.evaluated_tasks} {_interval(before)} -> {_interval(after)}: "
        + _compare(before, after)
    )
    for name in before:
        if name.startswith("eval/skill/") and after.get(name) is not None:
            skill = name.removeprefix("eval/skill/")
            yield f"    {skill}: {before[name]:.1%} -> {after[name]:.1%}"
    learnt = [row for row in updates if row["train/step"] <= after["train/step"]][-WINDOW:]
    is_sampled = all("sample/num_episodes" in row for row in learnt)
    if is_sampled and not any("curriculum/stage" in row for row in learnt):
        trained = fmean(row["train/accuracy"] for row in learnt) if learnt else 0.0
        most = after.get("eval/success_rate_high") or after["eval/success_rate"]
        if trained - most > _NOT_CARRIED_OVER:
            yield (
                f"in training {trained:.0%} of the episodes succeed: what it has learnt does not "
                "carry over; give it more tasks, or ones more like those of the evaluation"
            )


def _count_learnt(updates: list[Row]) -> int:
    """Returns how many updates had a gradient."""
    num_skipped = updates[-1].get("train/num_skipped_updates") if updates else 0
    return len(updates) - int(num_skipped or 0)


def _tell_gradients(updates: list[Row]) -> Iterator[str]:
    """Yields how many updates had a gradient if not all, and what helps where none had one."""
    num_learnt = _count_learnt(updates)
    if num_learnt == len(updates):
        return
    if num_learnt > 0:
        yield f"{num_learnt} of {len(updates)} updates had a gradient"
        return
    has_groups = "sample/spread_share" in updates[-1]
    reason = "no group had two different returns: " if has_groups else ""
    yield f"{reason}no update had a gradient"
    rates = {row["train/accuracy"] for row in updates}
    if rates == {0.0}:
        yield (
            "    nothing succeeded: give easier tasks, a longer warm start "
            "(warm_start.num_steps), or a reward that tells more (environment.kwargs.reward)"
        )
    elif rates == {1.0}:
        yield "    everything succeeded: give harder tasks"
    else:
        yield "    give more samples of a task (training.group_size)"


def _tell_failures(run: RunData) -> Iterator[str]:
    """Yields which episodes of the last evaluation failed, three of them as commands."""
    last: list[Row] = []
    for row in read_sessions(run.path, "eval"):
        if last and last[0]["iteration"] != row["iteration"]:
            last = []
        last.append(row)
    failed = [row for row in last if row["outcome"] != Outcome.SUCCESS]
    if not failed:
        return
    yield f"{len(failed)} of {len(last)} episodes of the last evaluation failed; look at one:"
    by_skill = {tuple(row.get("skills", ())): row for row in reversed(failed)}
    for row in list({id(row): row for row in (*by_skill.values(), *failed)}.values())[:_NUM_SHOWN]:
        name = f"eval-{row['group_id']}-{row['sample']}@{row['iteration']}"
        yield f"    agentpeft replay {as_word(run.path)} {name}  # {find_question(row['messages'])}"


def _tell_next(run: RunData) -> Iterator[str]:
    step, folder = int(run.metrics[-1]["train/step"]), as_word(run.path)
    num_iterations = run.number("training.num_iterations", 0)
    if step < num_iterations:
        resume = f"agentpeft train --resume {folder} resumes it"
        if is_held(run.path):
            resume = f"it is running: agentpeft watch {folder}"
        elif not list_checkpoints(run.path / "checkpoints"):
            resume = "it has no checkpoint to resume from"
        yield f"iteration {step} of {num_iterations}: {resume}"
        return
    rate = run.evaluations()[1].get("eval/success_rate")
    resume = (
        f"agentpeft train --resume {folder} training.num_iterations={2 * (num_iterations or step)}"
    )
    more = "harder tasks have more to learn" if rate and rate >= SOLVED else f"{resume} trains on"
    yield f"next: {more}; agentpeft merge {folder} makes one model of it"


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
