"""How long does one GRPO update take here and in bare TRL, and how many reach 95 % accuracy?

    make bench-trl

Both train the same model (a warm-started Hugging Face folder) by rank-16 LoRA on all linear layers
with 64 prompts x 8 samples of 3-digit addition an update, in processes of their own, in alternating
order: TRL in `.venv-trl` with its best settings for a CPU (`trl_reference.py`), this service with
its Ray actors and the transformers engine. Prints one JSON line: the median over repeats of each
one's median seconds per update after the warm-up, their spreads, the ratio (here / TRL), and the
updates and seconds until the greedy accuracy on held-out problems is 95 %.
"""

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from agentpeft.envs.arithmetic.env import ArithmeticEnv
from agentpeft.policies.loop.algorithm import Algorithm
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.models.pretrain import make_tiny
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {"num_digits": 3, "format": "reversed", "prompt": "compact"}
TARGET = 0.95
_NUM_WARMUP = 5


def make_settings(args: argparse.Namespace, model: str) -> Settings:
    """Returns the service's settings; model "tiny" is the start that both train."""
    overrides: dict[str, Any] = {
        "environment": {
            "id": "AgentPEFT/Arithmetic-v0",
            "kwargs": {**ENVIRONMENT, "split": "train"},
        },
        "model": {"name": model},
        "lora": {"rank": 16, "alpha": 32.0},
        "env_runners": {
            "max_new_tokens": 8,
            "max_concurrent_episodes": 512,
            "num_env_runners": 2,
        },
        "training": {"num_groups": 64, "group_size": 8, "lr": args.lr},
        "evaluation": {"num_tasks": args.num_tests, "env_kwargs": {"split": "test"}},
        "output": {"loggers": []},
    }
    if model == "tiny":
        overrides["tiny"] = {"hidden_size": 128}
        overrides["warm_start"] = {
            "num_steps": args.warm_start,
            "target_success": args.start,
            "lr": 4e-3,
            "env_kwargs": {"num_digits": [1, 3]},
        }
    return Settings(**with_overrides(overrides, ()))


def make_model(args: argparse.Namespace, folder: Path) -> PolicyBase:
    """Writes the start of both: supervised learning that ends where it answers about `--start`."""
    base = make_tiny(make_settings(args, "tiny"))
    base.model.save_pretrained(folder)
    base.tokenizer.save_pretrained(folder)
    return base


def make_problems(base: PolicyBase, split: str, num_tasks: int) -> tuple[list[str], list[str]]:
    """Returns prompts as the chat format writes them (all equally long), and answers."""
    chat = ChatFormat(base.tokenizer)
    env = gymnasium.make("AgentPEFT/Arithmetic-v0", **ENVIRONMENT, split=split).unwrapped
    assert isinstance(env, ArithmeticEnv)
    prompts, answers = [], []
    rng = np.random.default_rng(7)
    for task in (env.task_source.draw(rng) for _ in range(num_tasks)):
        prompt, _ = env.reset(options={"task": task})
        prompts.append(base.tokenizer.decode(chat.begin(prompt).tolist()))
        answers.append(task.answer)
    return prompts, answers


