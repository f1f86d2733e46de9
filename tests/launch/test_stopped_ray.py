"""Ray's own processes are stopped, not killed: a run ends in time, says so and leaves nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from process_parts import children_of, seconds_until_gone
from tiny_run import TINY

from agentpeft.policies.checkpointing.checkpoints import list_checkpoints
from agentpeft.policies.checkpointing.reading import read_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.long]

TRAIN = Path(__file__).parents[2] / "launch" / "train.py"
QUICK = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
}
SETTINGS = [
    "env_runners.num_env_runners=1",
    "warm_start.num_steps=0",
    "training.num_iterations=1000000",
    "evaluation.num_tasks=0",
    "output.checkpoint_interval=1",
    "fault_tolerance.env_runner_health_probe_timeout_s=5",
]


def test_a_run_whose_raylet_is_stopped_ends_with_one_line_and_its_checkpoint(tmp_path):
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    command = [sys.executable, str(TRAIN), "tiny.toml", *SETTINGS]
    own = {"AGENTPEFT_CACHE": str(tmp_path / "cache"), "RAY_AUTH_MODE": "disabled"}
    errors = tmp_path / "errors"
    with errors.open("w") as file:
        run = subprocess.Popen(
            command, cwd=tmp_path, env=os.environ | own | QUICK, stdout=file, stderr=file
        )
    deadline_s = time.monotonic() + 300
    while not (found := list(tmp_path.glob("outputs/*/*/checkpoints/checkpoint-*"))):
        assert run.poll() is None and time.monotonic() < deadline_s, errors.read_text()
        time.sleep(0.1)
    started = children_of(run.pid)
    os.kill(next(pid for pid in started if is_raylet(pid)), signal.SIGSTOP)
    assert run.wait(300) == 1
    lines = errors.read_text().splitlines()
    assert [line.partition(":")[0] for line in lines].count("error") == 1
    said = next(line for line in lines if line.startswith("error: "))
    assert "Ray" in said and "resume" in said
    assert "Traceback" not in errors.read_text()
    seconds_until_gone(started, 60)
    newest = list_checkpoints(found[0].parent)[-1]
    assert "learner.pt" in read_checkpoint(newest)


def is_raylet(pid):
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return words[0].endswith(b"/raylet")
