"""How busy are many runners whose episodes differ in length, and how long does the learner wait?

    python benchmarks/simulated_cluster.py                             # 64 runners, virtual time
    python benchmarks/simulated_cluster.py --runners 256 --lags 0 1 2
    python benchmarks/simulated_cluster.py --in-flight --batch 2       # small batches
    python benchmarks/simulated_cluster.py --hosts 4                   # by the clock, on Ray
    python benchmarks/simulated_cluster.py --hosts 0 --runners 4 --groups 16 --mean 0.2

Engines take lognormal lengths of time (sigma 1, cut at 8 medians) instead of decoding, and the
learner takes time instead of learning. `Algorithm`, the queue of groups and the batches are the
service's own. In virtual time nothing waits: a runner is its slots, so the figures are those of the
scheduling alone, the same on every machine. With `--hosts` the runners' own scheduling of episodes,
their environments, the messages and the deliveries are real too, and engines and learner sleep:
runners share that many processes (Ray actors on simulated nodes; one would have 300 MB for each
runner), or with 0 are threads of this one.

One JSON line for each lag. Times are means of the iterations after `--warmup`:

    busy             share of the slots' seconds in which an episode was under way
    learner_idle     share of the time in which the learner does not learn
    iteration_ratio  seconds of an iteration over the larger of learning and sampling: sampling is a
                     batch's episodes at their mean length with all slots busy
    stale_share      groups that were given up as too old, of all
    lag_mean, lag_max
                     versions by which the adapter that sampled is behind the learner, over the
                     seconds of what is learnt from (in virtual time alone)
    cpu              CPU seconds of this process over seconds: of the driver alone with hosts, else
                     of all that is simulated too
    calls_per_group, news_bytes, group_bytes
                     calls of runners and bytes that the driver reads for each group, and the bytes
                     that go to the learner
    dealt            the same of groups that are dealt to the runners up front, with a barrier
                     between rounds, computed for the same lengths
"""

import argparse
import json
import math
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

from agentpeft.policies.loop.algorithm import Algorithm
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "policies"))
import sleeping_runners
from dealt_rounds import deal
from hosted_actors import HostedActors, Hosting
from small_model import SMALL
from virtual_runners import VirtualTime, virtual_kinds

GROUP_SIZE = 8
MEDIAN_TO_MAX = 8.0


class Plan:
    """What the options come to: groups of a batch, and seconds of episodes and of an update."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.num_slots = options.runners * options.slots
        self.num_groups = options.groups or round(options.batch * self.num_slots / GROUP_SIZE)
        unit = sleeping_runners.Simulation(1.0, MEDIAN_TO_MAX, 0.0)
        median_s = options.mean / fmean(unit.length_s((0, i)) for i in range(20_000))
        self.sample_s = self.num_groups * GROUP_SIZE * options.mean / self.num_slots
        self.learn_s = options.learn * self.sample_s
        longest_s = MEDIAN_TO_MAX * median_s
        self.simulation = sleeping_runners.Simulation(median_s, longest_s, self.learn_s)

    def describe(
        self, settings: Settings, rows: list[dict[str, float]], total_s: float, busy_s: float
    ) -> dict[str, Any]:
        """Returns what iterations came to that took `total_s`."""
        options, iteration_s = self.options, total_s / len(rows)
        num_stale = sum(row["sample/num_stale_groups"] for row in rows)
        num_rounds = options.warmup + options.iterations
        return {
            "benchmark": "simulated_cluster",
            "num_runners": options.runners,
            "num_slots": self.num_slots,
            "num_groups": self.num_groups,
            "lag": settings.max_adapter_lag,
            "in_flight": settings.in_flight_updates,
            "mean_episode_s": options.mean,
            "learn_s": round(self.learn_s, 3),
            "sample_s": round(self.sample_s, 3),
            "iteration_s": round(iteration_s, 3),
            "busy": round(busy_s / (self.num_slots * total_s), 3),
            "learner_idle": round(1 - self.learn_s / iteration_s, 3),
            "iteration_ratio": round(iteration_s / max(self.learn_s, self.sample_s), 3),
            "stale_share": round(num_stale / (num_stale + self.num_groups * len(rows)), 4),
            "episodes_per_s": round(self.num_groups * GROUP_SIZE / iteration_s, 2),
            "dealt": deal(settings, self.simulation, num_rounds, options.warmup),
        }


def make_settings(options: argparse.Namespace, num_groups: int, lag: int) -> Settings:
    """Returns the settings of a simulated run."""
    words = (
        *SMALL,
        "lora.rank=2",
        f"env_runners.num_env_runners={options.runners}",
        f"env_runners.max_concurrent_episodes={options.slots}",
        "env_runners.max_new_tokens=4",
        "num_threads=1",
        "env_runners.episode_timeout_s=3600",
        f"training.num_groups={num_groups}",
        f"training.group_size={GROUP_SIZE}",
        "training.algorithm=reinforce",
        "evaluation.num_tasks=0",
        "output.loggers=[]",
        "fault_tolerance.probe_interval=0",
        f"max_adapter_lag={lag}",
        f"in_flight_updates={str(options.in_flight and lag > 0).lower()}",
    )
    return Settings(**with_overrides({}, words))


def read_counts(runners: HostedActors) -> Any:
    """Returns the sums of all runners' counts."""
    asked = [runners.call_named(i, "read_counts") for i in range(runners.num_actors)]
    return np.sum(runners.fetch(asked), axis=0)


