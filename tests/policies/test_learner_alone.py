"""A learner works where there is neither gymnasium nor sqlglot, Ray or vLLM."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ABSENT = ("gymnasium", "sqlglot", "ray", "vllm")
WITHOUT = f"import sys\nABSENT = {ABSENT}\nsys.modules.update(dict.fromkeys(ABSENT))\n"
"""As Python has it, a module that is None cannot be found."""


def run(code):
    command = [sys.executable, "-c", WITHOUT + code]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.mark.slow
def test_learner_and_models_import_without_the_libraries_of_environments_and_clusters():
    done = run(
        "from agentpeft.policies.learning.learner import Learner\n"
        "from agentpeft.policies.models.load import load_base\n"
        "from agentpeft.policies.engines.fusing import merged_state\n"
        "from agentpeft.envs import Outcome, SettingsError, Task\n"
        "print(*(name for name in sys.modules if name.partition('.')[0] in ABSENT))"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == list(ABSENT)  # but these, no submodule of one


def test_an_environment_still_says_what_it_needs():
    done = run("import agentpeft.envs.core.text_env")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ModuleNotFoundError: import of gymnasium")
