"""Does a run lose anything on machines that share no disk, while they go and come?

    python benchmarks/changing_cluster.py                       # the quickstart, about 20 minutes
    python benchmarks/changing_cluster.py training.num_iterations=16

Four simulated nodes of one CPU each: bubblewrap gives each a home and a cache of its own, and hides
the folder of the driver's. The training command runs on them with a learner and three runners. In
the course of the run a node with a runner is killed, one is added, another is drained and then
ends, and one more is added. Then the same run is played undisturbed in one process. One JSON line:
what was counted, success before and after, and whether both have the same adapter, bit by bit.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
from ray._private.state import actors
from ray.cluster_utils import Cluster

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
RUNNERS = ("env_runners.num_env_runners=3", "num_cpus_per_process=1")
SHARED = ("deterministic=true", "num_threads=1", "output.loggers=['episodes']")
CHECKS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
}
"""Ray's own take half a minute to find that a node is gone."""
PARTS = {"killed": 0.1, "added": 0.2, "drained": 0.4, "ended": 0.5, "added again": 0.6}
"""After which part of the iterations what happens."""


class Nodes:
    """The simulated nodes of a cluster, by their ids."""

    def __init__(self, address: str, folder: Path, hidden: Path) -> None:
        """Starts four; `hidden` is what none of them sees."""
        self._address, self._folder, self._hidden = address, folder, hidden
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for _ in range(4):
            self.add()

    def add(self) -> str:
        """Starts a node and returns its id once the cluster has it."""
        before = {node["NodeID"] for node in ray.nodes()}
        own = self._folder / f"node-{len(before)}"
        own.mkdir()
        files = ("--dev-bind", "/", "/", "--tmpfs", str(self._hidden), "--chdir", str(own))
        variables = ("--setenv", "HOME", str(own), "--setenv", "AGENTPEFT_CACHE", str(own / "c"))
        ends = ("--unshare-pid", "--proc", "/proc", "--die-with-parent")
        start = (str(BIN / "ray"), "start", f"--address={self._address}", "--num-cpus=1", "--block")
        process = subprocess.Popen(
            ["bwrap", *files, *variables, *ends, *start],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not (new := {node["NodeID"] for node in ray.nodes()} - before):
            time.sleep(0.2)
        (node,) = new
        self._processes[node] = process
        return str(node)

    def of_a_runner(self, drained: str | None = None) -> str:
        """Returns a node on which a runner plays, and the learner does not work."""
        alive = [actor for actor in actors().values() if actor["State"] == "ALIVE"]
        found = {kind: set[str]() for kind in ("EnvRunnerActor", "LearnerActor")}
        for actor in alive:
            found.setdefault(actor["ActorClassName"], set()).add(actor["Address"]["NodeID"])
        free = found["EnvRunnerActor"] - found["LearnerActor"] - {drained}
        return min(free)

    def drain(self, node: str) -> None:
        """Tells Ray that a node will end in ten minutes."""
        where = ("--address", self._address, "--node-id", node)
        why = ("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "preempted")
        when = ("--deadline-remaining-seconds", "600")
        subprocess.run([BIN / "ray", "drain-node", *where, *why, *when], check=True)

    def kill(self, node: str) -> None:
        """Ends all processes of a node at once."""
        process = self._processes.pop(node)
        process.kill()
        process.wait()

    def close(self) -> None:
        """Ends all nodes."""
        for node in list(self._processes):
            self.kill(node)


def read_rows(home: Path) -> list[dict[str, Any]]:
    """Returns the metrics of the one run below a folder, as far as it is."""
    return [
        json.loads(line)
        for path in home.rglob("metrics.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def disturb(nodes: Nodes, process: "subprocess.Popen[str]", home: Path, total: int) -> None:
    """Does to the nodes what `PARTS` says while the run goes on."""
    drained = None
    for what, part in PARTS.items():
        while process.poll() is None and len(read_rows(home)) <= part * total:
            time.sleep(0.5)
        print(f"{what} after {len(read_rows(home)) - 1} iterations", file=sys.stderr, flush=True)
        if what == "killed":
            nodes.kill(nodes.of_a_runner())
        elif what == "drained":
            drained = nodes.of_a_runner()
            nodes.drain(drained)
        elif what == "ended" and drained is not None:
            nodes.kill(drained)
        else:
            nodes.add()


def start(home: Path, words: list[str], address: str | None) -> "subprocess.Popen[str]":
    """Starts the training command with a home and a cache of its own."""
    home.mkdir(exist_ok=True)
    own = {
        "HOME": str(home),
        "AGENTPEFT_CACHE": str(home.parent / "cache"),
        "RAY_ADDRESS": address or "local",
    }
    return subprocess.Popen(
        [sys.executable, str(ROOT / "launch/train.py"), *words],
        cwd=home,
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]", home: Path) -> tuple[dict[str, Any], str]:
    """Returns a run's summary, and its adapter's hash."""
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"the run in {home} has failed")
    summary = json.loads(output.splitlines()[-1])
    adapter = home / summary["adapter"] / "adapter_model.safetensors"
    return summary, sha256(adapter.read_bytes()).hexdigest()


def main() -> None:
    """Runs both and prints the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", default="quickstart")
    parser.add_argument("overrides", nargs="*", default=["training.num_iterations=40"])
    options = parser.parse_args()
    given = dict(word.split("=", 1) for word in options.overrides)
    total = int(given.setdefault("training.num_iterations", "40"))
    words = [options.config, *SHARED, *(f"{n}={v}" for n, v in given.items())]
    os.environ["RAY_AUTH_MODE"] = "disabled"
    with TemporaryDirectory() as name:
        folder, hidden = Path(name), Path(name) / "driver"
        hidden.mkdir()
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": CHECKS}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(cluster.address, log_to_driver=False)
        nodes = Nodes(cluster.address, folder, hidden)
        try:
            begin_s = time.monotonic()
            process = start(hidden / "spread", [*words, *RUNNERS], cluster.address)
            disturb(nodes, process, hidden / "spread", total)
            spread, adapter = finish(process, hidden / "spread")
            spread_s = time.monotonic() - begin_s
            rows = read_rows(hidden / "spread")
        finally:
            nodes.close()
            ray.shutdown()
            cluster.shutdown()
        alone_run = start(hidden / "alone", [*words, "env_runners.num_env_runners=0"], None)
        alone, undisturbed = finish(alone_run, hidden / "alone")
    faults = {name: value for name, value in rows[-2].items() if name.startswith("fault/")}
    result = {
        "benchmark": "changing_cluster",
        "config": options.config,
        "num_iterations": total,
        "before": spread["before"]["success_rate"],
        "after": spread["after"]["success_rate"],
        "after_undisturbed": alone["after"]["success_rate"],
        "num_dropped_groups": sum(row.get("sample/num_dropped_groups") or 0 for row in rows),
        **faults,
        "seconds": round(spread_s),
        "same_adapter": adapter == undisturbed,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
