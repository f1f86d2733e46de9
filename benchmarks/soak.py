"""Does anything grow, or stay behind, where every tenth episode is an attack?

    python benchmarks/soak.py --env db_bench --backend sqlite --num-episodes 20000
    python benchmarks/soak.py --env db_bench --backend mysql --num-episodes 20000
    python benchmarks/soak.py --env os --backend bubblewrap --num-episodes 3000
    python benchmarks/soak.py --env os --backend docker --num-episodes 500 --output FOLDER

Nine of ten episodes are generated tasks that the oracle plays in one environment, the tenth is an
entry of `tests/attacks/`, in a shuffled order. At `--num-samples` moments it measures the memory of
this process and all below it, their descriptors, processes, threads and control groups, the files
of /dev/shm and of the temporary folder, the server's schemas and accounts, and the sandboxes'
containers. Prints one JSON line, and writes it with all samples to `--output`.

`is_flat`: from the second quarter of the samples to the last, the least memory has grown by at most
10 % or 32 MiB, and the least of each count by no more than 2. `left`: what is there after `close`
and was not before. `innocent`: how the oracle's episodes ended. `problems`: attacks that did not
end as they must. Counts of shared files and schemas are the machine's: run it while nothing else
does the like. The exit status is 1 where it is not flat, something is left, or an innocent episode
failed.

On two cores 20,000 DB-bench episodes take about ten minutes on SQLite and twenty on MariaDB, 3,000
under bubblewrap five, 500 in docker six; two thirds of that are attacks that run out of time.
"""

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentpeft.envs import EnvFault, Outcome, TextEnv
from agentpeft.envs.db_bench.backends.server.client import Address, MySQLClient
from agentpeft.envs.db_bench.generator import DBBenchGenerator
from agentpeft.envs.os_interaction.generator import OSGenerator
from agentpeft.envs.system.processes import identify_process
from agentpeft.policies.rollout.scripted_play import play_actions

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "attacks"))
from attack import Attack
from footprint import measure_footprint
from games import (
    COMMAND_TIMEOUT_S,
    STATEMENT_TIMEOUT_S,
    make_shell_env,
    make_sql_env,
)
from host import Host
from playing import Player
from table import ATTACKS

_ATTACK_EVERY = 10
_MAX_GROWTH_SHARE, _MAX_GROWTH_MIB, _MAX_GROWTH_COUNT = 0.1, 32, 2
_MAX_PROBLEMS = 50


@dataclass(frozen=True)
class Sample:
    """What is used at one moment."""

    episode: int
    rss_mib: float
    descriptors: int
    processes: int
    threads: int
    cgroups: int
    shared_files: int
    temporary_files: int
    schemas: int
    accounts: int
    containers: int


class Meter:
    """Takes samples; with a `url` of the server's too."""

    def __init__(self, url: str | None) -> None:
        self._client = None if url is None else MySQLClient(Address.parse(url), 30)

    def measure(self, episode: int) -> Sample:
        """Returns what is used now."""
        gc.collect()
        footprint = measure_footprint()
        return Sample(
            episode,
            footprint.rss_mib,
            footprint.num_descriptors,
            footprint.num_processes,
            len(list(Path("/proc/self/task").iterdir())),
            footprint.num_cgroups,
            len(list(Path("/dev/shm").iterdir())),
            len(list(Path(tempfile.gettempdir()).iterdir())),
            self._count("SELECT COUNT(*) FROM information_schema.SCHEMATA"),
            self._count("SELECT COUNT(*) FROM mysql.user"),
            _count_containers(),
        )

    def close(self) -> None:
        """Closes the connection."""
        if self._client is not None:
            self._client.close()

    def _count(self, sql: str) -> int:
        return 0 if self._client is None else int(str(self._client.query(sql)[0][0]))


def _count_containers() -> int:
    label = f"label=agentpeft.os_interaction={identify_process(os.getpid())}"
    command = ["docker", "ps", "-aq", "--filter", label]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return 0
    return len(done.stdout.split())


def make_player(env_name: str, backend: str, host: Host) -> Player:
    """Returns a player on an environment with small limits."""
    if env_name == "os":
        shell = make_shell_env(backend)  # type: ignore[arg-type]
        return Player(shell, host, COMMAND_TIMEOUT_S, default_task="state")
    return Player(make_sql_env(backend), host, STATEMENT_TIMEOUT_S, default_task="change")


def draw_attacks(env_name: str, rng: random.Random) -> Iterator[Attack]:
    """Yields all attacks in a random order, again and again."""
    attacks = list(ATTACKS["shell" if env_name == "os" else "sql"])
    while True:
        rng.shuffle(attacks)
        yield from attacks


