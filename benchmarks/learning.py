"""How far does a config raise the success rate on held-out tasks, over several seeds?

    python benchmarks/learning.py arithmetic_add
    python benchmarks/learning.py arithmetic_add --vary training.algorithm=grpo,ppo --plot a.png
    python benchmarks/learning.py arithmetic_add --variant grpo \
        --variant distill training.algorithm=distill training.teacher=outputs/…/adapter
    python benchmarks/learning.py db_bench --vary curriculum.sampling=uniform,frontier \
        --threshold 0.8 evaluation.interval=5
    python benchmarks/learning.py arithmetic_mul --vary training.dynamic_sampling=true,128 \
        --threshold 0.8 evaluation.interval=5

Runs `launch/train.py` whole, once per seed and variant (their warm starts are made by the seed too
and are cached), one after the other. Prints one JSON line: per variant the success rates before,
at every evaluation and after (mean, lowest, highest of the seeds), and the seconds of a run.
`--plot` draws the curves: the mean, and from the lowest to the highest. `--threshold` adds how many
updates and episodes each seed took to the first evaluation at that success rate; null: none was.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from agentpeft.launch.run.metric_writers import read_metrics

ROOT = Path(__file__).parents[1]
_NUM_COLOURS = 10
"""Of matplotlib, which then begins again."""
Curve = dict[int, float]


class Run(NamedTuple):
    """A run's summary, its success rate by iteration, and its episodes up to each iteration."""

    summary: dict[str, Any]
    curve: Curve
    num_episodes: dict[int, int]


def main() -> None:
    """Runs the command."""
    args = make_parser().parse_intermixed_args()
    variants = {name: settings for name, *settings in args.variant}
    if args.vary:
        key, _, values = args.vary.partition("=")
        variants |= {value: [f"{key}={value}"] for value in values.split(",")}
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            name: [run(args, settings, seed, Path(folder)) for seed in seeds]
            for name, settings in (variants or {args.config: []}).items()
        }
    report = {"config": args.config, "settings": args.settings, "seeds": [*seeds]}
    report["variants"] = {value: summarise(found) for value, found in runs.items()}
    if args.threshold is not None:
        report["threshold"] = args.threshold
        for value, found in runs.items():
            report["variants"][value] |= count_to(args.threshold, found)
    if args.plot:
        plot(runs, args.plot, args.config)
    print(json.dumps(report))


def make_parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--vary", default="", metavar="KEY=A,B,...", help="variants to compare")
    parser.add_argument(
        "--variant",
        nargs="+",
        action="append",
        default=[],
        metavar=("NAME", "key=value"),
        help="a variant of several settings, beside those of --vary",
    )
    parser.add_argument("--threshold", type=float, help="success rate to count updates to")
    parser.add_argument("--plot", type=Path, help="where to write the curves (png, svg)")
    return parser


def run(args: argparse.Namespace, variant: list[str], seed: int, folder: Path) -> Run:
    """Runs the training command once."""
    command = [sys.executable, str(ROOT / "launch" / "train.py"), args.config, *args.settings]
    command += [*variant, f"seed={seed}", f"output.dir={folder}", "output.loggers=['episodes']"]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    summary = json.loads(done.stdout.splitlines()[-1])
    run_dir = (ROOT / summary["adapter"]).parents[2]  # above checkpoints/checkpoint-N/adapter
    curve: Curve = {}
    num_episodes: dict[int, int] = {}
    played = 0
    for line in read_metrics(run_dir):
        step, rate = int(line["train/step"] or 0), line.get("eval/success_rate")
        played += int(line.get("sample/num_episodes") or 0)
        num_episodes[step] = played
        if rate is not None:
            curve[step] = rate
    print(f"{variant} seed {seed}: {summary}", file=sys.stderr)
    return Run(summary, curve, num_episodes)


def summarise(runs: list[Run]) -> dict[str, object]:
    """Returns the mean, lowest and highest of the seeds' figures."""
    befores, afters = (
        [run.summary[key]["success_rate"] for run in runs] for key in ("before", "after")
    )
    return {
        "before": spread(befores),
        "after": spread(afters),
        "gain": spread([after - before for before, after in zip(befores, afters, strict=True)]),
        "curve": {
            step: spread([run.curve[step] for run in runs if step in run.curve])
            for step in sorted({step for run in runs for step in run.curve})
        },
        "seconds": spread([run.summary["seconds"]["total"] for run in runs]),
    }


def count_to(threshold: float, runs: list[Run]) -> dict[str, list[int | None]]:
    """Returns the updates and episodes that each run took to a success rate; None: never."""
    steps = [
        min((s for s, rate in run.curve.items() if rate >= threshold), default=None) for run in runs
    ]
    episodes = [
        None if step is None else run.num_episodes[step]
        for run, step in zip(runs, steps, strict=True)
    ]
    return {"updates_to_threshold": steps, "episodes_to_threshold": episodes}


def spread(values: list[float]) -> list[float]:
    """Returns mean, lowest and highest."""
    return [round(x, 4) for x in (statistics.fmean(values), min(values), max(values))]


def plot(runs: dict[str, list[Run]], path: Path, title: str) -> None:
    """Draws every variant's mean curve in the band of its seeds."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for number, (value, found) in enumerate(runs.items()):
        steps = sorted(set.intersection(*(set(run.curve) for run in found)))
        columns = [[run.curve[step] for run in found] for step in steps]
        style = "-" if number < _NUM_COLOURS else "--"
        means = [statistics.fmean(column) for column in columns]
        axes.plot(steps, means, style, label=value)
        axes.fill_between(steps, list(map(min, columns)), list(map(max, columns)), alpha=0.15)
    axes.set(xlabel="updates", ylabel="greedy success on held-out tasks", title=title)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
