"""The embedded MySQL gives what the server gives, on statements wider than any task's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "differential.py"


@pytest.mark.parametrize("seed", [1, 2])
def test_results_agree_with_the_server_in_at_least_99_5_percent(seed, mysql_url, tmp_path):
    show = tmp_path / "differing.txt"
    command = [sys.executable, str(SCRIPT), "--database", mysql_url, "--seed", str(seed)]
    command += ["--num-statements", "2000", "--show", str(show)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout)
    assert line["statements"] == 2000
    assert line["share_equal"] >= 0.995, show.read_text(encoding="utf-8")
