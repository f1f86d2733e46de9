"""Nodes that are drained and nodes that are added while a run goes on, on a real cluster."""

import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import ray
from process_parts import wait_until
from ray.cluster_utils import Cluster
from small_model import TWO_RUNNERS

from agentpeft.policies.loop.algorithm import Algorithm
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides
from agentpeft.policies.workers.runner_group import EnvRunnerActor

ONE_EACH = ("num_cpus_per_process=0.9",)
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import it


def make_settings(*overrides):
    return Settings(**with_overrides({}, (*TWO_RUNNERS, *overrides)))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A head without CPUs, and three nodes with one each, of which the first test exchanges one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTPEFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        head = {"num_cpus": 0, "include_dashboard": False}
        made = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(3):
            made.add_node(num_cpus=1)
        ray.init(made.address, log_to_driver=False)
        yield made
        ray.shutdown()
        made.shutdown()


def located_runner(folder):
    class LocatedRunner(EnvRunnerActor):
        """Notes on which node it plays, under each group that it is handed."""

        def take(self, requests):
            for request in requests:
                node = ray.get_runtime_context().get_node_id()
                (folder / f"node-{request.group_id}").write_text(node)
            super().take(requests)

    return LocatedRunner


def drain(cluster, node):
    command = Path(sys.executable).with_name("ray")
    why = ("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "the spot's end")
    where = ("--address", cluster.address, "--node-id", node)
    subprocess.run(
        [command, "drain-node", *where, *why, "--deadline-remaining-seconds", "600"], check=True
    )


def adapter_of(algorithm):
    return sha256(
        (algorithm.save_to_path() / "adapter" / "adapter_model.safetensors").read_bytes()
    ).hexdigest()


def test_a_drained_node_gets_no_more_work_and_a_new_one_is_used(cluster, tmp_path, caplog):
    def nodes_of(iteration):
        """Where the four groups of an iteration were played."""
        positions = range(4 * iteration, 4 * iteration + 4)
        return [(tmp_path / f"node-{position}").read_text() for position in positions]

    located = located_runner(tmp_path)
    with Algorithm(
        make_settings(*ONE_EACH), tmp_path / "two", env_runner_class=located
    ) as algorithm:
        algorithm.train()
        staying, drained = nodes_of(0)[:2]
        assert staying != drained
        drain(cluster, drained)
        algorithm.train()  # the delivery at its end finds the node drained
        metrics = algorithm.train()
        assert set(nodes_of(2)) == {staying}
        assert metrics["fault/num_drained_env_runners"] == 1
        (gone,) = (node for node in cluster.worker_nodes if node.node_id == drained)
        cluster.remove_node(gone, allow_graceful=False)
        added = cluster.add_node(num_cpus=1).node_id
        assert wait_until(lambda: algorithm.train()["fault/num_joined_env_runners"] == 1, 60)
        metrics = algorithm.train()
        assert set(nodes_of(algorithm.iteration - 1)) == {staying, added}
        assert metrics["fault/num_env_runner_restarts"] == 0
        assert metrics["fault/num_redrawn_groups"] == 0
        disturbed, num_iterations = adapter_of(algorithm), algorithm.iteration
    with Algorithm(make_settings("env_runners.num_env_runners=0"), tmp_path / "one") as algorithm:
        for _ in range(num_iterations):
            algorithm.train()
        assert adapter_of(algorithm) == disturbed
    assert "env runner 1 gets no more work: its node is drained" in caplog.text
    assert "env runner 1 has a place again, and plays with the others" in caplog.text
