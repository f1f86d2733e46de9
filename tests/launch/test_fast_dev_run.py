"""`--fast-dev-run`: a run of seconds that leaves all that a run leaves, of any config."""

import json
from typing import get_args

import pytest
from qwen_model import save_qwen

from agentpeft.launch.run.fast_dev_run import shorten
from agentpeft.launch.run.metric_writers import read_metrics
from agentpeft.launch.run.run_folder import CONFIGS, read_start
from agentpeft.launch.train import main
from agentpeft.policies.checkpointing.checkpoints import list_checkpoints
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.training import AlgorithmName


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_config_becomes_short_and_keeps_what_it_is_about(path):
    settings = read_start([path.stem], []).settings
    short = shorten(settings)
    assert short.training.num_iterations == 2 and short.training.num_groups == 2
    assert short.evaluation.num_tasks <= 4 and short.evaluation.interval == 1
    assert short.output.checkpoint_interval == 1
    for name in ("environment", "model", "lora", "learners", "curriculum"):
        assert dict(short)[name] == dict(settings)[name]
    assert short.training.algorithm == settings.training.algorithm


@pytest.mark.parametrize(
    "values",
    [
        {"training": {"algorithm": "sft"}},
        {"training": {"algorithm": "reinforce", "group_size": 1}},
        {"training": {"algorithm": "distill", "teacher": "some/model"}, "model": {"name": "x"}},
        {"training": {"dynamic_sampling": 4}},
        {"training": {"num_minibatches": 8}, "learners": {"num_learners": 4}},
        {"evaluation": {"num_tasks": 0}},
    ],
    ids=str,
)
def test_settings_that_lean_on_each_other_stay_valid(values):
    short = shorten(Settings(**values))
    assert short == shorten(short)
    assert short.training.num_groups >= short.learners.num_learners


def test_a_preset_of_the_built_in_model_trains_another(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_qwen(tmp_path / "own")
    words = ["model.name=own", "warm_start.num_steps=2", "learners.gradient_checkpointing=false"]
    own = ["env_runners.num_env_runners=0", "num_threads=1"]
    assert main(["arithmetic_add", "--fast-dev-run", *words, *own]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (tmp_path / last["adapter"] / "adapter_config.json").is_file()
    (run_dir,) = (tmp_path / "outputs" / "arithmetic_add-fast-dev-run").iterdir()
    log = (run_dir / "logs" / "train.log").read_text("utf-8")
    assert "warm start: step 2 of 2, loss " in log


def test_it_touches_everything_in_a_folder_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path / "cache"))
    own = ["env_runners.num_env_runners=0", "num_threads=1"]
    assert main(["arithmetic_add", "--fast-dev-run", *own]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    (run_dir,) = (tmp_path / "outputs" / "arithmetic_add-fast-dev-run").iterdir()
    lines = read_metrics(run_dir)
    assert [line["train/step"] for line in lines if "eval/success_rate" in line] == [0, 1, 2]
    steps = [line for line in lines if "train/grad_norm" in line]
    assert len(steps) == 2 and not any(line.get("train/num_skipped_updates") for line in steps)
    assert len(list_checkpoints(run_dir / "checkpoints")) == 2
    assert "<svg" in (tmp_path / last["report"]).read_text("utf-8")
    assert last["seconds"]["total"] < 60
    assert main(["--resume", str(run_dir), "--fast-dev-run"]) == 2
    assert "--fast-dev-run begins a run of its own" in capsys.readouterr().err


ALGORITHMS = [name for name in get_args(AlgorithmName) if name not in ("distill", "sft")]


@pytest.mark.parametrize(
    "algorithm",
    [
        name if name in ("grpo", "ppo") else pytest.param(name, marks=pytest.mark.slow)
        for name in ALGORITHMS
    ],
)
def test_where_no_reward_differs_it_draws_some_and_shows_a_gradient(
    algorithm, tmp_path_factory, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    own = ["env_runners.num_env_runners=0", "num_threads=1"]
    hopeless = ["environment.kwargs.reward={success=0}", f"training.algorithm={algorithm}"]
    assert main(["arithmetic_mul", "--fast-dev-run", *own, *hopeless]) == 0
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.out.splitlines()]
    norms = [line["grad_norm"] for line in lines if "grad_norm" in line]
    assert len(norms) == 2 and min(norms) > 0
    for step, norm in enumerate(norms, 1):
        drawn = "of rewards drawn at random, as none differed"
        assert f"iteration {step}: gradient norm {norm:.3g}, {drawn}" in printed.err


@pytest.mark.long
@pytest.mark.slow
def test_it_places_runners_as_the_run_would(tmp_path, monkeypatch, capsys, ray_parent):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path / "cache"))
    own = ["env_runners.num_env_runners=1", "num_threads=1"]
    assert main(["arithmetic_add", "--fast-dev-run", *own]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    run_dir = (tmp_path / last["adapter"]).parents[2]
    assert [line["train/step"] for line in read_metrics(run_dir)][-1] == 2
    assert "started Ray" in (run_dir / "logs/train.log").read_text("utf-8")
