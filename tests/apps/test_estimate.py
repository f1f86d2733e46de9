"""The time that is expected of a run, against what the run takes."""

import time
from statistics import median

import pytest
from tiny_run import ANOTHER_MODEL, TINY

from agentpeft.apps.lab.estimate import Timed, extrapolate
from agentpeft.apps.lab.estimate import main as estimate
from agentpeft.launch.run.metric_writers import read_metrics
from agentpeft.launch.train import main


@pytest.mark.parametrize(
    ("small", "large", "expected_s"),
    [
        (Timed(10, 3.0), Timed(20, 4.0), 12.0),
        (Timed(10, 5.0), Timed(20, 4.0), 4.0),  # noise: more tokens take no less
        (Timed(10, 1.0), Timed(20, 4.0), 20.0),  # noise: no more than in proportion
        (Timed(20, 4.0), Timed(20, 4.0), 20.0),
        (Timed(0, 1.0), Timed(0, 4.0), 4.0),
    ],
)
def test_time_lies_on_the_line_through_two_measurements(small, large, expected_s):
    assert extrapolate(small, large, 100) == pytest.approx(expected_s)


def read_minutes(printed):
    """Returns the printed minutes by part, and those of the whole."""
    start = printed.index("time, from iterations")
    lines = [line.split() for line in printed[start:].splitlines()]
    return float(lines[0][lines[0].index("about") + 1]), {
        " ".join(words[:-2]): float(words[-2]) for words in lines[1:] if words[-1] == "min"
    }


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["training.algorithm=sft", "training.group_size="]])
def test_a_run_takes_about_the_time_that_was_measured(tmp_path, monkeypatch, capsys, more):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tiny.toml").write_text(TINY, "utf-8")
    long = ["training.num_iterations=3000", "training.num_groups=64", *more]
    assert estimate(["tiny.toml", *long]) == 0
    printed = capsys.readouterr().out
    total, parts = read_minutes(printed)
    assert set(parts) == {"sampling", "learning", "delivery", "evaluation", "warm start"}
    assert total == pytest.approx(sum(parts.values()), abs=0.3)
    assert (parts["sampling"] > 0) == (not more)
    assert not (tmp_path / "outputs").exists()
    assert main(["tiny.toml", *long[1:], "training.num_iterations=10"]) == 0
    capsys.readouterr()
    (folder,) = tmp_path.glob("outputs/*/*")
    names = ["time/sample_s", "time/learn_s", "time/broadcast_s"]
    spent_s = median(
        sum(step.get(name) or 0.0 for name in names) for step in read_metrics(folder)[1:]
    )
    expected_s = (total - parts["evaluation"]) * 60 / 3000
    assert spent_s / 4 < expected_s < spent_s * 4


@pytest.mark.long
@pytest.mark.slow
def test_an_adapter_s_warm_start_is_counted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tiny.toml").write_text(TINY, "utf-8")
    short = ["training.num_iterations=0", "evaluation.num_tasks=0"]
    assert main(["tiny.toml", *short, "warm_start.num_steps=0", "output.dir=first"]) == 0
    (base,) = (tmp_path / "cache").glob("tiny-*")
    words = ["tiny.toml", f"model.name={base}", *ANOTHER_MODEL]
    capsys.readouterr()
    steps = ["warm_start.num_steps=30000", "training.num_iterations=1", "evaluation.num_tasks=0"]
    assert estimate([*words, *steps]) == 0
    _, parts = read_minutes(capsys.readouterr().out)
    start_s = time.monotonic()
    assert main([*words, *short, "warm_start.num_steps=100"]) == 0
    spent_s = time.monotonic() - start_s
    assert 0 < parts["warm start"] * 60 / 300 < spent_s * 2
    assert estimate([*words, *steps, "warm_start.num_steps=0"]) == 0
    assert read_minutes(capsys.readouterr().out)[1]["warm start"] == 0
