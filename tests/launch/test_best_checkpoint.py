"""The best checkpoint by evaluation has a name, outlives newer ones, and is taken by commands."""

import json
import shutil
import tomllib
from contextlib import ExitStack

import pytest
from peaking_env import NUM_TASKS, PeakingEnv

from agentpeft.launch.evaluate import main as evaluate
from agentpeft.launch.merge import main as merge
from agentpeft.launch.run.run_folder import find_adapter
from agentpeft.launch.train import main
from agentpeft.policies.checkpointing.checkpoints import (
    BestCheckpoint,
    list_checkpoints,
    name_best,
    prune_checkpoints,
    read_best,
)
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.loop.algorithm import Algorithm
from agentpeft.policies.settings.config import Settings

CONFIG = f"""
experiment = "peak"
deterministic = true
environment = {{id = "peaking_env:Tests/Peaking-v0"}}
num_threads = 1
tiny = {{hidden_size = 32, num_layers = 1}}
lora = {{rank = 2}}
env_runners = {{num_env_runners = 0, engine = "scripted", max_new_tokens = 4}}
training = {{num_iterations = 5, num_groups = 2, group_size = 2}}
evaluation = {{num_tasks = {NUM_TASKS}, interval = 1, env_kwargs = {{is_evaluated = true}}}}
output = {{checkpoint_interval = 2, num_checkpoints_kept = 1, loggers = ["episodes"]}}
"""


