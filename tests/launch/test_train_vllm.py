"""The training command with env runners on vLLM, as Ray actors."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from agentpeft.launch.metric_writers import read_metrics

ROOT = Path(__file__).parents[2]
CONFIG = """
experiment = "vllm"
environment = {kwargs = {num_digits = 1, prompt = "compact"}}
tiny = {hidden_size = 64, num_layers = 2, num_heads = 2, intermediate_size = 128}
lora = {rank = 8, alpha = 16.0}
warm_start = {num_steps = 200, batch_size = 32, lr = 5e-3, target_success = 0.4}
training = {num_iterations = 40, num_groups = 32, group_size = 8, lr = 2e-3}
learners = {num_threads = 1}
evaluation = {num_tasks = 10}
output = {tensorboard = false}

[env_runners]
engine = "vllm"
num_env_runners = 2
num_threads = 1
kv_cache_gib = 0.25
max_concurrent_episodes = 64
max_new_tokens = 4
"""


@pytest.fixture
def finished(vllm, tmp_path):
    """The last line of a run, and its folder."""
    config = tmp_path / "vllm.toml"
    config.write_text(CONFIG, encoding="utf-8")
    command = [sys.executable, str(ROOT / "launch" / "train.py"), str(config)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1]), next(tmp_path.glob("outputs/vllm/*"))


def test_a_run_with_two_runners_on_vllm_learns(finished):
    summary, folder = finished
    steps = [step for step in read_metrics(folder) if step.get("train/mismatch_mean") is not None]
    mismatches = [step["train/mismatch_mean"] for step in steps]
    assert len(steps) == 40 and max(mismatches) < 1e-4  # B is zero in the first step alone
    rewards = [step["train/avg_reward"] for step in steps]
    assert np.mean(rewards[-10:]) > np.mean(rewards[:5])  # seen: 0.36 and 0.30
    assert summary["after"]["num_episodes"] == 10
