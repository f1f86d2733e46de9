"""Two runs compared: settings, curves, and the iteration and episode at which they part."""

import json

import pytest
from tiny_run import TINY

from agentpeft.apps.lab.diff import find_parting
from agentpeft.apps.lab.sparklines import sparkline
from agentpeft.launch.cli import main

LEARNING = [
    "training.num_iterations=4",
    "environment.kwargs={num_digits=1, prompt='compact', reward={length_cost=0.1}}",
    "output.checkpoint_interval=2",
]


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Trains with overrides; returns the run's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tiny.toml").write_text(TINY, "utf-8")

    def run(name, *words):
        assert main(["train", "tiny.toml", *LEARNING, f"output.dir={name}", *words]) == 0
        return next((tmp_path / name / "tiny").iterdir())

    return run


@pytest.mark.slow
def test_deterministic_runs_are_equal_until_something_is_changed(train, capsys):
    """The second run is resumed after iteration 2 with smaller gradients from then on."""
    whole, other = train("whole"), train("other", "training.num_iterations=2")
    capsys.readouterr()
    assert main(["diff", str(whole), str(whole)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert json.loads(last) == {"settings": [], "parting": None}
    assert "the metrics are equal up to iteration 4, the last that both have" in lines
    assert main(["diff", str(whole), str(other)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert json.loads(last)["parting"] is None
    assert "the metrics are equal up to iteration 2, the last that both have" in lines
    words = ["--resume", str(other), "training.num_iterations=4", "training.max_grad_norm=1e-4"]
    assert main(["train", *words]) == 0
    capsys.readouterr()
    assert main(["diff", str(whole), str(other)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert found["settings"] == ["output.dir", "training.max_grad_norm"]
    assert "  training.max_grad_norm: 1.0  |  0.0001" in lines
    assert found["parting"]["iteration"] == 3
    assert any(line.startswith("the runs part at iteration ") for line in lines)
    curves = [line for line in lines if line.startswith("success")]
    assert len(curves) == 1 and " A " in curves[0] and " -> " in curves[0]


@pytest.mark.slow
@pytest.mark.long
def test_of_other_seeds_the_first_episode_is_told(train, capsys):
    one, other = train("one"), train("two", "seed=1", "deterministic=false")
    capsys.readouterr()
    assert main(["diff", str(one), str(other)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert json.loads(last)["parting"]["iteration"] <= 1
    assert "the first episode that differs: iteration 1, group 0, sample 0" in lines
    assert any(line.startswith("  message 1, B: user: ") for line in lines)
    assert "not both are deterministic" in lines[-1]
    for run, lacking in ((one, 0), (other, 2)):  # episodes that were deleted during a run
        path = run / "sessions" / "train.jsonl"
        kept = [
            line
            for line in path.read_text().splitlines(keepends=True)
            if json.loads(line)["iteration"] >= lacking
        ]
        path.write_text("".join(kept))
    assert main(["diff", str(one), str(other)]) == 0
    assert "the first episode that differs: iteration 3, group" in capsys.readouterr().out


def test_only_what_both_have_is_compared_and_times_are_not():
    ours = [{"train/step": 1, "train/kl": 1.0, "time/total_s": 1.0}]
    theirs = [{"train/step": 1, "train/kl": 1.0, "time/total_s": 2.0, "eval/success_rate": 0.5}]
    assert find_parting(ours, theirs) is None
    theirs.append({"train/step": 1, "train/kl": None})
    assert find_parting(ours, theirs).metrics == ("train/kl",)


def test_what_is_no_run_is_one_line(tmp_path, capsys):
    assert main(["diff", str(tmp_path), str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: no run in")


@pytest.mark.parametrize(
    ("values", "width", "bounds", "line"),
    [
        ([0.0, 1.0, 2.0, 3.0], 2, None, "▁█"),
        ([1.0, 1.0], 5, None, "▁▁"),
        ([5.0, float("nan"), -5.0], 2, (0.0, 1.0), "█▁"),
        ([float("nan")], 5, None, ""),
        ([], 5, None, ""),
    ],
)
def test_a_sparkline_shows_means_between_its_bounds(values, width, bounds, line):
    assert sparkline(values, width, bounds) == line
