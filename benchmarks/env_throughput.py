"""How many episodes per second does one process play with a perfect scripted agent?

    python benchmarks/env_throughput.py --env arithmetic gsm8k db_bench
    python benchmarks/env_throughput.py --env db_bench --backend mysql --num-envs 1 8

Prints one JSON line per environment, backend, cache state and number of environments.
`episodes_per_s` is the median of `--repeats` runs; `min` and `max` are their spread. "cold": every
task is new and nothing of it was seen before. "warm": the same tasks are played again. An episode
is reset, the oracle's actions with their texts (a query and an answer in DB-bench), and grading,
through `gymnasium.make(id)` as a user has it; more than one environment is `gymnasium.make_vec`.
DB-bench's tasks are generated while the clock stands, the others' as they are played. `mysql`
needs AGENTPEFT_MYSQL_URL.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from agentpeft.envs import Task, Taskset, TextEnv

_BATCH_SIZE = 200


@dataclass(frozen=True)
class Case:
    """An environment with one backend ("none" where it has no backends)."""

    env_id: str
    backend: str = "none"
    settings: dict[str, Any] = field(default_factory=dict)
    is_drawn_ahead: bool = False


CASES = {
    "arithmetic": [Case("AgentPEFT/Arithmetic-v0", settings={"num_digits": 3})],
    "gsm8k": [Case("AgentPEFT/GSM8K-v0")],
    "db_bench": [
        Case("AgentPEFT/DBBench-v0", name, {"database": name}, is_drawn_ahead=True)
        for name in ("sqlite", "mysql")
    ],
}
"""What `--env` chooses from; `--backend` then chooses among a name's cases."""


def play(env: gymnasium.Env[str, str], task: Task | None) -> None:
    """Plays one episode with the oracle. Raises: RuntimeError where it does not succeed."""
    text_env = env.unwrapped
    assert isinstance(text_env, TextEnv)
    info = env.reset(options=None if task is None else {"task": task})[1]
    for action in text_env.oracle_actions(text_env.task):
        info = env.step(action)[4]
    if not info["is_success"]:
        raise RuntimeError(f"the oracle fails at {info['task_id']}: {info['outcome']}")


def draw_batches(case: Case, cache: str, seed: int, size: int) -> Iterator[list[Task | None]]:
    """Yields tasks to play, `size` at a time; None lets the environment draw its own."""
    if cache == "cold" and not case.is_drawn_ahead:
        yield from itertools.repeat([None] * size)
    env = gymnasium.make(case.env_id, **case.settings)
    source = env.unwrapped.task_source  # type: ignore[attr-defined]
    env.close()
    if cache == "warm":
        yield from itertools.repeat(list(Taskset.generate(source, size, seed)))
    rng = np.random.default_rng(seed)
    while True:
        yield [source.draw(rng) for _ in range(size)]


def measure(case: Case, cache: str, duration_s: float, seed: int) -> float:
    """Returns episodes per second over about `duration_s` of playing."""
    env = gymnasium.make(case.env_id, **case.settings)
    env.reset(seed=seed)
    batches = draw_batches(case, cache, seed, _BATCH_SIZE)
    num_warm_up = 2 if cache == "warm" else 0
    for task in itertools.chain.from_iterable(itertools.islice(batches, num_warm_up)):
        play(env, task)
    num_episodes, elapsed_s = 0, 0.0
    while elapsed_s < duration_s:
        batch = next(batches)
        start_s = time.perf_counter()
        for task in batch:
            play(env, task)
        elapsed_s += time.perf_counter() - start_s
        num_episodes += len(batch)
    env.close()
    return num_episodes / elapsed_s


def measure_vector(case: Case, num_envs: int, duration_s: float, seed: int) -> float:
    """Returns episodes per second of a vector environment over new tasks of two turns each."""
    envs = gymnasium.make_vec(case.env_id, num_envs=num_envs, **case.settings)
    oracle = gymnasium.make(case.env_id, **case.settings)
    batches = draw_batches(case, "cold", seed, num_envs)
    num_episodes, elapsed_s = 0, 0.0
    while elapsed_s < duration_s:
        batch = next(batches)
        scripts = [oracle.unwrapped.oracle_actions(task) for task in batch]  # type: ignore[attr-defined]
        start_s = time.perf_counter()
        envs.reset(options={"task": batch})
        envs.step([script[0] for script in scripts])
        is_success = envs.step([script[1] for script in scripts])[4]["is_success"]
        elapsed_s += time.perf_counter() - start_s
        num_episodes += num_envs
        if not all(is_success):
            raise RuntimeError(f"the oracle fails among {batch}")
    envs.close()
    oracle.close()
    return num_episodes / elapsed_s


def report(
    case: Case, cache: str, num_envs: int, repeats: int, duration_s: float
) -> dict[str, Any]:
    """Returns the JSON line of one case."""
    if num_envs == 1:
        rates = sorted(measure(case, cache, duration_s, seed) for seed in range(repeats))
    else:
        rates = sorted(measure_vector(case, num_envs, duration_s, seed) for seed in range(repeats))
    return {
        "env": case.env_id,
        "backend": case.backend,
        "cache": cache,
        "num_envs": num_envs,
        "episodes_per_s": round(statistics.median(rates)),
        "min": round(rates[0]),
        "max": round(rates[-1]),
        "repeats": repeats,
    }


def main() -> None:
    """Measures the chosen cases and prints their lines."""
    parser = argparse.ArgumentParser(description="Episodes per second with a perfect agent.")
    parser.add_argument("--env", nargs="+", choices=sorted(CASES), default=sorted(CASES))
    parser.add_argument("--backend", nargs="+", help="only these backends (default: all)")
    parser.add_argument("--cache", nargs="+", choices=["cold", "warm"], default=["cold", "warm"])
    parser.add_argument("--num-envs", nargs="+", type=int, default=[1], help="above 1: cold only")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--duration-s", type=float, default=1.0, help="of one repeat")
    options = parser.parse_args()
    cases = [case for name in options.env for case in CASES[name]]
    for case, cache, num_envs in itertools.product(cases, options.cache, options.num_envs):
        if options.backend is not None and case.backend not in options.backend:
            continue
        if case.backend == "mysql" and "AGENTPEFT_MYSQL_URL" not in os.environ:
            print("mysql is left out: AGENTPEFT_MYSQL_URL is not set", file=sys.stderr)
            continue
        if cache == "warm" and num_envs > 1:
            continue
        line = report(case, cache, num_envs, options.repeats, options.duration_s)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
