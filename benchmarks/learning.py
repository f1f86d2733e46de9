"""How far does a config raise the success rate on held-out tasks, over several seeds?

    python benchmarks/learning.py arithmetic_add
    python benchmarks/learning.py arithmetic_add --vary training.algorithm=grpo,ppo --plot a.png

Runs `launch/train.py` whole, once per seed and variant (their warm starts are made by the seed too
and are cached), one after the other. Prints one JSON line: per variant the success rates before,
at every evaluation and after (mean, lowest, highest of the seeds), and the seconds of a run.
`--plot` draws the curves: the mean, and from the lowest to the highest.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from agentpeft.launch.run.metric_writers import read_metrics

ROOT = Path(__file__).parents[1]
Curve = dict[int, float]


def main() -> None:
    """Runs the command."""
    args = make_parser().parse_intermixed_args()
    name, _, values = args.vary.partition("=")
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            value or args.config: [
                run(args, [f"{name}={value}"] if name else [], seed, Path(folder))
                for seed in range(args.seeds)
            ]
            for value in values.split(",")
        }
    report = {"config": args.config, "settings": args.settings, "seeds": args.seeds}
    report["variants"] = {value: summarise(found) for value, found in runs.items()}
    if args.plot:
        plot(runs, args.plot, args.config)
    print(json.dumps(report))


def make_parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--vary", default="", metavar="KEY=A,B,...", help="variants to compare")
    parser.add_argument("--plot", type=Path, help="where to write the curves (png, svg)")
    return parser


def run(
    args: argparse.Namespace, variant: list[str], seed: int, folder: Path
) -> tuple[dict[str, Any], Curve]:
    """Returns a run's summary, and its success rate by iteration."""
    command = [sys.executable, str(ROOT / "launch" / "train.py"), args.config, *args.settings]
    command += [*variant, f"seed={seed}", f"output.dir={folder}", "output.tensorboard=false"]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    summary = json.loads(done.stdout.splitlines()[-1])
    run_dir = (ROOT / summary["adapter"]).parents[2]  # above checkpoints/checkpoint-N/adapter
    curve: Curve = {}
    for line in read_metrics(run_dir):
        step, rate = line["train/step"], line.get("eval/success_rate")
        if step is not None and rate is not None:
            curve[int(step)] = rate
    print(f"{variant} seed {seed}: {summary}", file=sys.stderr)
    return summary, curve


def summarise(runs: list[tuple[dict[str, Any], Curve]]) -> dict[str, object]:
    """Returns the mean, lowest and highest of the seeds' figures."""
    befores, afters = (
        [summary[key]["success_rate"] for summary, _ in runs] for key in ("before", "after")
    )
    return {
        "before": spread(befores),
        "after": spread(afters),
        "gain": spread([after - before for before, after in zip(befores, afters, strict=True)]),
        "curve": {
            step: spread([curve[step] for _, curve in runs if step in curve])
            for step in sorted({step for _, curve in runs for step in curve})
        },
        "seconds": spread([summary["seconds"]["total"] for summary, _ in runs]),
    }


def spread(values: list[float]) -> list[float]:
    """Returns mean, lowest and highest."""
    return [round(x, 4) for x in (statistics.fmean(values), min(values), max(values))]


def plot(runs: dict[str, list[tuple[dict[str, Any], Curve]]], path: Path, title: str) -> None:
    """Draws every variant's mean curve in the band of its seeds."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for value, found in runs.items():
        steps = sorted(set.intersection(*(set(curve) for _, curve in found)))
        columns = [[curve[step] for _, curve in found] for step in steps]
        axes.plot(steps, [statistics.fmean(column) for column in columns], label=value)
        axes.fill_between(steps, list(map(min, columns)), list(map(max, columns)), alpha=0.15)
    axes.set(xlabel="updates", ylabel="greedy success on held-out tasks", title=title)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
