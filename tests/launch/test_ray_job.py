"""`ray job submit` works with the working directory alone.

With the package on the nodes test_docs_commands.py has it.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from ray_cluster import make_python, ray_head

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
QUICKSTART = [
    "quickstart",
    "warm_start.num_steps=2",
    "warm_start.batch_size=2",
    "training.num_iterations=1",
    "training.num_warmup_iterations=0",
    "training.num_groups=2",
    "training.group_size=2",
    "evaluation.num_tasks=2",
    "tiny.hidden_size=32",
    "tiny.num_layers=1",
]

VLLM = """
environment = {kwargs = {num_digits = 1, reward = {preset = "exact_match", length_cost = 0.01}}}
tiny = {hidden_size = 64, num_layers = 1}
training = {num_iterations = 3, num_groups = 2, group_size = 2, lr = 1e-2}
evaluation = {num_tasks = 2}

[env_runners]
engine = "vllm"
num_env_runners = 2
kv_cache_gib = 0.25
max_new_tokens = 8
"""
"""An answer's length alone decides its reward, so B does not stay zero."""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of nodes that have the dependencies alone."""
    return make_python(tmp_path_factory.mktemp("python") / "venv")


@pytest.fixture(scope="module")
def head(python):
    """The environment in which jobs are submitted to a head of such nodes."""
    with ray_head(python) as env:
        yield env


@pytest.fixture
def working_dir(tmp_path):
    for room in ("agentpeft", "envs", "policies", "launch", "apps"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / room, tmp_path / "tree" / room, symlinks=True, ignore=ignored)
    return tmp_path / "tree"


def submit(python, env, working_dir, outputs, arguments=QUICKSTART):
    runtime_env = json.dumps({"env_vars": {"AGENTPEFT_OUTPUT_DIR": str(outputs)}})
    command = [str(python), "-m", "ray.scripts.scripts", "job", "submit"]
    command += ["--working-dir", str(working_dir), "--runtime-env-json", runtime_env]
    command += ["--", "python", "launch/train.py", *arguments]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=240
    )


@pytest.mark.long
def test_a_submitted_job_trains_and_its_outputs_stay(python, head, working_dir, tmp_path_factory):
    outputs = tmp_path_factory.mktemp("runs")
    done = submit(python, head, working_dir, outputs)
    assert done.returncode == 0, done.stdout + done.stderr
    (summary,) = [line for line in done.stdout.splitlines() if line.startswith('{"before"')]
    adapter = Path(json.loads(summary)["adapter"])
    assert adapter.is_relative_to(outputs)
    assert (adapter / "adapter_config.json").is_file()


@pytest.mark.long
@pytest.mark.usefixtures("vllm")
def test_two_learners_of_a_submitted_job_learn_from_two_engines_of_vllm(
    python, head, working_dir, tmp_path_factory
):
    outputs = tmp_path_factory.mktemp("runs")
    (working_dir / "vllm.toml").write_text(VLLM, encoding="utf-8")
    arguments = ["vllm.toml", "learners.num_learners=2"]
    done = submit(python, head, working_dir, outputs, arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    (metrics,) = outputs.rglob("metrics.jsonl")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [line for line in lines if line.get("train/mismatch_mean") is not None]
    assert [step["train/step"] for step in steps] == [1, 2, 3]
    assert max(step["train/mismatch_mean"] for step in steps) < 1e-4
    assert steps[0]["train/grad_norm"] > 0
    assert 0 < steps[-1]["delivery/probe_max"] < 1e-3
