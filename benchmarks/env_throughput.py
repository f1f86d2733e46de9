"""How many episodes per second does one process play with a perfect scripted agent?

    python benchmarks/env_throughput.py --env arithmetic gsm8k db_bench
    python benchmarks/env_throughput.py --env db_bench --backend sqlite --base ../older-checkout
    python benchmarks/env_throughput.py --num-envs 8

Prints JSON lines and appends them to `--output`. An episode is reset, the oracle's actions with
their texts (a query and an answer in DB-bench) and grading, through `gymnasium.make(id)` as a user
has it.

* `cache` "cold": every task is new and nothing of it was seen before. `generation` true: making the
  task is in the figure; false: the same episodes without that. `generation_share` is the part of
  the time that making takes. "warm": the same tasks are played again.
* `episodes_per_s` is the median of `--repeats` runs, `min` and `max` are their spread.
  `cpu_ms_per_episode` is the process's own CPU time, which says more on a machine that does other
  work too (a server's or a sandbox's time is not in it).
* `sqlglot` says whether its compiled build was there (`pip install "sqlglot[c]"`); for a figure
  without it: `pip install --no-deps --target DIR sqlglot`, and PYTHONPATH=DIR.
* `--base CHECKOUT`: the same measurement of another state of this repository, in turn with this
  one's, and the ratio of each pair (of wall time, and of CPU time).
* `--num-envs` above 1: `gymnasium.make_vec`'s default against `vectorization_mode="sync"`, in turn,
  in steps per second with tasks drawn as they come. `vector_to_sync` is the ratio of each pair,
  `cpu_vector_to_sync` that of steps per CPU second (of use where nothing waits). What the agent
  does is worked out while the clock stands.

`mysql` needs AGENTPEFT_MYSQL_URL; `--env os_interaction` needs its sandbox.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import sqlglot
from sqlglot import tokenizer_core

from agentpeft.envs import Task, Taskset, TextEnv

_RESULTS = Path(__file__).parent / "results" / "env_throughput.jsonl"
_ROOMS = ("envs", "policies", "launch", "apps")
_BATCH_SIZE = 50
_NUM_WARM_UP = 100


@dataclass(frozen=True)
class Case:
    """An environment with one backend ("none" where it has no backends)."""

    env_id: str
    backend: str = "none"
    settings: dict[str, Any] = field(default_factory=dict)


CASES = {
    "arithmetic": [Case("AgentPEFT/Arithmetic-v0", settings={"num_digits": 3})],
    "gsm8k": [Case("AgentPEFT/GSM8K-v0")],
    "db_bench": [
        Case("AgentPEFT/DBBench-v0", name, {"database": name}) for name in ("sqlite", "mysql")
    ],
    "os_interaction": [
        Case("AgentPEFT/OSInteraction-v0", name, {"sandbox": name})
        for name in ("bubblewrap", "docker")
    ],
}
"""What `--env` chooses from; `--backend` then chooses among a name's cases."""


@dataclass
class Clock:
    """Wall and CPU seconds of one thing, over a run."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.wall_s += time.perf_counter() - self._start[0]
        self.cpu_s += time.process_time() - self._start[1]


@dataclass(frozen=True)
class Run:
    """What one run measured."""

    num_episodes: int
    generation: Clock
    playing: Clock

    def rate(self, generation: bool) -> float:
        """Episodes per second."""
        return self.num_episodes / (self.playing.wall_s + generation * self.generation.wall_s)

    def cpu_ms(self, generation: bool) -> float:
        """CPU milliseconds per episode."""
        cpu_s = self.playing.cpu_s + generation * self.generation.cpu_s
        return 1000 * cpu_s / self.num_episodes

    @property
    def generation_share(self) -> float:
        """The part of the time that making tasks took."""
        return self.generation.wall_s / (self.generation.wall_s + self.playing.wall_s)


def play(env: gymnasium.Env[str, str], task: Task) -> None:
    """Plays one episode with the oracle. Raises: RuntimeError where it does not succeed.

    It steps the environment itself, so that the time is the environment's alone.
    """
    text_env = text_env_of(env)
    info = env.reset(options={"task": task})[1]
    for action in text_env.oracle_actions(task):
        info = env.step(action)[4]
    if not info["is_success"]:
        raise RuntimeError(f"the oracle fails at {info['task_id']}: {info['outcome']}")


def text_env_of(env: gymnasium.Env[str, str]) -> TextEnv[Any]:
    """Returns the environment inside Gymnasium's wrappers."""
    text_env = env.unwrapped
    assert isinstance(text_env, TextEnv)
    return text_env


