"""Nodes that are lost and memory that is short, on a real cluster: the run goes on without."""

import sys
from hashlib import sha256
from pathlib import Path

import faulty_parts
import numpy as np
import pytest
import ray
from faulty_parts import take
from ray.cluster_utils import Cluster
from small_model import TWO_RUNNERS

from agentpeft.policies.errors import PlacementError
from agentpeft.policies.loop.algorithm import Algorithm
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides
from agentpeft.policies.workers.learner_group import LearnerGroup
from agentpeft.policies.workers.runner_group import EnvRunnerActor, EnvRunnerGroup

TINY = (
    *TWO_RUNNERS,
    "num_cpus_per_process=0.9",
    "fault_tolerance.placement_timeout_s=5",
    "fault_tolerance.env_runner_health_probe_timeout_s=5",
)
SCRIPTED = ("env_runners.engine=scripted", "training.algorithm=sft", "training.group_size=")
QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 3,
    "max_direct_call_object_size": 64,  # nothing is kept at its owner's
    "memory_monitor_refresh_ms": 250,
}
for module in (faulty_parts, sys.modules[__name__]):  # actors cannot import them
    ray.cloudpickle.register_pickle_by_value(module)


def make_settings(*overrides):
    return Settings(**with_overrides({}, (*TINY, *overrides)))


def memory_bytes():
    """Returns how much memory this machine has, and how much of it is free."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    found = {line.split()[0]: int(line.split()[1]) * 1024 for line in lines}
    return found["MemTotal:"], found["MemAvailable:"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A head without CPUs, and three nodes with one each; 4 GiB may be used from now on."""
    total, available = memory_bytes()
    limit = {"memory_usage_threshold": min((total - available + 4 * 2**30) / total, 0.98)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTPEFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": QUICK | limit}
        made = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(3):
            made.add_node(num_cpus=1)
        ray.init(made.address, log_to_driver=False)
        yield made
        ray.shutdown()
        made.shutdown()


def test_a_runner_that_the_memory_monitor_ends_is_replaced(cluster, tmp_path, caplog):
    fault = tmp_path / "fault"
    fault.touch()

    class GreedyRunner(EnvRunnerActor):
        """Eats all memory instead of playing, once."""

        def take(self, requests):
            eaten = []
            while eaten or take(fault):
                eaten.append(np.ones(2**25))
            super().take(requests)

    settings = make_settings(*SCRIPTED, "env_runners.num_env_runners=1")
    runners = EnvRunnerGroup(settings, kind=GreedyRunner)
    _, report = runners.sample([GroupRequest(0, 2)])
    assert len(report.records) == 2
    assert runners.counts["num_env_runner_restarts"] >= 1
    assert "env runner 0 is begun anew: Ray's memory monitor has ended one of" in caplog.text
    runners.close()


def lose_node(cluster, node_id):
    (node,) = (each for each in cluster.worker_nodes if each.node_id == node_id)
    cluster.remove_node(node, allow_graceful=False)


def train_twice(algorithm):
    """Returns the adapter's hash after two iterations, and the last metrics."""
    algorithm.train()
    metrics = algorithm.train()
    adapter = algorithm.save_to_path() / "adapter" / "adapter_model.safetensors"
    return sha256(adapter.read_bytes()).hexdigest(), metrics


def test_groups_that_go_with_their_node_are_drawn_again_by_the_runner_that_is_left(
    tmp_path, cluster, caplog, monkeypatch
):
    class LocatedRunner(EnvRunnerActor):
        """Notes on which node it plays, under the first of the groups that it is handed."""

        def take(self, requests):
            node = ray.get_runtime_context().get_node_id()
            (tmp_path / f"node-{requests[0].group_id}").write_text(node)
            super().take(requests)

    def node_of(runner):
        return (tmp_path / f"node-{runner}").read_text()

    with Algorithm(make_settings("env_runners.num_env_runners=0"), tmp_path / "one") as algorithm:
        undisturbed, _ = train_twice(algorithm)
    receive = LearnerGroup.receive

    def lose_node_and_receive(learners, groups):
        monkeypatch.setattr(LearnerGroup, "receive", receive)
        lose_node(cluster, node_of(1))
        return receive(learners, groups)

    monkeypatch.setattr(LearnerGroup, "receive", lose_node_and_receive)
    folder = tmp_path / "three"
    with Algorithm(make_settings(), folder, env_runner_class=LocatedRunner) as algorithm:
        adapter, metrics = train_twice(algorithm)
        assert adapter == undisturbed
        assert metrics["fault/num_redrawn_groups"] >= 2
        assert metrics["fault/num_learner_restarts"] == 0
        assert "groups are lost with their node: 2 are played again" in caplog.text
        assert "the run goes on with 1 of 2 env runners: Ray could not place" in caplog.text
        lose_node(cluster, node_of(0))
        with pytest.raises(PlacementError, match=r"the env runners within 5 s: .*the cluster has"):
            algorithm.train()
