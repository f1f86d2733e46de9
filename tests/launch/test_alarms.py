"""Alarms: each produced by a real run that goes wrong in its way, and named on the console."""

import json
import logging
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest
from tiny_run import TINY

from agentpeft.apps.lab.why import explain
from agentpeft.launch.reporting.alarms import AlarmLog, find_alarms, find_periods
from agentpeft.launch.reporting.run_data import read_run
from agentpeft.launch.run.metric_writers import read_metrics
from agentpeft.launch.train import main

SHORT_PAYS = "environment.kwargs={num_digits = 1, prompt = 'compact', reward = {length_cost = 0.1}}"
LONG_ANSWERS = """environment.kwargs={num_digits = 2, operations = ["multiplication"], \
format = "worked", prompt = "compact", reward = {length_cost = 0.1}}"""
TOO_HARD = """environment.kwargs={num_digits = 4, operations = ["multiplication"], \
prompt = "compact", reward = "exact_match"}"""
MANY = ("training.num_groups=16", "training.group_size=4")
ALONE = (*MANY, "training.algorithm=reinforce", "training.kl_coeff=1e-6")
RUNS = {
    "an answer costs more than it earns": (
        [SHORT_PAYS, *ALONE, "env_runners.max_new_tokens=8", "warm_start.num_steps=40"],
        {"entropy_collapse", "all_invalid", "kl_runaway"},
    ),
    "a long answer costs more than it earns": (
        [LONG_ANSWERS, *ALONE, "env_runners.max_new_tokens=24"],
        {"length_collapse"},
    ),
    "too hard": ([TOO_HARD], {"no_spread"}),
    "cut": (["env_runners.max_new_tokens=1"], {"cut_turns"}),
    "sound": ([*MANY], set()),
}
ALL = set().union(*(names for _, names in RUNS.values()))
NUM_ITERATIONS = 16


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if "costs" in name else ()) for name in RUNS],
)
def test_what_goes_wrong_is_named_with_a_setting_to_turn(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    overrides, expected = RUNS[name]
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    words = [f"output.dir={tmp_path}", "evaluation.num_tasks=0", *overrides]
    with caplog.at_level(logging.INFO):
        words.append(f"training.num_iterations={NUM_ITERATIONS}")
        assert main([str(tmp_path / "tiny.toml"), *words]) == 0
    (run_dir,) = (tmp_path / "tiny").iterdir()
    lines = read_metrics(run_dir)
    periods = find_periods(lines)
    assert {period.alarm.name for period in periods} >= expected
    if not expected:
        assert periods == []
    counts = Counter[str]()
    for period in periods:
        counts[f"alarm/{period.alarm.name}"] += period.last_step - period.first_step + 1
    written = [line for line in lines if "train/accuracy" in line][-1]
    assert {n: v for n, v in written.items() if n.startswith("alarm/")} == counts
    told = "\n".join(explain(read_run(run_dir)))
    assert all(f": {name}: " in told for name in expected)
    assert ("no alarm was up" in told) == (periods == [])
    said = Counter(record.getMessage().partition(":")[0] for record in caplog.records)
    assert {name: said[name] for name in ALL} == Counter(
        {name: sum(each.alarm.name == name for each in periods) for name in ALL}
    )
    steps = [line for line in lines if "train/grad_norm" in line]
    had_loss = [line["train/policy_loss"] is not None or line["train/grad_norm"] for line in steps]
    num_periods = [had for had, _ in groupby(had_loss, bool)].count(False)
    no_loss = "no loss, as no group has two different returns"
    assert sum(no_loss in record.getMessage() for record in caplog.records) == num_periods
    assert num_periods or name != "too hard"


def test_counts_from_the_start_of_each_process_are_added_up(tmp_path: Path) -> None:
    restarts = [0.0, 1.0, 1.0, 2.0, 0.0, 0.0, 1.0]
    rows = [
        {"train/step": step, "fault/num_env_runner_restarts": number, "sample/num_faults": 1.0}
        for step, number in enumerate(restarts)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = list(explain(read_run(tmp_path)))
    assert "3 restarts of env runners" in told
    assert any(line.startswith("7 faults of the environment") for line in told)


def make_lines(num_lines: int, **metrics: float) -> list[dict[str, float | None]]:
    common = {f"train/{name}": value for name, value in metrics.items()}
    return [
        {"train/step": step, "sample/num_episodes": 8.0, **common} for step in range(1, num_lines)
    ]


def test_a_solved_task_is_no_alarm() -> None:
    lines = make_lines(9, accuracy=1.0, num_skipped_updates=0.0, entropy=1.0)
    for step, line in enumerate(lines):
        line["train/num_skipped_updates"] = float(step)
        line["train/entropy"] = 0.5**step
    assert find_alarms(lines) == []


@pytest.mark.parametrize("is_staged", [False, True])
def test_harder_tasks_of_a_new_stage_are_no_collapse(is_staged: bool) -> None:
    lines = make_lines(13, num_skipped_updates=0.0)
    for step, line in enumerate(lines):
        line["train/entropy"] = 0.6 if step < 3 else 0.1
        line["train/accuracy"] = 0.95 if step < 6 else 0.5
        if is_staged:
            line["curriculum/stage"] = float(step >= 5)  # the stage of the round after this line
    assert [alarm.name for alarm in find_alarms(lines[:9])] == ["entropy_collapse"] * (
        not is_staged
    )
    lines[-1]["train/entropy"] = lines[-2]["train/entropy"] = lines[-3]["train/entropy"] = 1e-3
    assert [alarm.name for alarm in find_alarms(lines)] == ["entropy_collapse"]


def test_lines_that_are_written_again_count_once() -> None:
    lines = make_lines(10, accuracy=0.0)
    for line in lines:
        line["train/num_skipped_updates"] = line["train/step"]
    whole, again = AlarmLog(), AlarmLog()
    counts = [whole.look(int(line["train/step"] or 0), line) for line in lines]
    for line in [*lines[:8], *lines[5:]]:
        last = again.look(int(line["train/step"] or 0), line)
    assert last == counts[-1] == {"alarm/no_spread": 4.0}
    assert AlarmLog(json.loads(json.dumps(lines[:-1]))).look(9, lines[-1]) == last


def make_falling(accuracies: list[float], spread: float, **last: float) -> list:
    """Lines of updates of 256 episodes; entropy, length fall and KL rises in the second half."""
    num_updates, lines = len(accuracies), []
    for step, accuracy in enumerate(accuracies, 1):
        is_late = step > num_updates // 2
        lines.append(
            {
                "train/step": float(step),
                "train/accuracy": accuracy,
                "train/entropy": 0.02 if is_late else 0.5,
                "train/kl": 2.0 if is_late else 0.1,
                "train/num_skipped_updates": 0.0,
                "sample/num_episodes": 256.0,
                "sample/num_sampled_tokens": 256.0 * (10 if is_late else 100),
                "sample/spread_share": spread if is_late else 0.6,
            }
        )
    return lines


HARMLESS = {
    "as good as before": [0.5, 0.6, 0.7, 0.77, 0.77, 0.77, 0.78, 0.77, 0.77, 0.77, 0.77, 0.77],
    "a little worse by chance": [
        0.5,
        0.6,
        0.7,
        0.78,
        0.78,
        0.78,
        0.78,
        0.78,
        0.77,
        0.77,
        0.76,
        0.77,
    ],
}


@pytest.mark.parametrize("name", HARMLESS)
def test_low_entropy_short_answers_and_a_large_kl_alone_are_no_alarms(name: str) -> None:
    assert find_periods(make_falling(HARMLESS[name], spread=0.4)) == []


FALLS = [0.5, 0.6, 0.7, 0.78, 0.78, 0.78, 0.7, 0.66, 0.64, 0.62, 0.6, 0.58]
SLOWLY = [0.3, 0.6, 0.8, 0.8, 0.8, 0.78, 0.77, 0.76, 0.75, 0.73, 0.72, 0.71, 0.7, 0.69, 0.68]


@pytest.mark.parametrize(
    ("accuracies", "spread", "said"),
    [
        (FALLS, 0.4, "success fell from 78% to 60%"),
        (SLOWLY, 0.4, "success fell from 79% to 69%"),
        ([0.5] * 12, 0.02, "almost no group's episodes differ in their returns (success 50%)"),
        ([0.0] * 12, 0.4, "no episode succeeds"),
    ],
)
def test_with_harm_they_are_alarms_that_say_the_harm(accuracies, spread, said) -> None:
    alarms = find_alarms(make_falling(accuracies, spread))
    names = ["entropy_collapse", "length_collapse", "kl_runaway"]
    assert [alarm.name for alarm in alarms] == names
    assert all(said in alarm.seen for alarm in alarms)
