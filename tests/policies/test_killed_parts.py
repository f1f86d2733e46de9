"""Processes that are killed or hang, on a small cluster: a run goes on as if nothing had been."""

import json
import os
import signal
import sys
import time
from hashlib import sha256

import pytest
import ray
from small_model import TWO_RUNNERS

from agentpeft.policies.algorithm import Algorithm
from agentpeft.policies.delivery.version import ack_of
from agentpeft.policies.errors import TrainingError
from agentpeft.policies.rollout.env_runner import GroupRequest
from agentpeft.policies.settings.config import Settings, with_overrides
from agentpeft.policies.workers.actors import EnvRunnerGroup, LearnerGroup
from agentpeft.policies.workers.workers import WorkerSpec, start_workers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster(num_gpus=1),  # in name
    pytest.mark.usefixtures("nothing_left", "cluster"),
]

NUM_ITERATIONS = 3
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it


def make_settings(*overrides):
    return Settings(**with_overrides({}, (*TWO_RUNNERS, *overrides)))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The result of a run to which nothing happens."""
    with Algorithm(make_settings(), tmp_path_factory.mktemp("undisturbed")) as algorithm:
        return finish(algorithm)


def finish(algorithm):
    """Trains to the end; returns the adapter's hash, the episodes, and the last metrics."""
    metrics = {}
    while algorithm.iteration < NUM_ITERATIONS:
        metrics = algorithm.train()
    adapter = algorithm.save_to_path() / "adapter" / "adapter_model.safetensors"
    lines = (algorithm.run_dir / "sessions" / "train.jsonl").read_text().splitlines()
    return sha256(adapter.read_bytes()).hexdigest(), list(map(json.loads, lines)), metrics


def kill_while_sampling(runner):
    generate, num_calls = runner._engine.generate, []

    async def generate_or_die(request):
        num_calls.append(1)
        if len(num_calls) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return await generate(request)

    runner._engine.generate = generate_or_die


def test_rounds_that_a_killed_runner_owed_are_all_played(tmp_path):
    settings = make_settings("deterministic=false", "max_adapter_lag=1")
    with Algorithm(settings, tmp_path) as algorithm:
        algorithm._runners._workers.call(1, kill_while_sampling)
        metrics = [algorithm.train() for _ in range(3)]
    assert [m["sample/num_episodes"] for m in metrics] == [12, 12, 12]
    assert [m["sample/num_stale_groups"] for m in metrics] == [0, 0, 0]
    assert metrics[-1]["fault/num_env_runner_restarts"] == 1


def kill_at_update(learner):
    learner.update = lambda groups: os.kill(os.getpid(), signal.SIGKILL)


def test_a_runner_killed_while_sampling_changes_nothing(tmp_path, undisturbed):
    with Algorithm(make_settings(), tmp_path) as algorithm:
        algorithm.train()
        algorithm._runners._workers.call(1, kill_while_sampling)
        adapter, episodes, metrics = finish(algorithm)
    assert (adapter, episodes) == undisturbed[:2]
    assert metrics["fault/num_env_runner_restarts"] == 1
    assert metrics["delivery/canary"] == pytest.approx(1)


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_killed_learner_goes_back_to_the_last_checkpoint(tmp_path, undisturbed, has_checkpoint):
    with Algorithm(make_settings(), tmp_path) as algorithm:
        algorithm.train()
        if has_checkpoint:
            algorithm.save_to_path()
        algorithm._learners.call(kill_at_update)
        metrics = algorithm.train()
        assert metrics["train/step"] == (2 if has_checkpoint else 1)
        adapter, episodes, metrics = finish(algorithm)
    assert (adapter, episodes) == undisturbed[:2]
    assert metrics["fault/num_learner_restarts"] == 1


def test_a_learner_that_dies_too_often_ends_the_run(tmp_path):
    settings = make_settings("fault_tolerance.max_num_learner_restarts=0")
    with Algorithm(settings, tmp_path) as algorithm:
        algorithm._learners.call(kill_at_update)
        with pytest.raises(TrainingError, match="max_num_learner_restarts 0 is reached"):
            algorithm.train()


def skip_deliveries(runner):
    def acknowledge(adapter):
        runner._engine._version = adapter.version
        return ack_of(adapter)

    runner._engine.load_adapter = acknowledge


def test_one_of_two_runners_that_skips_a_delivery_is_replaced(tmp_path):
    with Algorithm(make_settings(), tmp_path) as algorithm:
        algorithm._runners._workers.call(1, skip_deliveries)
        metrics = [algorithm.train(), algorithm.train()]
    assert [m["fault/num_failed_deliveries"] for m in metrics] == [1, 1]
    assert [m["fault/num_env_runner_restarts"] for m in metrics] == [1, 1]
    assert metrics[1]["train/mismatch_max"] < 1e-5
    assert metrics[1]["sample/num_episodes"] == 12


def hang(runner):
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_runner_that_hangs_is_replaced_in_time():
    settings = make_settings("fault_tolerance.env_runner_health_probe_timeout_s=1")
    learner, runners = LearnerGroup(settings), EnvRunnerGroup(settings)
    runners.load_adapter(learner.adapter())
    runners._workers.call(0, hang)
    start_s = time.monotonic()
    _, report = runners.sample([GroupRequest(position, 2) for position in range(3)]).result()
    assert report.adapter_versions == (0, 0, 0)
    assert runners.counts == {"num_env_runner_restarts": 1}
    assert time.monotonic() - start_s < 60
    for group in (learner, runners):
        group.close()


def see_gpus(_settings):
    return os.environ["CUDA_VISIBLE_DEVICES"]


def test_a_learner_and_a_runner_share_a_gpu_by_fractions():
    settings = make_settings()
    jobs = [
        WorkerSpec(name, 1, 0.1, 0.5, 1, see_gpus) for name in ("the learner", "the env runners")
    ]
    started = [start_workers(job, settings) for job in jobs]
    seen = [workers.fetch([workers.call(0, str)])[0] for workers in started]
    assert seen == ["0", "0"]
    for workers in started:
        workers.close()
