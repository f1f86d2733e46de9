"""What an update costs, counted: nothing may become more."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

COUNTS = Path(__file__).parents[2] / "benchmarks" / "counts.py"


@pytest.mark.long
@pytest.mark.slow
def test_counts_are_within_their_bounds():
    command = [sys.executable, str(COUNTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 28
    assert [row for row in rows if not row["within"]] == []