def make_job(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Returns what TRL must know; makes the model."""
    base = make_model(args, folder / "model")
    prompts, answers = make_problems(base, "train", 64 * args.num_updates)
    test_prompts, test_answers = make_problems(base, "test", args.num_tests)
    return {
        "model": str(folder / "model"),
        "prompts": prompts,
        "answers": answers,
        "test_prompts": test_prompts,
        "test_answers": test_answers,
        "num_groups": 64,
        "group_size": 8,
        "max_new_tokens": 8,
        "rank": 16,
        "alpha": 32,
        "lr": args.lr,
        "num_updates": args.num_updates,
        "evaluation_interval": args.evaluation_interval,
        "num_threads": args.num_threads,
        "trl_attention": args.attention,
    }


def run_service(args: argparse.Namespace, model: str, seed: int) -> dict[str, Any]:
    """Trains for some updates; returns their seconds and the accuracies between them."""
    settings = make_settings(args, model).model_copy(update={"seed": seed})
    seconds, parts, accuracies = [], [], []
    with tempfile.TemporaryDirectory() as folder, Algorithm(settings, Path(folder)) as algorithm:
        accuracies.append((0, algorithm.evaluate()["success_rate"]))
        for step in range(1, args.num_updates + 1):
            start_s = time.perf_counter()
            metrics = algorithm.train()
            seconds.append(time.perf_counter() - start_s)
            parts.append({k: v for k, v in metrics.items() if k.startswith("time/")})
            if step % args.evaluation_interval == 0:
                accuracies.append((step, algorithm.evaluate()["success_rate"]))
    median_parts = {name: statistics.median(p[name] for p in parts) for name in parts[0]}
    return {"seconds": seconds, "accuracies": accuracies, "parts": median_parts}


def run_half(
    name: str, args: argparse.Namespace, job: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """Runs one of the two in a process of its own and returns what it measured."""
    path = folder / "job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    command = [
        str(ROOT / ".venv-trl/bin/python"),
        str(ROOT / "benchmarks/trl_reference.py"),
        str(path),
    ]
    if name == "service":
        command = [sys.executable, __file__, *sys.argv[1:], "--service", job["model"]]
        command += ["--seed", str(job["seed"])]
    load = os.getloadavg()[0]
    env = {**os.environ, "OMP_NUM_THREADS": str(args.num_threads), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=env)
    return {**json.loads(done.stdout.splitlines()[-1]), "load": load}


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the figures of one half over its repeats."""
    medians = [statistics.median(run["seconds"][_NUM_WARMUP:]) for run in runs]
    reached = [
        next((step for step, rate in run["accuracies"] if rate >= TARGET), None) for run in runs
    ]
    return {
        "update_s": round(statistics.median(medians), 4),
        "spread_s": [round(min(medians), 4), round(max(medians), 4)],
        "updates_to_95": reached,
        "seconds_to_95": [
            None if step is None else round(sum(run["seconds"][:step]), 1)
            for step, run in zip(reached, runs, strict=True)
        ],
        "accuracy": [
            [round(rates[0][1], 3), round(rates[-1][1], 3)]
            for rates in (r["accuracies"] for r in runs)
        ],
        "load_before": [round(run["load"], 2) for run in runs],
        **{key: runs[0][key] for key in ("versions", "parts") if key in runs[0]},
    }


def parse_args() -> argparse.Namespace:
    """Returns the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--num-updates", type=int, default=60)
    parser.add_argument("--evaluation-interval", type=int, default=5)
    parser.add_argument("--num-tests", type=int, default=512)
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--warm-start", type=int, default=1500, help="most steps")
    parser.add_argument(
        "--start",
        type=float,
        default=0.5,
        help="accuracy on 1 to 3 digits that ends the warm start",
    )
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--attention", default="eager", choices=("eager", "sdpa"), help="TRL's")
    parser.add_argument("--only", choices=("trl", "service"))
    parser.add_argument("--service", metavar="MODEL", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Runs both halves in turn and prints the comparison."""
    args = parse_args()
    logging.basicConfig(level=logging.WARNING)
    if args.service:
        print(json.dumps(run_service(args, args.service, args.seed)))
        return
    names = [args.only] if args.only else ["trl", "service"]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        job = make_job(args, Path(folder))
        for repeat in range(args.repeats):
            for name in names if repeat % 2 == 0 else reversed(names):
                runs[name].append(run_half(name, args, job | {"seed": repeat}, Path(folder)))
                print(name, repeat, summarize(runs[name][-1:]), file=sys.stderr)
    result: dict[str, Any] = {name: summarize(runs[name]) for name in names}
    if len(names) == 2:
        result["ratio"] = round(result["service"]["update_s"] / result["trl"]["update_s"], 3)
    print(json.dumps({"benchmark": "update_vs_trl", **result}))


if __name__ == "__main__":
    main()
