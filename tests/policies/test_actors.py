"""Runners and learner as Ray actors on two CPUs, and in one process by the same methods."""

import ctypes
import os
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import ray
from process_parts import wait_until
from small_model import SMALL

from agentpeft.envs import SettingsError
from agentpeft.policies.delivery.deliver import Shipment, send_and_prove
from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.errors import (
    DeliveryError,
    PlacementError,
    TrainingError,
    WorkerLostError,
)
from agentpeft.policies.messages import AdapterAck
from agentpeft.policies.rollout.groups import GroupRequest, SampleReport
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides
from agentpeft.policies.workers.learner_group import LearnerActor, LearnerGroup
from agentpeft.policies.workers.runner_group import EnvRunnerActor, EnvRunnerGroup

TINY = (
    *SMALL,
    "lora.rank=2",
    "training.algorithm=reinforce",
    "env_runners.max_new_tokens=4",
    "num_threads=1",
)
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import it
REQUESTS = [GroupRequest(position, 2) for position in range(5)]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster")]


def make_settings(*overrides):
    return Settings(**with_overrides({}, (*TINY, *overrides)))


@pytest.fixture
def start():
    """Returns groups that are closed at the end."""
    started = []

    def make(kind, settings):
        started.append(kind(settings))
        return started[-1]

    yield make
    for group in started:
        group.close()


def test_three_runners_and_a_learner_start_on_two_cpus_and_train(start):
    settings = make_settings("env_runners.num_env_runners=3")
    learner, runners = start(LearnerGroup, settings), start(EnvRunnerGroup, settings)
    assert send_and_prove(learner.pack_adapter(), runners)["probe_mean"] < 1e-5
    groups, report = runners.sample(REQUESTS)
    assert all(isinstance(group, ray.ObjectRef) for group in groups)
    assert [group.group_id for group in ray.get(groups)] == [0, 1, 2, 3, 4]
    assert report.adapter_versions == (0, 0, 0, 0, 0)
    assert [(r.group_id, r.sample) for r in report.records[:3]] == [(0, 0), (0, 1), (1, 0)]
    assert learner.receive(groups) == []
    assert learner.update()["train/num_tokens"] == report.counts.num_sampled_tokens
    send_and_prove(learner.pack_adapter(), runners)
    played = []
    runners.ask(played.append, REQUESTS)  # overlaps with the update
    learner.receive(groups)
    learner.update()
    while len(played) < len(REQUESTS):
        runners.play()
    assert SampleReport(played).adapter_versions == (1, 1, 1, 1, 1)


@pytest.mark.long
def test_one_process_plays_what_actors_play(start):
    tokens = []
    for num_runners in (0, 2):
        settings = make_settings(f"env_runners.num_env_runners={num_runners}")
        learner, runners = start(LearnerGroup, settings), start(EnvRunnerGroup, settings)
        send_and_prove(learner.pack_adapter(), runners)
        groups, _ = runners.sample(REQUESTS)
        found = groups if num_runners == 0 else ray.get(groups)
        tokens.append([t.token_ids.tolist() for g in found for t in g.trajectories])
        learner.close()
        runners.close()
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("num_runners", [0, 1])
def test_a_damaged_adapter_is_not_acknowledged(start, num_runners):
    settings = make_settings(f"env_runners.num_env_runners={num_runners}")
    runners = start(EnvRunnerGroup, settings)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    weights = {
        name.format("A"): np.ones((2, 32), np.float32),
        name.format("B"): np.ones((32, 2), np.float32),
    }
    sent = make_version(3, "run", weights, 1.0)
    receipt = AdapterAck(3, sent.sha256)
    damaged = replace(sent, weights={**weights, name.format("A"): weights[name.format("A")] * 2})
    adapters = [sent, damaged] if num_runners == 0 else [ray.put(sent), ray.put(damaged)]
    assert send_and_prove(Shipment(adapters[0], receipt, None), runners) == {}
    with pytest.raises(DeliveryError, match="begun anew: adapter 3 arrived damaged"):
        send_and_prove(Shipment(adapters[1], receipt, None), runners)
    assert runners.counts["num_env_runner_restarts"] == 1


