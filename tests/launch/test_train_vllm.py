"""Changes of DB-bench that are to be committed, with an env runner on vLLM as a Ray actor."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentpeft.launch.run.metric_writers import read_metrics

ROOT = Path(__file__).parents[2]
SMALLER = (
    'environment.kwargs.skills=["update"]',
    "environment.kwargs.max_text_chars=3",
    "environment.kwargs.invent=false",
    "environment.kwargs.split=",
    "evaluation.env_kwargs=",
    "evaluation.interval=0",
    "evaluation.num_tasks=50",
    "tiny.hidden_size=128",
    "tiny.num_layers=2",
    "tiny.vocab_size=1024",
    "warm_start.num_steps=200",
    "warm_start.lr=1e-2",
    "training.num_iterations=6",
    "training.num_groups=16",
    "training.lr=2e-3",
    "training.lr_schedule=constant",
    "env_runners.engine=vllm",
    "num_threads=1",
    "env_runners.kv_cache_gib=0.25",
    "env_runners.max_new_tokens=40",
    "output.loggers=['episodes']",
)
"""One kind of change, words that the model knows, and a model that learns them in a minute."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def finished(vllm, tmp_path):
    """The last line of a run, and its folder."""
    command = [sys.executable, str(ROOT / "launch" / "train.py"), "db_bench_commit", *SMALLER]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (folder,) = tmp_path.glob("outputs/db_bench_commit/*")
    return json.loads(done.stdout.splitlines()[-1]), folder


@pytest.mark.long
def test_a_policy_learns_to_commit_on_vllm(finished):
    summary, folder = finished
    steps = [step for step in read_metrics(folder) if step.get("train/mismatch_mean") is not None]
    assert len(steps) == 6 and max(step["train/mismatch_mean"] for step in steps) < 1e-4
    before, after = summary["before"], summary["after"]
    assert before["num_episodes"] == after["num_episodes"] == 50
    assert after["success_rate"] > before["success_rate"] + 0.25  # seen: 0.5 to 0.76, from 0
