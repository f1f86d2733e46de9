"""The time that a run still takes, and what a success has cost it."""

import io
from types import SimpleNamespace

import pytest

from agentpeft.launch.run import summary as summary_module
from agentpeft.launch.run.metric_writers import ProgressConsole
from agentpeft.launch.run.summary import LEFT, Pace, compute_cost


def test_the_last_ten_iterations_tell_the_time_left(monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr(summary_module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    pace = Pace(20)
    now_s[0] += 8.0
    assert pace.end_iteration(1)[LEFT] == pytest.approx(8.0 * 19)
    for iteration in range(2, 13):
        now_s[0] += 0.5
        left = pace.end_iteration(iteration)[LEFT]
    assert left == pytest.approx(0.5 * 8)  # the slow one is forgotten
    assert pace.end_iteration(20)[LEFT] == 0


def test_a_success_costs_the_seconds_and_tokens_of_failures_too():
    lines = [
        {"train/step": 0, "eval/success_rate": 0.5},
        {"time/total_s": 2.0, "sample/num_sampled_tokens": 100.0, "sample/outcome/failure": 8.0},
        {"time/total_s": 4.0, "sample/num_sampled_tokens": 50.0, "sample/outcome/success": 4.0},
    ]
    assert compute_cost(lines) == {"seconds": 1.5, "tokens": 37.5}
    assert compute_cost(lines[:2]) == {"seconds": None, "tokens": None}


def test_the_bar_says_how_long_the_run_still_takes():
    shown = io.StringIO()
    console = ProgressConsole(10, shown)
    console.write(3, {"train/avg_reward": 0.5, LEFT: 65.2})
    console.write(4, {"train/policy_loss": float("nan")})  # nothing was learnt
    console.close()
    assert "loss - " in shown.getvalue() and "nan" not in shown.getvalue()
    assert "4/10" in shown.getvalue() and "0:01:05 left" in shown.getvalue()
