"""How many episodes per second does one process play with a perfect scripted agent?

    python benchmarks/env_throughput.py --env arithmetic gsm8k db_bench
    python benchmarks/env_throughput.py --env db_bench --backend mysql --num-envs 1 8

Prints one JSON line per environment, backend, cache state and number of environments.
`episodes_per_s` is the median of `--repeats` runs; `min` and `max` are their spread. "cold": every
task is new and nothing of it was seen before. "warm": the same tasks are played again. An episode
is reset, the oracle's actions with their texts (a query and an answer in DB-bench), and grading,
through `gymnasium.make(id)` as a user has it; more than one environment is `gymnasium.make_vec`.
DB-bench's tasks are generated before the clock starts, the others' as they are played. `mysql`
needs AGENTPEFT_MYSQL_URL.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from agentpeft.envs import Task, Taskset, TextEnv

_NUM_WARM_TASKS = 200
_NUM_COLD_TASKS = 2000


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


def draw_tasks(case: Case, cache: str, seed: int) -> Iterator[Task | None]:
    """Yields tasks to play; None lets the environment draw its own."""
    if cache == "cold" and not case.is_drawn_ahead:
        return itertools.repeat(None)
    env = gymnasium.make(case.env_id, **case.settings)
    text_env = env.unwrapped
    assert isinstance(text_env, TextEnv)
    num_tasks = _NUM_WARM_TASKS if cache == "warm" else _NUM_COLD_TASKS
    tasks = list(Taskset.generate(text_env.task_source, num_tasks, seed))
    env.close()
    return itertools.cycle(tasks) if cache == "warm" else iter(tasks)


def measure(case: Case, cache: str, duration_s: float, seed: int) -> float:
    """Returns episodes per second over about `duration_s`, or until the new tasks are used up."""
    env = gymnasium.make(case.env_id, **case.settings)
    env.reset(seed=seed)
    tasks = draw_tasks(case, cache, seed)
    if cache == "warm":
        for _ in range(_NUM_WARM_TASKS):
            play(env, next(tasks))
    num_episodes, start_s = 0, time.perf_counter()
    for task in tasks:
        play(env, task)
        num_episodes += 1
        if num_episodes % 10 == 0 and time.perf_counter() - start_s > duration_s:
            break
    elapsed_s = time.perf_counter() - start_s
    env.close()
    return num_episodes / elapsed_s


def measure_vector(case: Case, num_envs: int, seed: int) -> float:
    """Returns episodes per second of a vector environment over new tasks of two turns each."""
    envs = gymnasium.make_vec(case.env_id, num_envs=num_envs, **case.settings)
    oracle = gymnasium.make(case.env_id, **case.settings)
    tasks = [task for task in draw_tasks(case, "cold", seed) if task is not None]
    batches = [tasks[i : i + num_envs] for i in range(0, len(tasks) - num_envs + 1, num_envs)]
    start_s = time.perf_counter()
    for batch in batches:
        scripts = [oracle.unwrapped.oracle_actions(task) for task in batch]  # type: ignore[attr-defined]
        envs.reset(options={"task": batch})
        envs.step([script[0] for script in scripts])
        if not all(envs.step([script[1] for script in scripts])[4]["is_success"]):
            raise RuntimeError(f"the oracle fails among {[task.task_id for task in batch]}")
    elapsed_s = time.perf_counter() - start_s
    envs.close()
    oracle.close()
    return len(batches) * num_envs / elapsed_s


def report(
    case: Case, cache: str, num_envs: int, repeats: int, duration_s: float
) -> dict[str, Any]:
    """Returns the JSON line of one case."""
    if num_envs == 1:
        rates = sorted(measure(case, cache, duration_s, seed) for seed in range(repeats))
    else:
        rates = sorted(measure_vector(case, num_envs, seed) for seed in range(repeats))
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
        if cache == "warm" and num_envs > 1:
            continue
        line = report(case, cache, num_envs, options.repeats, options.duration_s)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
