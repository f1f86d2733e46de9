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


def test_changed_statements_are_answered_alike_or_refused(mysql_url, tmp_path):
    options = ("--mutated", "--seed", "31", "--num-statements", "600")
    line, differing = measure(mysql_url, tmp_path, *options)
    assert line["statements"] == 600
    assert line["differing_rows"] == 0, differing
    assert line["differing_errors"] <= 20, differing
