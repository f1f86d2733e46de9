"""Sweeps: the words, the trials of Ray Tune, the table."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_run import TINY

from agentpeft.apps.sweep.sweep import SweptRun, main, make_table, split_swept
from agentpeft.apps.sweep.trials import make_trainable
from agentpeft.launch.reporting.run_data import read_run
from agentpeft.policies.settings.config import Settings

VALUES = {
    "tiny": {"hidden_size": 32, "num_layers": 2},
    "lora": {"rank": 2},
    "num_threads": 1,
    "env_runners": {"num_env_runners": 0, "max_new_tokens": 4},
    "environment": {"kwargs": {"reward": {"length_cost": 0.1}}},
    "training": {"num_iterations": 2, "num_groups": 2, "group_size": 3},
    "evaluation": {"num_tasks": 4},
}


@pytest.mark.long
@pytest.mark.slow
def test_two_learning_rates_are_two_runs_that_other_commands_read(tmp_path):
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    words = [sys.executable, "-m", "agentpeft.launch.cli", "sweep", "tiny.toml"]
    env = {**os.environ, "AGENTPEFT_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [*words, "training.lr=1e-3,1e-2"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *table, last = done.stdout.splitlines()
    assert [line.split()[0] for line in table] == ["training.lr", "1e-3", "1e-2"]
    summary = json.loads(last)
    folder = tmp_path / summary["output"]
    assert sorted(path.name for path in folder.iterdir() if path.name != "logs") == [
        "00-training.lr=1e-3",
        "01-training.lr=1e-2",
    ]
    for row, lr in zip(summary["runs"], (1e-3, 1e-2), strict=True):
        run = read_run(tmp_path / row["run"])
        assert run.settings["training.lr"] == str(lr) and row["settings"]["training.lr"]
        assert [line["train/step"] for line in run.metrics] == [0, 1, 2]
        rates = [line["eval/success_rate"] for line in run.evaluations()]
        assert rates == [row["before"], row["after"]] and row["error"] is None
        assert (run.path / "checkpoints/checkpoint-000002/adapter").is_dir()


def test_settings_with_several_values_are_told_from_others():
    words = ["seed=1, 2", "training.algorithm=grpo,rloo", "a=['x', 'y']", "b=['x'],['y']", "c=1"]
    swept = {"seed": ["1", "2"], "training.algorithm": ["grpo", "rloo"], "b": ['["x"]', '["y"]']}
    assert split_swept(words) == (swept, ["a=['x', 'y']", "c=1"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=1"], "nothing to sweep: give a setting several values, as seed=0,1"),
        (["training.lrr=1,2"], "unknown setting 'training.lrr'; did you mean 'training.lr'?"),
        (["training.lr=1e-3,-1"], "training.lr: input should be greater than 0, got -1"),
    ],
)
def test_words_that_cannot_be_swept_are_one_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["arithmetic_add", *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_table_has_what_differs_and_what_became_of_it():
    runs = [
        SweptRun("out/00-seed=0", {"seed": "0"}, 0.25, 0.865, 61.4, None),
        SweptRun("out/01-seed=1", {"seed": "1"}, None, None, None, "no memory"),
    ]
    assert make_table(runs) == [
        "seed  before  after  seconds  run",
        "0     25.0%   86.5%  61       00-seed=0",
        "1     -       -      -        failed: no memory",
    ]


def test_a_trial_continues_from_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path / "cache"))
    kind = make_trainable(lambda config: Settings(**VALUES, seed=config["seed"]))
    first, second = (kind({"seed": 1}) for _ in range(2))
    first.step()
    first.save_checkpoint(str(tmp_path))
    second.load_checkpoint(str(tmp_path))
    assert second.step()["train/step"] == 2
    assert len(read_run(Path(second.logdir)).metrics) == 1
    for trial in (first, second):
        trial.cleanup()


def test_a_trial_reserves_what_its_workers_need():
    kind = make_trainable(lambda config: Settings(**{**VALUES, **config}))
    gpus = {"env_runners": {"num_env_runners": 2}, "learners": {"num_gpus_per_learner": 0.5}}
    bundles = kind.default_resource_request(gpus).bundles
    runner, learner = {"CPU": 0.5}, {"CPU": 0.5, "GPU": 0.5}
    assert bundles == [{"CPU": 0.1}, runner, runner, learner]
    assert kind.default_resource_request({}).bundles == [{"CPU": 1.0}]