def run_virtually(options: argparse.Namespace, lag: int) -> dict[str, Any]:
    """Plays a run in virtual time, and returns what was counted."""
    plan = Plan(options)
    time_, simulation = VirtualTime(), plan.simulation
    settings = make_settings(options, plan.num_groups, lag)
    runner, learner, runners, learners = virtual_kinds(time_, simulation)
    rows = []
    with (
        TemporaryDirectory() as folder,
        Algorithm(
            settings, Path(folder), env_runner_class=runner, learner_class=learner
        ) as algorithm,
    ):
        for iteration in range(options.warmup + options.iterations):
            if iteration == options.warmup:
                start_s, cpu_s = time_.now_s, time.process_time()
                busy_s = sum(each.read_busy_s() for each in runners)
                num_calls = sum(each.num_calls for each in runners)
            rows.append(algorithm.train())
        busy_s = sum(each.read_busy_s() for each in runners) - busy_s
        num_calls = sum(each.num_calls for each in runners) - num_calls
        cpu_s = time.process_time() - cpu_s
    total_s = time_.now_s - start_s
    return {
        **plan.describe(settings, rows[options.warmup :], total_s, busy_s),
        **describe_lags(learners[0].lags, options.warmup),
        "calls_per_group": round(num_calls / (plan.num_groups * options.iterations), 2),
        "cpu": round(cpu_s / total_s, 4),
        "time": "virtual",
    }


def describe_lags(lags: list[tuple[int, int, float]], first_version: int) -> dict[str, float]:
    """Returns how far behind the learner the adapters were that sampled what it learnt from."""
    counted = [(lag, seconds) for version, lag, seconds in lags if version >= first_version]
    total_s = sum(seconds for _, seconds in counted)
    return {
        "lag_mean": round(sum(lag * seconds for lag, seconds in counted) / total_s, 2),
        "lag_max": max(lag for lag, _ in counted),
    }


def run(options: argparse.Namespace, lag: int, hosting: Hosting) -> dict[str, Any]:
    """Plays a run, and returns what was measured."""
    plan = Plan(options)
    # All of them on Ray or none, since the driver waits for runners and learner at once.
    learner_hosting = Hosting(1 if options.hosts else None)
    kinds = sleeping_runners.sleeping_kinds(plan.simulation, hosting, learner_hosting)
    settings = make_settings(options, plan.num_groups, lag)
    HostedActors.started.clear()
    rows, num_all = [], options.warmup + options.iterations
    with (
        TemporaryDirectory() as folder,
        Algorithm(
            settings, Path(folder), env_runner_class=kinds[0], learner_class=kinds[1]
        ) as algorithm,
    ):
        runners = next(each for each in HostedActors.started if each.num_actors == options.runners)
        for iteration in range(num_all):
            if iteration == options.warmup:
                before, start_s, start_cpu_s = (
                    read_counts(runners),
                    time.monotonic(),
                    time.process_time(),
                )
            rows.append(algorithm.train())
            print(f"iteration {iteration + 1} of {num_all}", file=sys.stderr, flush=True)
        total_s, cpu_s = time.monotonic() - start_s, time.process_time() - start_cpu_s
        busy_s, num_calls, news, sent, played = read_counts(runners) - before
    return {
        **plan.describe(settings, rows[options.warmup :], total_s, busy_s),
        "calls_per_group": round(num_calls / played, 2),
        "cpu": round(cpu_s / total_s, 4),
        "news_bytes": round(news / played),
        "group_bytes": round(sent / played),
        "time": "of the clock",
        "nodes": options.nodes if options.hosts else 1,
        "hosts": options.hosts,
    }


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runners", type=int, default=64)
    parser.add_argument("--slots", type=int, default=8, help="episodes that a runner plays at once")
    parser.add_argument(
        "--batch", type=float, default=8.0, help="a batch's episodes over all slots"
    )
    parser.add_argument("--groups", type=int, default=0, help="groups of a batch, in its place")
    parser.add_argument("--mean", type=float, default=4.0, help="mean seconds of an episode")
    parser.add_argument("--learn", type=float, default=0.5, help="learning over sampling")
    parser.add_argument("--lags", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--in-flight", action="store_true", help="in_flight_updates, where there is a lag"
    )
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=4, help="simulated nodes")
    parser.add_argument("--hosts", type=int, help="processes; 0: threads of this one")
    options = parser.parse_args()
    with ExitStack() as stack:
        hosting = Hosting()
        if options.hosts:
            stack.enter_context(simulated_nodes(options.nodes))
            hosting = Hosting(math.ceil(options.runners / options.hosts))
        for lag in options.lags:
            is_virtual = options.hosts is None
            row = run_virtually(options, lag) if is_virtual else run(options, lag, hosting)
            print(json.dumps(row), flush=True)


def simulated_nodes(num_nodes: int) -> ExitStack:
    """Returns a cluster of several nodes, to be closed."""
    stack = ExitStack()
    head = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    stack.callback(cluster.shutdown)
    for _ in range(num_nodes - 1):
        cluster.add_node(num_cpus=1)
    tests = str(Path(sleeping_runners.__file__).parent)
    paths = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    workers = {"env_vars": {"PYTHONPATH": paths}}
    ray.init(cluster.address, log_to_driver=False, runtime_env=workers)
    stack.callback(ray.shutdown)
    return stack


if __name__ == "__main__":
    main()
