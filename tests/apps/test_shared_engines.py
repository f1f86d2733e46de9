"""`agentpeft engines`: two runs of a sweep, at once, with one engine of the command's."""

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from ray_cluster import ray_head

from agentpeft.envs import SettingsError
from agentpeft.launch.run.metric_writers import read_metrics
from agentpeft.policies.engines.player import make_player
from agentpeft.policies.settings.config import Settings

CLI = [sys.executable, "-m", "agentpeft.launch.cli"]
MODEL = [
    "arithmetic_add",
    "tiny.hidden_size=64",
    "tiny.num_layers=1",
    "warm_start.num_steps=3",
    "num_threads=1",
    "num_cpus_per_process=0.2",
]
RUN = [
    "training.num_iterations=2",
    "training.num_groups=4",
    "training.entropy_coeff=0.01",
    "evaluation.num_tasks=8",
    "evaluation.interval=0",
    "env_runners.engine=vllm",
    "env_runners.shared_engines=agentpeft.apps.shared_engines:sweep",
]


@contextmanager
def engines(env, folder):
    """The command, once its engine serves."""
    words = ["engines", *MODEL, "env_runners.kv_cache_gib=0.05", "--name=sweep", "--slots=2"]
    with (folder / "said").open("w", encoding="utf-8") as said:
        command = [*CLI, *words, "--address", env["HEAD_ADDRESS"]]
        pipe = {"stdout": subprocess.PIPE, "stderr": said, "text": True}
        with subprocess.Popen(command, env=env, cwd=folder, **pipe) as process:
            try:
                assert json.loads(process.stdout.readline()) == {
                    "name": "sweep",
                    "engines": 1,
                    "slots": 2,
                }
                yield process
            finally:
                process.terminate()


def train(env, folder, *words):
    command = [*CLI, "train", *MODEL, *RUN, *words, "--address", env["HEAD_ADDRESS"]]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=env, cwd=folder, **quiet)


def test_a_run_without_ray_is_told_that_the_engines_are_in_a_cluster():
    runners = {"engine": "vllm", "num_env_runners": 0}
    named = runners | {"shared_engines": "agentpeft.apps.shared_engines:sweep"}
    with pytest.raises(SettingsError, match="'sweep' is in a Ray cluster, and"):
        make_player(Settings(env_runners=named))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_runs_of_a_sweep_play_with_one_engine(vllm, tmp_path):
    with ray_head(Path(sys.executable), {"AGENTPEFT_CACHE": str(tmp_path / "cache")}) as env:
        with engines(env, tmp_path) as served:
            rates = ("1e-3", "3e-3")
            runs = [
                train(env, tmp_path, f"experiment=at{rate}", f"training.lr={rate}")
                for rate in rates
            ]
            errors = [run.communicate()[1] for run in runs]
            assert [run.returncode for run in runs] == [0, 0], errors
            late = train(env, tmp_path, "max_adapter_lag=2")
            said = late.communicate()[1]
            assert "a runner needs 3 slots for adapters, and of 2 2 are free" in said
            assert late.returncode == 1
        assert served.wait(60) == 143
        gone = train(env, tmp_path)
        said = gone.communicate()[1]
        assert gone.returncode == 2 and "there are none in this cluster" in said, said
    for rate in rates:
        (folder,) = tmp_path.glob(f"outputs/at{rate}/*")
        proofs = [step for step in read_metrics(folder) if "delivery/probe_max" in step]
        assert len(proofs) == 2
        for step in proofs:
            assert step["delivery/probe_max"] < 1e-4 < step["delivery/engine_effect"]
    said = (tmp_path / "said").read_text(encoding="utf-8")
    assert "slots taken" in said and "at1e-3: 1" in said and "(no runs)" in said