def play_innocent(env: TextEnv[Any], task: Any) -> str:
    """Plays a task with the oracle; returns the outcome, or "fault"."""
    try:
        env.reset(options={"task": task})
        play_actions(env, env.oracle_actions(task))
    except EnvFault:
        return "fault"
    return str(env.outcome)


def find_growth(samples: list[Sample]) -> dict[str, float]:
    """Returns what has grown from the second quarter of the samples to the last."""
    quarter = max(1, len(samples) // 4)
    early, late = samples[quarter : 2 * quarter] or samples[:1], samples[-quarter:]
    grown = {}
    for name in Sample.__dataclass_fields__:
        if name == "episode":
            continue
        before = min(getattr(sample, name) for sample in early)
        growth = min(getattr(sample, name) for sample in late) - before
        allowed: float = _MAX_GROWTH_COUNT
        if name == "rss_mib":
            allowed = max(_MAX_GROWTH_SHARE * before, _MAX_GROWTH_MIB)
        if growth > allowed:
            grown[name] = round(growth, 1)
    return grown


def soak(player: Player, meter: Meter, options: argparse.Namespace) -> dict[str, Any]:
    """Plays the episodes and returns what was seen."""
    env, samples = player.env, []
    rng, task_rng = random.Random(options.seed), np.random.default_rng(options.seed)
    attacks = draw_attacks(options.env, rng)
    source = OSGenerator() if options.env == "os" else DBBenchGenerator()
    every = max(1, options.num_episodes // options.num_samples)
    innocent: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    problems: list[str] = []
    slowest_s, start_s = 0.0, time.monotonic()
    for episode in range(options.num_episodes):
        if episode % _ATTACK_EVERY == _ATTACK_EVERY - 1:
            attack = next(attacks)
            played = player.play_attack(attack)
            outcomes[str(played.outcome)] += 1
            slowest_s = max(slowest_s, played.slowest_cpu_s)
            found = [*played.problems, *player.host.find_problems()]
            problems += [f"{attack}: {problem}" for problem in found]
        else:
            innocent[play_innocent(env, source.draw(task_rng))] += 1
        if episode % every == every - 1:
            samples.append(meter.measure(episode + 1))
    growth = find_growth(samples)
    return {
        "episodes": options.num_episodes,
        "seconds": round(time.monotonic() - start_s),
        "innocent": dict(innocent),
        "attacks": dict(outcomes),
        "slowest_attack_cpu_s": round(slowest_s, 2),
        "is_flat": not growth,
        "growth": growth,
        "median": {
            name: round(statistics.median(getattr(sample, name) for sample in samples), 1)
            for name in Sample.__dataclass_fields__
            if name != "episode"
        },
        "num_problems": len(problems),
        "problems": problems[:_MAX_PROBLEMS],
        "samples": [asdict(sample) for sample in samples],
    }


def main() -> None:
    """Soaks what the command line names."""
    parser = argparse.ArgumentParser(description="Episodes in which every tenth is an attack.")
    parser.add_argument("--env", choices=["db_bench", "os"], default="db_bench")
    parser.add_argument("--backend", help="a database (sqlite) or a sandbox (bubblewrap)")
    parser.add_argument("--num-episodes", type=int, default=2000)
    parser.add_argument("--num-samples", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="a folder for the raw results")
    options = parser.parse_args()
    backend = options.backend or ("bubblewrap" if options.env == "os" else "sqlite")
    url = backend if backend.startswith("mysql://") else None
    if backend == "mysql":
        url = os.environ["AGENTPEFT_MYSQL_URL"]
    with tempfile.TemporaryDirectory(prefix="agentpeft-soak-") as folder:
        Path(folder).chmod(0o755)  # the host's secret in it is for everybody
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        run(options, backend, url)


def run(options: argparse.Namespace, backend: str, url: str | None) -> None:
    """Soaks, and prints and writes the results; exits with 1 where something did not hold."""
    meter, host = Meter(url), Host()
    before = asdict(meter.measure(0))
    player = make_player(options.env, backend, host)
    result = soak(player, meter, options)
    player.env.close()
    time.sleep(1.0)
    after = asdict(meter.measure(0))
    counts = [
        name for name in after if name not in ("episode", "rss_mib", "threads", "descriptors")
    ]
    left = {name: after[name] - before[name] for name in counts if after[name] > before[name]}
    host.close()
    meter.close()
    name = backend.partition("://")[0]  # an address may hold a password
    result = {"env": options.env, "backend": name, "seed": options.seed, "left": left, **result}
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        path = options.output / f"soak-{options.env}-{name}.json"
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    del result["samples"]
    print(json.dumps(result))
    is_innocent = set(result["innocent"]) <= {Outcome.SUCCESS}
    sys.exit(0 if result["is_flat"] and not left and is_innocent else 1)


if __name__ == "__main__":
    main()
