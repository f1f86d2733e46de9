"""No task is won by links at the paths that its checks name; gold solutions still win theirs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "os_links.py"


def sweep(*options: str) -> None:
    """Asserts that links win nothing, and gold everything."""
    command = [sys.executable, str(SCRIPT), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = json.loads(done.stdout)
    assert (done.returncode, line["won_by_links"]) == (0, 0), line["wrong"]
    assert line["tasks"] == line["gold_succeeds"] > 0, line["wrong"]


@pytest.mark.slow
@pytest.mark.parametrize("sandbox_kind", ["bubblewrap"], indirect=True)
def test_links_win_no_task(sandbox_kind):
    sweep("--sandbox", sandbox_kind, "--num-tasks", "3", "--num-targets", "4")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(7200)
def test_links_win_none_of_500_tasks(sandbox_kind):
    is_fast = sandbox_kind == "bubblewrap"
    sweep(
        "--sandbox", sandbox_kind, "--num-tasks", "500", "--num-targets", "28" if is_fast else "2"
    )
