"""The temporary folder of a run's own Ray, and what is left of both."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentpeft.launch.run.ray_folder import ray_folder


def test_logs_outlive_a_run_that_failed(ray_parent, tmp_path):
    with pytest.raises(ZeroDivisionError), ray_folder(tmp_path / "logs") as folder:
        assert folder.parent == ray_parent
        (folder / "session_2026" / "logs").mkdir(parents=True)
        (folder / "session_2026" / "logs" / "raylet.out").write_text("why")
        raise ZeroDivisionError
    assert (tmp_path / "logs" / "raylet.out").read_text() == "why"
    with ray_folder(tmp_path / "none") as folder:
        (folder / "session_2026" / "logs").mkdir(parents=True)
    assert not (tmp_path / "none").exists()


def test_a_path_that_is_too_long_for_sockets_is_left_for_another(tmp_path, monkeypatch):
    long = tmp_path / ("long" * 10)
    long.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(long))
    monkeypatch.delenv("TMPDIR", raising=False)
    with ray_folder(tmp_path / "logs") as folder:
        assert folder.parent == Path("/tmp").resolve()


ENDS = [
    "tell_sweeper(OVER); os.kill(os.getpid(), 15)",
    "os._exit(1)",
    "os.kill(os.getpid(), 9)",
    "pass",
    "raise SystemExit(3)",
]


@pytest.mark.parametrize("ends", ENDS)
def test_a_run_that_ends_without_a_word_is_told_of(tmp_path: Path, ends: str) -> None:
    script = f"""
import os
from pathlib import Path
from agentpeft.launch.run.ray_folder import OVER, ray_folder, tell_sweeper
with ray_folder(Path({str(tmp_path / "run/logs/ray")!r})):
    {ends}
"""
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ends.startswith("tell_sweeper"):
        assert ended.stderr.startswith(
            "error: stopped, as by SIGTERM, while Ray shut down; the run"
        )
        assert ended.stderr.endswith(f"{tmp_path}/run\n")
    elif ends.startswith("os."):
        assert ended.stderr.startswith("error: the run has ended without a word")
        assert ended.stderr.endswith(f"{tmp_path}/run\n")
    else:
        assert ended.stderr == ""
