"""Processes that are killed or hang, on a small cluster: a run goes on as if nothing had been."""

import json
import os
import signal
import sys
import time
from hashlib import sha256

import faulty_parts
import pytest
import ray
from faulty_parts import EngineAround, SignalledEngine, runner_with, take
from small_model import TWO_RUNNERS

from agentpeft.policies.delivery.deliver import send_and_prove
from agentpeft.policies.delivery.version import ack_of
from agentpeft.policies.errors import TrainingError, WorkerLostError
from agentpeft.policies.loop.algorithm import Algorithm
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides
from agentpeft.policies.workers.actors import Actor, ActorSpec
from agentpeft.policies.workers.learner_group import LearnerActor, LearnerGroup
from agentpeft.policies.workers.runner_group import EnvRunnerGroup

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster(num_gpus=1),  # in name
    pytest.mark.usefixtures("nothing_left", "cluster"),
]

NUM_ITERATIONS = 3
for module in (faulty_parts, sys.modules[__name__]):  # actors cannot import them
    ray.cloudpickle.register_pickle_by_value(module)


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


@pytest.fixture
def fault(tmp_path):
    """The file that a process commits its fault by; a test puts it there."""
    return tmp_path / "fault"


def killed_while_sampling(fault):
    return runner_with(lambda engine: SignalledEngine(engine, fault, signal.SIGKILL, at=3))


@pytest.mark.long
@pytest.mark.parametrize("in_flight", ["false", "true"])
def test_rounds_that_a_killed_runner_owed_are_all_played(tmp_path, fault, in_flight):
    lag = "max_adapter_lag=1", f"in_flight_updates={in_flight}"
    settings = make_settings("deterministic=false", *lag)
    kind = killed_while_sampling(fault)
    with Algorithm(settings, tmp_path, env_runner_class=kind) as algorithm:
        fault.touch()
        metrics = [algorithm.train() for _ in range(3)]
    assert [m["sample/num_episodes"] for m in metrics] == [12, 12, 12]
    assert [m["sample/num_stale_groups"] for m in metrics] == [0, 0, 0]
    assert metrics[-1]["fault/num_env_runner_restarts"] == 1


def killed_at_update(fault):
    """Returns a class of learners of which one is killed as it begins an update."""

    class KilledLearner(LearnerActor):
        def update(self):
            if take(fault):
                os.kill(os.getpid(), signal.SIGKILL)
            return super().update()

    return KilledLearner


class SkippingEngine(EngineAround):
    """Acknowledges one delivery without loading it."""

    def __init__(self, engine, fault):
        super().__init__(engine)
        self.fault = fault

    def load_adapter(self, adapter):
        return ack_of(adapter) if take(self.fault) else self.engine.load_adapter(adapter)


def test_a_skipped_delivery_a_killed_runner_and_a_killed_learner_change_nothing(
    tmp_path, undisturbed
):
    skipped, killed, killed_learner = (tmp_path / name for name in ("skip", "kill", "learner"))

    def around(engine):
        return SkippingEngine(SignalledEngine(engine, killed, signal.SIGKILL, at=3), skipped)

    kinds = {
        "env_runner_class": runner_with(around),
        "learner_class": killed_at_update(killed_learner),
    }
    with Algorithm(make_settings(), tmp_path, **kinds) as algorithm:
        skipped.touch()
        metrics = algorithm.train()
        assert metrics["fault/num_failed_deliveries"] == 1
        assert metrics["fault/num_env_runner_restarts"] == 1
        killed.touch()
        metrics = algorithm.train()
        assert metrics["fault/num_env_runner_restarts"] == 2
        assert metrics["train/mismatch_max"] < 1e-5
        algorithm.save_to_path()
        killed_learner.touch()
        metrics = algorithm.train()
        assert metrics["train/step"] == NUM_ITERATIONS  # from the checkpoint
        adapter, episodes, _ = finish(algorithm)
    assert (adapter, episodes) == undisturbed[:2]
    assert metrics["fault/num_learner_restarts"] == 1
    assert metrics["delivery/canary"] == pytest.approx(1)


@pytest.mark.long
def test_without_a_checkpoint_a_killed_learner_begins_the_run_again(tmp_path, undisturbed, fault):
    kind = killed_at_update(fault)
    with Algorithm(make_settings(), tmp_path, learner_class=kind) as algorithm:
        algorithm.train()
        fault.touch()
        assert algorithm.train()["train/step"] == 1
        adapter, episodes, metrics = finish(algorithm)
    assert (adapter, episodes) == undisturbed[:2]
    assert metrics["fault/num_learner_restarts"] == 1


@pytest.mark.long
def test_a_learner_that_dies_too_often_ends_the_run(tmp_path, fault):
    settings = make_settings("fault_tolerance.max_num_restarts=0")
    with Algorithm(settings, tmp_path, learner_class=killed_at_update(fault)) as algorithm:
        fault.touch()
        with pytest.raises(TrainingError, match="after 0 restarts of the learners"):
            algorithm.train()


@pytest.mark.parametrize("has_checkpoint", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_learner_that_dies_while_it_saves_ends_the_run_and_says_what_to_do(
    tmp_path, fault, has_checkpoint
):
    class KilledAtFiles(LearnerActor):
        def to_files(self):
            if take(fault):
                os.kill(os.getpid(), signal.SIGKILL)
            return super().to_files()

    with Algorithm(make_settings(), tmp_path, learner_class=KilledAtFiles) as algorithm:
        algorithm.train()
        if has_checkpoint:
            algorithm.save_to_path()
        fault.touch()
        with pytest.raises(WorkerLostError, match="the learner is gone") as raised:
            algorithm.save_to_path()
    assert str(raised.value).endswith(": resume the run") == has_checkpoint
    assert len(list(tmp_path.glob("checkpoints/*"))) == has_checkpoint


def test_a_runner_that_hangs_is_replaced_in_time(fault):
    settings = make_settings("fault_tolerance.env_runner_health_probe_timeout_s=1")
    kind = runner_with(lambda engine: SignalledEngine(engine, fault, signal.SIGSTOP, at=1))
    learner, runners = LearnerGroup(settings), EnvRunnerGroup(settings, kind=kind)
    send_and_prove(learner.pack_adapter(), runners)
    fault.touch()
    start_s = time.monotonic()
    _, report = runners.sample([GroupRequest(position, 2) for position in range(3)])
    assert report.adapter_versions == (0, 0, 0)
    assert runners.counts == {"num_env_runner_restarts": 1}
    assert time.monotonic() - start_s < 60
    for group in (learner, runners):
        group.close()


class Onlooker(Actor):
    """Says which GPUs it may use."""

    def make(self, settings):
        self.gpus = os.environ["CUDA_VISIBLE_DEVICES"]

    def see_gpus(self):
        return self.gpus


@pytest.mark.long
def test_a_learner_and_a_runner_share_a_gpu_by_fractions():
    settings = make_settings()
    names = ("the learner", "the env runners")
    started = [
        Onlooker.start_all(ActorSpec(name, Onlooker, 1, 0.1, 0.5, 1), settings) for name in names
    ]
    seen = [actors.fetch([actors.call(0, Onlooker.see_gpus)])[0] for actors in started]
    assert seen == ["0", "0"]
    for actors in started:
        actors.close()
