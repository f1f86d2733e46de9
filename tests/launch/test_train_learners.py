"""The training command with two learners: to its end, resumed, and with one of them killed."""

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from process_parts import children_of, read_processes
from safetensors.numpy import load

from agentpeft.launch.run.metric_writers import read_metrics
from agentpeft.launch.train import main
from agentpeft.policies.checkpointing.checkpoints import checkpoint_path
from agentpeft.policies.workers.learner_group import LearnerGroup

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster")]

TINY = """
experiment = "tiny"
deterministic = true
environment = {kwargs = {num_digits = 1, prompt = "compact", reward = {length_cost = 0.1}}}
num_threads = 1
tiny = {hidden_size = 32, num_layers = 2}
lora = {rank = 4, alpha = 8.0}
env_runners = {max_new_tokens = 4}
training = {algorithm = "reinforce", num_iterations = 4, num_groups = 4, group_size = 2, lr = 1e-2}
learners = {num_learners = 2}
evaluation = {num_tasks = 4}
output = {checkpoint_interval = 1, num_checkpoints_kept = 4, loggers = ["episodes"]}
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    """The path of a file of settings; outputs land beside it."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    return str(path)


def learnt(run_dir):
    """Returns the adapter's bytes, and the losses."""
    folder = checkpoint_path(run_dir / "checkpoints", 4) / "adapter"
    losses = [line.get("train/policy_loss") for line in read_metrics(run_dir)]
    return (folder / "adapter_model.safetensors").read_bytes(), losses


@pytest.mark.long
def test_a_resumed_run_of_two_learners_equals_an_uninterrupted_one(config, tmp_path):
    assert main([config]) == 0
    (whole,) = (tmp_path / "outputs" / "tiny").iterdir()
    cut = Path(shutil.copytree(whole, tmp_path / "cut"))
    for iteration in (3, 4):
        shutil.rmtree(checkpoint_path(cut / "checkpoints", iteration))
    assert main(["--resume", str(cut)]) == 0
    assert learnt(cut) == learnt(whole)
    assert len(set(learnt(whole)[1])) > 3


@pytest.mark.long
def test_a_run_with_a_sharded_base_learns_what_one_without_does_and_resumes(config, tmp_path):
    sharded = ("experiment=sharded", "learners.shard_base=true")
    assert main([config]) == main([config, *sharded]) == 0
    (whole,) = (tmp_path / "outputs" / "tiny").iterdir()
    (parts,) = (tmp_path / "outputs" / "sharded").iterdir()
    one, other = (load(learnt(run)[0]) for run in (whole, parts))
    assert one.keys() == other.keys()
    assert max(np.abs(one[name] - other[name]).max() for name in one) <= 1e-5  # see `ROUNDING`
    losses = [[loss for loss in learnt(run)[1] if loss is not None] for run in (whole, parts)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4, abs=1e-6)
    assert len(set(losses[1])) >= 3
    assert (parts / "sessions" / "tokens.jsonl").stat().st_size > 0
    cut = Path(shutil.copytree(parts, tmp_path / "cut"))
    shutil.rmtree(checkpoint_path(cut / "checkpoints", 4))
    assert main(["--resume", str(cut)]) == 0
    assert learnt(cut) == learnt(parts)


@pytest.fixture
def killed_s(monkeypatch):
    """A learner is killed at the first update; the list has when."""
    update, killed_s = LearnerGroup.update, []

    def kill_one(self):
        if not killed_s:
            own = set(children_of(os.getpid()))
            commands = {pid: text for pid, text in read_processes("cmdline") if pid in own}
            learners = [p for p, text in commands.items() if text.startswith("ray::LearnerActor")]
            os.kill(max(learners), signal.SIGKILL)
            killed_s.append(time.monotonic())
        return update(self)

    monkeypatch.setattr(LearnerGroup, "update", kill_one)
    return killed_s


@pytest.mark.long
def test_a_killed_learner_is_replaced(config, tmp_path, killed_s):
    assert main([config]) == 0
    assert len(killed_s) == 1
    (run_dir,) = (tmp_path / "outputs" / "tiny").iterdir()
    restarts = [line.get("fault/num_learner_restarts") for line in read_metrics(run_dir)]
    assert {number for number in restarts if number is not None} == {1}


@pytest.mark.long
def test_a_killed_learner_ends_the_run_in_seconds_with_one_line(config, killed_s, capsys):
    assert main([config, "fault_tolerance.max_num_restarts=0"]) == 1
    assert time.monotonic() - killed_s[0] < 15
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("error")]
    assert "of the learners is gone" in line or "lost the other learners" in line