@pytest.fixture
def train(tmp_path, monkeypatch, capsys):
    """Runs the command with these rates of the evaluations; returns the run and its last line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "peak.toml").write_text(CONFIG, "utf-8")

    def run(rates, *words):
        monkeypatch.setattr(PeakingEnv, "rates", rates)
        monkeypatch.setattr(PeakingEnv, "num_played", 0)
        assert main(list(words) or ["peak.toml"]) == 0
        (run_dir,) = (tmp_path / "outputs" / "peak").iterdir()
        return run_dir, json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def names(run_dir):
    return [path.name for path in list_checkpoints(run_dir / "checkpoints")]


def test_the_best_is_saved_when_it_is_evaluated_and_outlives_the_newest(train):
    run_dir, last = train([0.0, 0.25, 0.5, 1.0, 0.5, 0.75])  # before all; after 1, 2, 3, 4; the end
    folder = run_dir / "checkpoints"
    assert names(run_dir) == ["checkpoint-000003", "checkpoint-000005"]
    assert (folder / "best").readlink().name == "checkpoint-000003"
    assert read_best(folder) == BestCheckpoint("checkpoint-000003", 1.0)
    assert last["best"]["success_rate"] == 1.0
    assert "checkpoint-000003" in last["best"]["adapter"]
    assert last["adapter"].endswith("checkpoint-000005/adapter")


@pytest.mark.slow
def test_the_last_evaluation_counts_too_and_equal_success_changes_nothing(train):
    run_dir, _ = train([1.0, 0.5, 0.5, 0.5, 0.5, 0.75])
    assert (run_dir / "checkpoints/best").readlink().name == "checkpoint-000005"
    assert names(run_dir) == ["checkpoint-000005"]


@pytest.mark.slow
def test_a_resumed_run_remembers_its_best_and_forgets_one_that_is_set_aside(train):
    run_dir, _ = train([0.0, 0.25, 1.0, 0.5, 0.5, 0.5])
    best = run_dir / "checkpoints/best"
    assert best.readlink().name == "checkpoint-000002"
    train([0.75, 0.75, 0.75], "--resume", str(run_dir), "training.num_iterations=7")
    assert best.readlink().name == "checkpoint-000002"
    assert names(run_dir) == ["checkpoint-000002", "checkpoint-000007"]
    train([0.25, 0.5], "--resume", str(best), "training.num_iterations=4")
    assert best.readlink().name == "checkpoint-000002"
    assert names(run_dir) == ["checkpoint-000002", "checkpoint-000004"]
    (run_dir / "checkpoints/best.json").write_text('{"checkpoint": "gone", "success_rate": 1}')
    _, last = train([0.5], "--resume", str(run_dir))
    assert last["best"]["adapter"].endswith("checkpoint-000004/adapter")


@pytest.mark.slow
def test_what_a_killed_run_could_not_name_is_named_on_resume(train):
    run_dir, _ = train([0.0, 0.25, 1.0, 0.5, 0.5, 0.5])
    folder = run_dir / "checkpoints"
    (folder / "best").unlink()
    (folder / "best").symlink_to("checkpoint-000001")  # killed between the file and the link
    train([0.5, 0.5], "--resume", str(run_dir), "training.num_iterations=6")
    assert (folder / "best").readlink().name == "checkpoint-000002"
    for name in ("best", "best.json"):  # killed between the checkpoint and the file
        (folder / name).unlink()
    again = str(folder / "checkpoint-000002")
    train([0.5, 0.5], "--resume", again, "training.num_iterations=3")
    assert read_best(folder) == BestCheckpoint("checkpoint-000002", 1.0)


@pytest.mark.slow
def test_a_checkpoint_holds_rewards_and_success_by_iteration(train):
    run_dir, _ = train([0.0, 0.25, 1.0, 0.5, 0.5, 0.5])
    stats = json.loads((run_dir / "checkpoints/checkpoint-000005/training_stats.json").read_text())
    assert (stats["iteration"], stats["num_episodes"]) == (5, 20)
    assert stats["iterations"] == [
        {"iteration": i, "avg_reward": 1.0, "success_rate": 1.0} for i in (1, 2, 3, 4, 5)
    ]
    assert [(e["iteration"], e["success_rate"]) for e in stats["evaluations"]] == [
        (0, 0.0), (1, 0.25), (2, 1.0), (3, 0.5), (4, 0.5),
    ]  # fmt: skip
    train([0.5, 0.5], "--resume", str(run_dir / "checkpoints/best"), "training.num_iterations=3")
    stats = json.loads((run_dir / "checkpoints/checkpoint-000003/training_stats.json").read_text())
    assert [each["iteration"] for each in stats["iterations"]] == [1, 2, 3]
    assert [each["iteration"] for each in stats["evaluations"]] == [0, 1, 2]


def test_evaluate_and_merge_take_the_best(train, tmp_path, capsys, monkeypatch):
    run_dir, _ = train([0.0, 0.25, 1.0, 0.5, 0.5, 0.5])
    best = str(run_dir / "checkpoints/best")
    capsys.readouterr()
    monkeypatch.setattr(PeakingEnv, "num_played", 0)
    assert evaluate([best, "--output", str(tmp_path / "out"), "evaluation.num_tasks=2"]) == 0
    assert list(json.loads(capsys.readouterr().out)["policies"]) == ["checkpoint-000002"]
    assert find_adapter(run_dir / "checkpoints/best").parent.name == "checkpoint-000002"
    assert merge([best, "--output", str(tmp_path / "merged")]) == 0


def test_a_file_that_names_nothing_is_said_and_a_best_that_is_gone_is_none(tmp_path):
    for number in (1, 2, 3):
        (tmp_path / f"checkpoint-{number:06d}").mkdir()
    name_best(tmp_path / "checkpoint-000001", 0.5)
    prune_checkpoints(tmp_path, 1)
    assert [path.name[-1] for path in list_checkpoints(tmp_path)] == ["1", "3"]
    (tmp_path / "checkpoint-000001").rmdir()
    assert read_best(tmp_path) is None
    for damaged in (
        "[1]",
        '{"checkpoint": "a"}',
        '{"checkpoint": "a", "success_rate": "much"}',
        '{"checkpoint": "a", "success_rate": null}',
        '{"checkpoint": "a", "success_rate": NaN}',
        '{"checkpoint": 1, "success_rate": 1}',
        '{"checkpoint": "a", "success_rate": 1' + "0" * 400 + "}",
    ):
        (tmp_path / "best.json").write_text(damaged)
        with pytest.raises(CheckpointError, match=r"best\.json' is damaged"):
            read_best(tmp_path)


@pytest.mark.slow
def test_a_copy_without_links_goes_on_from_its_best_which_is_a_link_again(train, tmp_path, capsys):
    run_dir, _ = train([0.0, 0.25, 1.0, 0.5, 0.5, 0.5])
    copy = tmp_path / "copy"
    shutil.copytree(run_dir, copy)
    folder = copy / "checkpoints"
    assert (folder / "best").is_dir() and not (folder / "best").is_symlink()
    words = ("--resume", str(folder / "best"), "training.num_iterations=3")
    train([0.5, 0.5], *words)
    assert names(copy) == ["checkpoint-000002", "checkpoint-000003"]
    assert (folder / "abandoned-checkpoint-000005").is_dir()
    assert (folder / "best").readlink().name == "checkpoint-000002"
    assert (folder / "abandoned-best-1/manifest.json").is_file()


@pytest.mark.slow
def test_a_best_that_was_copied_alone_gets_the_name_of_its_iteration(train, tmp_path):
    run_dir, _ = train([0.0, 0.25, 1.0, 0.5, 0.5, 0.5])
    copy = tmp_path / "copy"
    shutil.copytree(run_dir, copy, ignore=shutil.ignore_patterns("checkpoint-*", "best.json"))
    folder = copy / "checkpoints"
    train([0.5], "--resume", str(folder / "best"), "training.num_iterations=2")
    assert names(copy) == ["checkpoint-000002"]
    assert (folder / "best").readlink().name == "checkpoint-000002"


def test_folders_named_best_as_of_copied_runs_are_set_aside_and_kept(tmp_path, caplog):
    for name in ("checkpoint-000001", "best", "abandoned-best-1"):
        (tmp_path / name).mkdir()
    (tmp_path / "best" / "adapter").touch()
    name_best(tmp_path / "checkpoint-000001", 0.5)
    assert read_best(tmp_path) == BestCheckpoint("checkpoint-000001", 0.5)
    assert (tmp_path / "best").resolve() == tmp_path / "checkpoint-000001"
    assert [path.name for path in (tmp_path / "abandoned-best-2").iterdir()] == ["adapter"]
    assert (tmp_path / "abandoned-best-1").is_dir()
    assert f"{tmp_path / 'best'} was a folder and no link: set aside as" in caplog.text


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Builds runs of the config in Python, whose evaluations have these rates."""
    monkeypatch.setattr(PeakingEnv, "num_played", 0)
    with ExitStack() as stack:

        def start(name, rates, lr):
            monkeypatch.setattr(PeakingEnv, "rates", rates)
            values = tomllib.loads(CONFIG)
            values["training"]["lr"] = lr
            return stack.enter_context(Algorithm(Settings(**values), tmp_path / name))

        yield start


