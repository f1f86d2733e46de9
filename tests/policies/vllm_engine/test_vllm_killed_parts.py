"""Env runners on vLLM, their engines, a run's driver and Ray itself are killed: nothing stays."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray
from faulty_parts import EngineAround, runner_with, take
from process_parts import children_of, processes_of, seconds_until_gone

from agentpeft.policies.delivery.deliver import send_and_prove
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.learner_group import LearnerGroup
from agentpeft.policies.workers.runner_group import EnvRunnerGroup

ROOT = Path(__file__).parents[3]
CONFIG = """
environment = {kwargs = {num_digits = 1, prompt = "compact", reward = {length_cost = 0.1}}}
num_threads = 1
tiny = {hidden_size = 64, num_layers = 1}
lora = {rank = 2}
env_runners = {engine = "vllm", kv_cache_gib = 0.05, max_new_tokens = 4}
training = {num_iterations = 100000, num_groups = 4, group_size = 3, lr = 1e-2}
evaluation = {num_tasks = 0}
output = {checkpoint_interval = 1, loggers = ["episodes"]}
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # five engines are started
LIMIT_S = 10
"""Within how many seconds what a killed process owned is gone."""
for name in (__name__, "faulty_parts", "process_parts"):  # actors cannot import them
    ray.cloudpickle.register_pickle_by_value(sys.modules[name])


@pytest.fixture(scope="module", autouse=True)
def folder(vllm, nothing_left, cache_folder):
    """What all processes here have in their environment, with a config; none of them is left."""
    (cache_folder / "small.toml").write_text(CONFIG, encoding="utf-8")
    return cache_folder


@pytest.fixture(scope="module")
def runners(folder, cluster):
    """One env runner, which has an adapter."""
    settings = Settings.from_toml(folder / "small.toml")
    kind = runner_with(lambda engine: KillingEngine(engine, folder))
    learner, runners = LearnerGroup(settings), EnvRunnerGroup(settings, kind=kind)
    send_and_prove(learner.pack_adapter(), runners)
    yield runners
    for group in (runners, learner):
        group.close()


class KillingEngine(EngineAround):
    """Kills its process, or vLLM's, at its sixth turn since one of the faults' files is there."""

    def __init__(self, engine, folder):
        super().__init__(engine)
        self.folder, self.num_calls = folder, 0

    async def generate(self, request):
        faults = [self.folder / part for part in ("engine", "runner")]
        self.num_calls += any(fault.exists() for fault in faults)
        if self.num_calls == 6:
            pids = [os.getpid(), *children_of(os.getpid())]
            (self.folder / "pids").write_text(" ".join(map(str, pids)))
            if take(self.folder / "runner"):
                os.kill(os.getpid(), signal.SIGKILL)
            if take(self.folder / "engine"):
                kill_engine()
        return await self.engine.generate(request)


def kill_engine():
    for pid in children_of(os.getpid()):
        if "EngineCore" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("part", ["engine", pytest.param("runner", marks=pytest.mark.long)])
def test_groups_of_a_killed_part_are_drawn_again(runners, folder, part):
    num_restarts = runners.counts["num_env_runner_restarts"]
    (folder / part).touch()
    groups, report = runners.sample([GroupRequest(place, 3) for place in range(4)])
    seconds_until_gone(map(int, (folder / "pids").read_text().split()), LIMIT_S)
    assert [group.group_id for group in ray.get(groups)] == [0, 1, 2, 3]
    assert report.adapter_versions == (0, 0, 0, 0) and len(report.records) == 12
    assert runners.counts == {"num_env_runner_restarts": num_restarts + 1}


@pytest.fixture
def driven(folder):
    """Where a training command works, whose processes have this folder in their environment."""
    path = folder / "driven"
    path.mkdir()
    return path


@contextmanager
def training(driven, *arguments):
    """The training command, once it has written a checkpoint."""
    command = [sys.executable, str(ROOT / "launch" / "train.py"), *arguments]
    environment, known = {**os.environ, "AGENTPEFT_CACHE": str(driven)}, checkpoints_in(driven)
    with (driven / "log").open("a") as log:
        process = subprocess.Popen(command, cwd=driven, env=environment, stdout=log, stderr=log)
    try:
        while checkpoints_in(driven) <= known:
            assert process.poll() is None, (driven / "log").read_text()[-4000:]
            time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.wait()


def checkpoints_in(driven):
    return {path.name for path in driven.glob("outputs/*/*/checkpoints/checkpoint-*")}


@pytest.mark.long
def test_a_killed_driver_or_raylet_leaves_nothing_and_the_run_goes_on(driven):
    with training(driven, "../small.toml") as driver:
        owned = processes_of(driven)
        driver.kill()
        seconds_until_gone(workers_among(owned), LIMIT_S)
    last = max(checkpoints_in(driven))
    (run_dir,) = driven.glob("outputs/*/*")
    with training(driven, "--resume", str(run_dir)) as driver:
        assert max(checkpoints_in(driven)) > last
        owned = processes_of(driven)
        os.kill(next(pid for pid, text in owned.items() if is_raylet(text)), signal.SIGKILL)
        seconds_until_gone(workers_among(owned), LIMIT_S)
        assert driver.wait(300) == 1
    assert "resume the run" in (driven / "log").read_text()


def is_raylet(command):
    return command.partition("\0")[0].endswith("/raylet")


def workers_among(processes):
    """The learner, the env runner, and its engine."""
    names = ("ray::EnvRunnerActor", "ray::LearnerActor", "VLLM")
    found = [pid for pid, command in processes.items() if command.startswith(names)]
    assert len(found) == 3
    return found