def measure(case: Case, cache: str, duration_s: float, seed: int) -> Run:
    """Plays for about `duration_s`. Cold: each batch of tasks is made just before it is played."""
    env = gymnasium.make(case.env_id, **case.settings)
    env.reset(seed=seed)
    source, rng = text_env_of(env).task_source, np.random.default_rng(seed)
    if cache == "warm":
        tasks = list(Taskset.generate(source, 200, seed))
        for task in tasks * 2:
            play(env, task)
    else:
        for _ in range(_NUM_WARM_UP):
            play(env, source.draw(rng))
    generation, playing, num_episodes = Clock(), Clock(), 0
    while generation.wall_s + playing.wall_s < duration_s:
        if cache == "cold":
            with generation:
                tasks = [source.draw(rng) for _ in range(_BATCH_SIZE)]
        with playing:
            for task in tasks:
                play(env, task)
        num_episodes += len(tasks)
    env.close()
    return Run(num_episodes, generation, playing)


def measure_vector(case: Case, mode: str | None, num_envs: int, duration_s: float) -> Clock:
    """Returns the seconds of one environment's step in a vector that draws its tasks.

    `mode` is Gymnasium's `vectorization_mode`.

    Resets count as the steps in which they happen: an environment whose episode has ended starts
    the next one instead of taking its action.
    """
    envs = gymnasium.make_vec(case.env_id, num_envs, mode, **case.settings)
    text_envs = [text_env_of(env) for env in envs.envs]  # type: ignore[attr-defined]
    envs.reset(seed=0)
    scripts: list[Iterator[str]] = [iter(env.oracle_actions(env.task)) for env in text_envs]
    clock, num_steps, num_warm_up = Clock(), 0, 20
    while num_steps <= num_warm_up or clock.wall_s < duration_s:
        if num_steps == num_warm_up:
            clock = Clock()
        actions = [next(script, "") for script in scripts]
        with clock:
            _, _, terminations, _, infos = envs.step(actions)
        num_steps += 1
        if np.any(terminations & ~infos["is_success"]):
            raise RuntimeError(f"the oracle fails: {infos['task_id']}, {infos['outcome']}")
        for index, env in enumerate(text_envs):
            if env.outcome == "ongoing" and not env.episode.turns:
                scripts[index] = iter(env.oracle_actions(env.task))
    envs.close()
    num_steps = (num_steps - num_warm_up) * num_envs
    return Clock(clock.wall_s / num_steps, clock.cpu_s / num_steps)


def spread(values: Sequence[float], digits: int = 0) -> dict[str, float]:
    """Returns median, least and greatest."""
    names = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits or None) for name, value in names.items()}


