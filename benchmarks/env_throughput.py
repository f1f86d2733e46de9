"""How many episodes per second does one process play with a perfect scripted agent?

    python benchmarks/env_throughput.py --env arithmetic gsm8k

Prints one JSON line per environment, backend and cache state. `episodes_per_s` is the median of
`--repeats` runs; `min` and `max` are their spread. "cold": every task is new. "warm": the same
tasks are played again. An episode is reset, the oracle's actions with their texts, and grading,
through `gymnasium.make(id)` as a user has it.
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


@dataclass(frozen=True)
class Case:
    """An environment with one backend ("none" where it has no backends)."""

    env_id: str
    backend: str = "none"
    settings: dict[str, Any] = field(default_factory=dict)


CASES = {
    "arithmetic": [Case("AgentPEFT/Arithmetic-v0", settings={"num_digits": 3})],
    "gsm8k": [Case("AgentPEFT/GSM8K-v0")],
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


def measure(env: gymnasium.Env[str, str], cache: str, duration_s: float, seed: int) -> float:
    """Returns episodes per second over about `duration_s`."""
    env.reset(seed=seed)
    tasks: Iterator[Task | None] = itertools.repeat(None)
    if cache == "warm":
        source = env.unwrapped.task_source  # type: ignore[attr-defined]
        warm = list(Taskset.generate(source, _NUM_WARM_TASKS, seed))
        for task in warm:
            play(env, task)
        tasks = itertools.cycle(warm)
    num_episodes, start_s = 0, time.perf_counter()
    while (elapsed_s := time.perf_counter() - start_s) < duration_s:
        for _ in range(10):
            play(env, next(tasks))
        num_episodes += 10
    return num_episodes / elapsed_s


def report(case: Case, cache: str, repeats: int, duration_s: float) -> dict[str, Any]:
    """Returns the JSON line of one case."""
    env = gymnasium.make(case.env_id, **case.settings)
    rates = sorted(measure(env, cache, duration_s, seed) for seed in range(repeats))
    env.close()
    return {
        "env": case.env_id,
        "backend": case.backend,
        "cache": cache,
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
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--duration-s", type=float, default=1.0, help="of one repeat")
    options = parser.parse_args()
    for case in (case for name in options.env for case in CASES[name]):
        if options.backend is None or case.backend in options.backend:
            for cache in options.cache:
                line = report(case, cache, options.repeats, options.duration_s)
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
