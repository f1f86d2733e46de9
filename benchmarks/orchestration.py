"""What share of an iteration is neither sampling, learning, environment steps nor broadcast?

    python benchmarks/orchestration.py db_bench warm_start.num_steps=60
    python benchmarks/orchestration.py quickstart

Runs `launch/train.py` on a config for a few iterations and reads its metrics; the first iteration,
in which kernels are compiled, is left out. Prints one JSON line: by part the median, lowest and
highest seconds of an iteration, and the share of orchestration and of broadcast in each.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from agentpeft.launch.run.metric_writers import read_metrics

ROOT = Path(__file__).parents[1]
PARTS = ("sample", "learn", "broadcast", "orchestration", "total")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    parser.add_argument("--iterations", type=int, default=8)
    args = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as folder:
        lines = run(args.config, args.settings, args.iterations, Path(folder))
    seconds = {part: [line[f"time/{part}_s"] for line in lines] for part in PARTS}
    report: dict[str, object] = {"config": args.config, "settings": args.settings}
    report["seconds"] = {part: spread(values) for part, values in seconds.items()}
    for part in ("orchestration", "broadcast"):
        shares = [own / all_ for own, all_ in zip(seconds[part], seconds["total"], strict=True)]
        report[f"{part}_share"] = spread(shares)
    print(json.dumps(report))


def run(config: str, settings: list[str], iterations: int, folder: Path) -> list[dict[str, float]]:
    """Returns the metrics of all iterations but the first."""
    command = [sys.executable, str(ROOT / "launch" / "train.py"), config, *settings]
    command += [f"training.num_iterations={iterations}", f"output.dir={folder}"]
    command += ["evaluation.interval=0", "evaluation.num_tasks=0"]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    run_dir = (ROOT / json.loads(done.stdout.splitlines()[-1])["adapter"]).parents[2]
    steps = [line for line in read_metrics(run_dir) if line.get("time/total_s") is not None]
    return [{name: value or 0.0 for name, value in line.items()} for line in steps[1:]]


def spread(values: list[float]) -> list[float]:
    """Returns median, lowest and highest."""
    return [round(x, 5) for x in (statistics.median(values), min(values), max(values))]


if __name__ == "__main__":
    main()
