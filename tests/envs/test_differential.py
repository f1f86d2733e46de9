"""The embedded MySQL gives what the server gives, on statements wider than any task's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "differential.py"


def measure(url: str, folder: Path, *options: str) -> tuple[dict[str, float], str]:
    """Returns the benchmark's line, and the statements whose results differ."""
    show = folder / "differing.txt"
    command = [sys.executable, str(SCRIPT), "--database", url, "--show", str(show), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), show.read_text(encoding="utf-8")


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_answered_agrees_with_the_server(seed, mysql_url, tmp_path):
    line, differing = measure(mysql_url, tmp_path, "--seed", str(seed), "--num-statements", "2000")
    assert line["statements"] == 2000
    assert line["differing_rows"] <= 3, differing
    assert line["differing_errors"] <= 10, differing
    assert line["refused"] <= 250


@pytest.mark.parametrize("seed", [31, 32])
def test_changed_statements_are_answered_alike_or_refused(seed, mysql_url, tmp_path):
    options = ("--mutated", "--seed", str(seed), "--num-statements", "3000")
    line, differing = measure(mysql_url, tmp_path, *options)
    assert line["statements"] == 3000
    assert line["differing_rows"] <= 3, differing
    assert line["differing_errors"] <= 90, differing
