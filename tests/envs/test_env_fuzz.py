"""Random and mutated actions: never an exception, always text in the space, always in time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "env_fuzz.py"


def fuzz(*options: str) -> None:
    """Asserts that the script finds nothing."""
    command = [sys.executable, str(SCRIPT), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout)["violations"] == 0


@pytest.mark.parametrize("seed", ["0", "1"])
@pytest.mark.parametrize("env", ["arithmetic", "gsm8k", "db_bench"])
def test_no_action_breaks_an_environment(env, seed):
    fuzz("--env", env, "--seed", seed, "--num-actions", "2000")


def test_no_action_breaks_a_server(mysql_url):
    fuzz("--env", "db_bench", "--backend", mysql_url, "--num-actions", "500")


def test_no_action_breaks_a_sandbox(sandbox_kind):
    num_actions = "500" if sandbox_kind == "bubblewrap" else "150"
    fuzz("--env", "os", "--backend", sandbox_kind, "--num-actions", num_actions)
