r"""What do methods of lifelong learning remember, over several orders and seeds?

    python benchmarks/lifelong.py arith5 --orders 3 --seeds 2
    python benchmarks/lifelong.py arith5 --orders 3 --seeds 6 --minutes 300
    python benchmarks/lifelong.py db9 --seeds 3 --methods sequential,replay_5,bank,joint --no-kl
    python benchmarks/lifelong.py db9 base=db_bench_coder_05b --minutes 5 --no-kl \
        --stages where,order_by,limit,group_by,having --methods base,sequential,replay_5

Runs the courses of `agentpeft lifelong` in `outputs/lifelong/<sequence>`. It stops after
`--minutes`, or at a signal, and the same command continues there. Writes
`benchmarks/results/lifelong-<sequence>.json` after each course, with all matrices of those that are
done, and prints the table of methods as Markdown: means in points, with 95 % bootstrap
intervals, and the p-value of ACC against `sequential` (sign flips over the seeds, by Holm). One
that stops before its first course is done prints a JSON line of what was played: success by player
and stage. `--tiny` has a random model and few tasks in place of a config's, on a CPU.
"""

import argparse
import json
import logging
import os
import signal
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
from gpu_work import TINY_SHAPES, make_model

from agentpeft.apps.lifelong.course import CourseResult
from agentpeft.apps.lifelong.lifelong_study import Study, run_study, summarize, write_results
from agentpeft.apps.lifelong.methods import METHODS
from agentpeft.apps.lifelong.page import write_page
from agentpeft.apps.lifelong.task_sequence import read_sequence
from agentpeft.envs import SettingsError
from agentpeft.envs.core.errors import is_installed
from agentpeft.launch.evaluating.merging import making_with_parents
from agentpeft.launch.run.standard_streams import reserved_stdout
from agentpeft.launch.run.stop_signals import Stopped, StopSignals
from agentpeft.policies.models.load import load_base
from agentpeft.policies.settings.config import Settings

ROOT = Path(__file__).parents[1]
TINY = (
    *("model.dtype=float32", "num_threads=1", "lora.rank=2"),
    *("env_runners.num_env_runners=0", "env_runners.num_gpus_per_env_runner=0"),
    *("env_runners.max_new_tokens=8", "learners.num_gpus_per_learner=0"),
    *("training.num_iterations=1", "training.num_groups=2", "training.group_size=2"),
    *("training.num_minibatches=1", "evaluation.num_tasks=2", "entry_rise=-1"),
)
SCORES = ("acc", "aia", "bwt", "fwt", "forgetting", "intransigence", "min_acc")


def main() -> None:
    """Runs the command."""
    parser = make_parser()
    args = parser.parse_intermixed_args()
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    methods = tuple(args.methods.split(",")) if args.methods else tuple(METHODS)
    settings = [*args.settings, *(shrink() if args.tiny else ())]
    try:
        sequence = read_sequence(args.sequence, settings)
        if args.stages:
            sequence = sequence.with_stages(args.stages.split(","))
        study = Study(sequence, methods, args.orders, args.seeds, not args.no_kl)
    except SettingsError as error:
        parser.error(str(error))
    experiment = sequence.settings.experiment + ("-tiny" if args.tiny else "")
    folder = args.output or ROOT / "outputs" / "lifelong" / experiment
    results = folder if args.tiny else ROOT / "benchmarks" / "results"
    path = results / f"lifelong-{sequence.settings.experiment}.json"
    signals = StopSignals()
    done: list[CourseResult] = []
    limit_s = threading.TIMEOUT_MAX
    if args.minutes is not None:  # since the process began, which has imported torch meanwhile
        begun_s = time.time() - psutil.Process().create_time()
        limit_s = max(60 * args.minutes - begun_s, 0.0)
    timer = threading.Timer(limit_s, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    with reserved_stdout() as stdout:
        try:
            with signals.handle(), closing(run_study(study, folder, signals)) as courses:
                for course in courses:
                    done.append(course)
                    write_results(done, summarize(done), path)
                    write_page(done, summarize(done), folder)
        except SettingsError as error:
            parser.error(str(error))
        except Stopped as stop:
            print(f"stopped by {stop}; the same command continues", file=sys.stderr)
        finally:
            timer.cancel()
        told = format_table(summarize(done)) if done else json.dumps(read_played(folder))
        print(told, file=stdout)


def make_parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sequence")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    parser.add_argument("--methods", metavar="A,B,...", help="some methods alone")
    parser.add_argument("--stages", metavar="A,B,...", help="some stages alone")
    parser.add_argument("--orders", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--no-kl", action="store_true", help="measure no KL divergences")
    parser.add_argument("--minutes", type=float, help="stop after this time")
    parser.add_argument("--tiny", action="store_true", help="a random model, on a CPU")
    parser.add_argument("--output", type=Path, help="where the runs are")
    return parser


def shrink() -> list[str]:
    """Returns settings with which a study of a real model takes seconds, without a GPU."""
    folder = ROOT / "outputs" / "random-qwen2"
    if not folder.exists():
        tokenizer = load_base(Settings()).tokenizer
        shape = replace(TINY_SHAPES["0.5b"], hidden=128, head_size=32, vocabulary=len(tokenizer))
        with making_with_parents(folder) as new:
            make_model(shape, torch.device("cpu")).save_pretrained(new)
            tokenizer.save_pretrained(new)
    engine = "vllm" if is_installed("vllm") else "transformers"
    cache = "0.2" if engine == "vllm" else ""
    names = f"model.name={folder}", f"env_runners.engine={engine}"
    return [*names, f"env_runners.kv_cache_gib={cache}", *TINY]


def read_played(folder: Path) -> dict[str, dict[str, float]]:
    """Returns the success rates of what was played so far, by player (with its seed) and stage."""
    played: dict[str, dict[str, float]] = {}
    for path in sorted(folder.glob("seed-*/evaluations/*/*/results.json")):
        seed, _, player, stage, _ = path.relative_to(folder).parts
        summary = json.loads(path.read_text(encoding="utf-8"))
        (policy,) = summary["policies"].values()
        if "success_rate" in policy["metrics"]:  # else its first round was stopped
            played.setdefault(f"{seed}/{player}", {})[stage] = policy["metrics"]["success_rate"]
    return played


def format_table(summary: dict[str, Any]) -> str:
    """Returns the methods as a Markdown table, in points."""
    lines = [
        f"| method | {' | '.join(name.upper() for name in SCORES)} | p | tokens | s |",
        "|---|" + "---|" * (len(SCORES) + 3),
    ]
    for name, row in summary["methods"].items():
        cells = [tell(row, score) for score in SCORES]
        compared = summary["comparisons"].get(name)
        p_value = f"{compared['p_value']:.3f}" if compared else ""
        cells += [p_value, f"{row['tokens']:,}", f"{row['seconds']:.0f}"]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def tell(row: dict[str, Any], score: str) -> str:
    """Returns a figure in points with its interval."""
    if row[score] is None:
        return ""
    text = f"{100 * row[score]:.1f}"
    if f"{score}_low" in row:
        text += f" ({100 * row[f'{score}_low']:.1f} to {100 * row[f'{score}_high']:.1f})"
    return text


if __name__ == "__main__":
    main()
