"""Lost nodes and short memory, in a process of their own.

Ray keeps its mode of authentication for as long as a process lives, and this cluster's is another
than that of the clusters which the other tests start.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.timeout(600)
def test_what_goes_with_a_node_or_for_lack_of_memory_is_played_again():
    run_tests_of("lost_nodes.py")


def run_tests_of(file, marks=""):
    """Runs a file of tests, or those with marks, in a process of its own, and fails as they do."""
    path = str(Path(__file__).parent / file)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks, path]
    env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
    assert "passed" in done.stdout and "skipped" not in done.stdout