def wait_for_free_cpus(num_cpus):
    """Ray takes a moment to see that what held them has gone."""
    return wait_until(lambda: ray.available_resources().get("CPU") == num_cpus, 30)


def test_what_cannot_be_placed_fails_in_time_with_both_numbers():
    settings = make_settings(
        "env_runners.num_env_runners=3",
        "num_cpus_per_process=1.5",
        "fault_tolerance.placement_timeout_s=1",
    )
    assert wait_for_free_cpus(2)
    start_s = time.monotonic()
    with pytest.raises(PlacementError, match=r"3 times 1.5 CPU \(the cluster has 2, free 2\)"):
        EnvRunnerGroup(settings)
    assert time.monotonic() - start_s < 5
    assert wait_for_free_cpus(2)


class StartingRunner(EnvRunnerActor):
    """Answers nobody for a while, and is gone then if `max_num_restarts` is 9."""

    def make(self, settings):
        ctypes.PyDLL(None).usleep(3_000_000)  # holds the interpreter, as an import may
        if settings.fault_tolerance.max_num_restarts == 9:
            os._exit(1)
        super().make(settings)


@pytest.mark.parametrize(
    ("setting", "kind", "expected"),
    [
        ("environment.kwargs.num_digitss=3", SettingsError, "num_digitss"),
        ("fault_tolerance.max_num_restarts=9", WorkerLostError, "a process of the env runners is"),
    ],
)
def test_an_error_while_an_actor_starts_is_its_own(start, setting, kind, expected):
    settings = make_settings(setting, "env_runners.num_env_runners=1")
    runners = start(partial(EnvRunnerGroup, kind=StartingRunner), settings)
    for _ in range(2):  # nor does a later call find an actor
        with pytest.raises(kind, match=expected) as raised:
            runners.sample(REQUESTS)
        assert "\n" not in str(raised.value)
    assert not runners.counts


def test_an_actor_that_starts_need_not_answer_pings(start):
    short = "fault_tolerance.env_runner_health_probe_timeout_s=0.2"
    settings = make_settings(short, "env_runners.num_env_runners=1")
    actors = start(partial(EnvRunnerGroup, kind=StartingRunner), settings).actors
    until_s = time.monotonic() + 2
    while time.monotonic() < until_s:
        actors.wait([ray.put(None)], timeout_s=0.1)
        time.sleep(0.1)
    actors.call(0, StartingRunner.ping)


class TroubledLearner(LearnerActor):
    """Fails when it is asked to, and says where it is."""

    def fail(self):
        raise ZeroDivisionError(f"of learner {self.learner.version}")

    def find_pid(self):
        return os.getpid()


def test_an_error_in_a_call_is_its_own_and_the_learner_lives_on(start):
    learner = start(partial(LearnerGroup, kind=TroubledLearner), make_settings())
    with pytest.raises(ZeroDivisionError, match="of learner 0"):
        learner.call(TroubledLearner.fail)
    assert learner.call(TroubledLearner.find_pid) != os.getpid()


def test_a_killed_actor_is_one_clear_error_within_seconds(start):
    learner = start(partial(LearnerGroup, kind=TroubledLearner), make_settings())
    pid = learner.call(TroubledLearner.find_pid)
    command = Path(f"/proc/{pid}/cmdline").read_text()
    os.kill(pid, signal.SIGKILL)
    start_s = time.monotonic()
    with pytest.raises(TrainingError, match="the learner is gone"):
        learner.call(TroubledLearner.find_pid)
    assert time.monotonic() - start_s < 10
    assert command.startswith("ray::TroubledLearner")  # by its class it is told from the others