def test_what_was_saved_elsewhere_is_not_named(build):
    run = build("run", [0.5, 1.0], 1e-3)
    run.train()
    run.evaluate()
    mine = run.save_to_path(run.run_dir / "mine")
    run.restore_from_path(mine)
    folder = run.run_dir / "checkpoints"
    run.evaluate()
    assert read_best(folder) is None and not (folder / "best").is_symlink()
    assert run.save_to_path() == folder / "checkpoint-000001"
    assert read_best(folder) == BestCheckpoint("checkpoint-000001", 1.0)


def test_the_rate_of_another_run_s_policy_is_not_given_to_an_own_checkpoint(build):
    run, other = build("run", [], 1e-3), build("other", [0.25, 1.0], 2e-3)
    for each in (other, run):
        each.train()
    theirs = other.save_to_path()
    run.save_to_path()
    run.evaluate()
    folder = run.run_dir / "checkpoints"
    assert read_best(folder) == BestCheckpoint("checkpoint-000001", 0.25)
    run.restore_from_path(theirs)
    run.evaluate()
    assert read_best(folder) == BestCheckpoint("checkpoint-000001", 0.25)
    run.save_to_path()  # in its place
    assert read_best(folder) == BestCheckpoint("checkpoint-000001", 1.0)
    run.restore_from_path(theirs)
    run.save_to_path()
    assert read_best(folder) is None