def report(case: Case, cache: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields the JSON lines of one case and cache state."""
    runs = [measure(case, cache, options.duration_s, seed) for seed in range(options.repeats)]
    for generation in (True, False) if cache == "cold" else (False,):
        rates = spread([run.rate(generation) for run in runs])
        share = {"generation_share": spread([run.generation_share for run in runs], 2)}
        yield {
            "env": case.env_id,
            "backend": case.backend,
            "cache": cache,
            "generation": generation,
            "episodes_per_s": rates["median"],
            "min": rates["min"],
            "max": rates["max"],
            "cpu_ms_per_episode": spread([run.cpu_ms(generation) for run in runs], 3),
            **(share if generation else {}),
            "repeats": options.repeats,
        }


def report_vector(case: Case, num_envs: int, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the JSON line of a vector environment beside Gymnasium's `sync`."""
    pairs = [
        [measure_vector(case, mode, num_envs, options.duration_s) for mode in (None, "sync")]
        for _ in range(options.repeats)
    ]
    return {
        "env": case.env_id,
        "backend": case.backend,
        "num_envs": num_envs,
        "steps_per_s": spread([1 / ours.wall_s for ours, _ in pairs]),
        "sync_steps_per_s": spread([1 / sync.wall_s for _, sync in pairs]),
        "vector_to_sync": spread([sync.wall_s / ours.wall_s for ours, sync in pairs], 2),
        "cpu_vector_to_sync": spread([sync.cpu_s / ours.cpu_s for ours, sync in pairs], 2),
        "repeats": options.repeats,
    }


def report_pairs(base: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields this state's and the base's figures, measured in turn in processes of their own."""
    here = Path(__file__).resolve().parent.parent
    lines: dict[tuple[Any, ...], list[list[dict[str, Any]]]] = {}
    for pair in range(options.repeats):
        for side, checkout in enumerate((base.resolve(), here)):
            for line in run_elsewhere(checkout, options):
                key = line["env"], line["backend"], line["cache"], line["generation"]
                lines.setdefault(key, [])
                if len(lines[key]) <= pair:
                    lines[key].append([])
                assert len(lines[key][pair]) == side
                lines[key][pair].append(line)
    for (env, backend, cache, generation), pairs in lines.items():
        rates = [[line["episodes_per_s"] for line in pair] for pair in pairs]
        cpu = [[line["cpu_ms_per_episode"]["median"] for line in pair] for pair in pairs]
        yield {
            "env": env,
            "backend": backend,
            "cache": cache,
            "generation": generation,
            "base_episodes_per_s": spread([before for before, _ in rates]),
            "episodes_per_s": spread([after for _, after in rates]),
            "ratio": spread([after / before for before, after in rates], 2),
            "cpu_ratio": spread([before / after for before, after in cpu], 2),
            "repeats": options.repeats,
        }


def run_elsewhere(checkout: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns the lines of one repeat with a checkout's rooms as the package."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "agentpeft"
        package.mkdir()
        (package / "__init__.py").touch()
        for room in _ROOMS:
            (package / room).symlink_to(checkout / room)
        command = [sys.executable, __file__, "--repeats", "1", "--output", os.devnull]
        command += ["--duration-s", str(options.duration_s), "--cache", *options.cache]
        command += ["--env", *options.env]
        command += ["--backend", *options.backend] if options.backend else []
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        output = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": path},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
    return [json.loads(line) for line in output.splitlines()]


def choose_cases(options: argparse.Namespace) -> list[Case]:
    """Returns the cases that the options name and that can run here."""
    cases = [case for name in options.env for case in CASES[name]]
    if options.backend is not None:
        cases = [case for case in cases if case.backend in options.backend]
    if "AGENTPEFT_MYSQL_URL" not in os.environ and any(case.backend == "mysql" for case in cases):
        print("mysql is left out: AGENTPEFT_MYSQL_URL is not set", file=sys.stderr)
        cases = [case for case in cases if case.backend != "mysql"]
    return cases


def make_lines(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measures the chosen cases and yields their lines."""
    if options.base is not None:
        yield from report_pairs(options.base, options)
        return
    for case, num_envs in itertools.product(choose_cases(options), options.num_envs):
        if num_envs > 1:
            yield report_vector(case, num_envs, options)
        else:
            for cache in options.cache:
                yield from report(case, cache, options)


def main() -> None:
    """Prints the lines and appends them to the results."""
    parser = argparse.ArgumentParser(description="Episodes per second with a perfect agent.")
    parser.add_argument(
        "--env", nargs="+", choices=sorted(CASES), default=["arithmetic", "db_bench", "gsm8k"]
    )
    parser.add_argument("--backend", nargs="+", help="only these backends (default: all)")
    parser.add_argument("--cache", nargs="+", choices=["cold", "warm"], default=["cold", "warm"])
    parser.add_argument("--num-envs", nargs="+", type=int, default=[1], help="above 1: a vector")
    parser.add_argument("--base", type=Path, help="a checkout of another state, to pair with")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--duration-s", type=float, default=1.0, help="of one repeat")
    parser.add_argument("--output", type=Path, default=_RESULTS, help="JSON lines are added to it")
    options = parser.parse_args()
    is_compiled = not str(tokenizer_core.__file__).endswith(".py")
    build = {
        "sqlglot": f"{sqlglot.__version__} {'compiled' if is_compiled else 'pure'}",
        "python": ".".join(map(str, sys.version_info[:3])),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with options.output.open("a", encoding="utf-8") as results:
        for line in make_lines(options):
            text = json.dumps({**line, **build})
            print(text, flush=True)
            results.write(text + "\n")


if __name__ == "__main__":
    main()
