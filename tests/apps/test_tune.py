"""A small sweep with Ray Tune."""

import os
import subprocess
import sys

import pytest
from docs_blocks import ROOT, texts_of
from ray import tune

from agentpeft.apps.tune import make_trainable
from agentpeft.envs import SettingsError
from agentpeft.policies.checkpointing.checkpoints import read_checkpoint, read_state
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
@pytest.mark.usefixtures("cluster")
def test_two_learning_rates_are_two_trials_of_two_iterations(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    space = {"training.lr": tune.grid_search([1e-3, 1e-2])}
    saving = tune.CheckpointConfig(checkpoint_at_end=True)
    run = tune.RunConfig(storage_path=str(tmp_path), checkpoint_config=saving, verbose=0)
    results = tune.Tuner(make_trainable(VALUES), param_space=space, run_config=run).fit()
    assert results.errors == []
    found = {result.config["training.lr"]: result for result in results}
    for lr, result in found.items():
        assert result.metrics["training_iteration"] == result.metrics["train/step"] == 2
        assert result.metrics["train/lr"] == pytest.approx(lr)
        assert result.metrics["eval/num_episodes"] == 4
        with result.checkpoint.as_directory() as folder:
            assert read_state(read_checkpoint(tmp_path / folder / "checkpoint"))["iteration"] == 2


@pytest.mark.long
@pytest.mark.slow
def test_the_pages_sweep_runs(tmp_path):
    (block,) = texts_of(ROOT / "docs" / "training" / "tune.md", "python", "tune")
    config = tmp_path / "tiny.toml"
    config.write_text(Settings(**VALUES).to_toml(), encoding="utf-8")
    script = tmp_path / "sweep.py"
    script.write_text(block.replace("launch/configs/arithmetic_add.toml", str(config)), "utf-8")
    env = {**os.environ, "HOME": str(tmp_path), "AGENTPEFT_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert b"'training.lr'" in done.stdout.splitlines()[-1]


def test_a_trial_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path / "cache"))
    first, second = (make_trainable(VALUES)({"training.lr": 1e-3}) for _ in range(2))
    first.step()
    first.save_checkpoint(str(tmp_path))
    second.load_checkpoint(str(tmp_path))
    assert second.step()["train/step"] == 2
    for trial in (first, second):
        trial.cleanup()


def test_a_trial_reserves_what_its_workers_need():
    config = {"env_runners.num_env_runners": 2, "learners.num_gpus_per_learner": 0.5}
    bundles = make_trainable(VALUES).default_resource_request(config).bundles
    runner, learner = {"CPU": 0.5}, {"CPU": 0.5, "GPU": 0.5}
    assert bundles == [{"CPU": 0.1}, runner, runner, learner]
    assert make_trainable(VALUES).default_resource_request({}).bundles == [{"CPU": 1.0}]


def test_a_setting_that_is_none_is_refused():
    with pytest.raises(SettingsError, match=r"training\.lrr"):
        make_trainable(VALUES).to_settings({"training.lrr": 1e-3})
