"""What did the reward teach, skill by skill?

    python benchmarks/control.py quickstart --seeds 0-2
    python benchmarks/control.py db_bench training.num_iterations=200 --seeds 0-2

Three measurements for each seed: a run of `launch/train.py`; its control, the same run with the
rewards shuffled among an update's episodes (`training.shuffle_rewards`); and eight samples of each
held-out task before training, for pass@8. Each is a line of `--results` as soon as it is there, and
lines that are there are not measured again, so it can be stopped at any time.

The start is the built-in model as its warm start leaves it; of another model it is the model
itself, so a config with a warm start of such a one is not for this benchmark.

Prints a table: greedy success on held-out tasks before, after, and after the control, and pass@8
before, of each skill and in all: mean (lowest to highest) of the seeds, in percent.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentpeft.launch.run.metric_writers import read_metrics

ROOT = Path(__file__).parents[1]
_SAMPLES = 8
_SKILL = "eval/skill/"
KINDS = ("start", "run", "control")


def main() -> None:
    """Runs the command."""
    args = make_parser().parse_intermixed_args()
    first, last = map(int, args.seeds.split("-"))
    name = f"control-{Path(args.config).stem}.jsonl"
    results = args.results or ROOT / "benchmarks" / "results" / name
    if not results.parent.is_dir():
        sys.exit(f"{results.parent} is no folder")
    asked = {"config": args.config, "settings": args.settings}
    done = {(line["seed"], line["kind"]) for line in read_lines(results, asked)}
    for seed in range(first, last + 1):
        for kind in KINDS:
            if (seed, kind) not in done:
                with tempfile.TemporaryDirectory() as folder:
                    measured = measure(kind, args.config, args.settings, seed, Path(folder))
                line = {"seed": seed, "kind": kind, **asked, **measured}
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
    print(format_table(read_lines(results, asked)))


def make_parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    parser.add_argument("--seeds", default="0-2", help="first and last")
    parser.add_argument("--results", type=Path, help="a JSONL file that is appended to")
    return parser


def read_lines(path: Path, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns what has been measured so far of a config and its settings."""
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return [line for line in lines if all(line[name] == own for name, own in asked.items())]


def measure(
    kind: str, config: str, settings: Sequence[str], seed: int, folder: Path
) -> dict[str, Any]:
    """Returns what a line of results holds of one measurement."""
    words = [config, *settings, f"seed={seed}"]
    if kind == "start":
        run(
            "evaluate",
            *words,
            f"evaluation.samples_per_task={_SAMPLES}",
            "--policy",
            "base",
            "--output",
            str(folder / "start"),
        )
        found = json.loads((folder / "start" / "results.json").read_text())["policies"]["base"]
        by_skill = {n: own[f"pass_at/{_SAMPLES}"] for n, own in found["by_skill"].items()}
        by_skill["all"] = found["metrics"][f"pass_at/{_SAMPLES}"]
        return {"pass_at_8": by_skill, "sampled": found["metrics"]["success_rate"]}
    if kind == "control":
        words += ["training.shuffle_rewards=true"]
    output = run("train", *words, f"output.dir={folder}", "output.loggers=['episodes']")
    summary = json.loads(output.splitlines()[-1])
    run_dir = (ROOT / summary["adapter"]).parents[2]  # above checkpoints/checkpoint-N/adapter
    rows = [row for row in read_metrics(run_dir) if row.get("eval/success_rate") is not None]
    return {
        "before": by_skill_of(rows[0]),
        "after": by_skill_of(rows[-1]),
        "curve": {str(int(row["train/step"])): by_skill_of(row)["all"] for row in rows},
        "seconds": summary["seconds"],
    }


def run(name: str, *words: str) -> str:
    """Runs a command of `launch/` and returns its output."""
    command = [sys.executable, str(ROOT / "launch" / f"{name}.py"), *words]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def by_skill_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Returns an evaluation's success rates by skill, and in all."""
    rates = {n.removeprefix(_SKILL): v for n, v in row.items() if n.startswith(_SKILL)}
    return rates | {"all": row["eval/success_rate"]}


def format_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Returns the table in Markdown."""
    by_kind = {kind: [line for line in lines if line["kind"] == kind] for kind in KINDS}
    columns = {
        "before": [line["before"] for line in by_kind["run"]],
        "after": [line["after"] for line in by_kind["run"]],
        "control": [line["after"] for line in by_kind["control"]],
        f"pass@{_SAMPLES} before": [line["pass_at_8"] for line in by_kind["start"]],
    }
    skills = sorted({name for line in by_kind["run"] for name in line["before"]} - {"all"})
    table = [f"| skill | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for skill in [*skills, "all"]:
        cells = [
            spread([own[skill] for own in found if skill in own]) for found in columns.values()
        ]
        table.append(f"| {skill} | {' | '.join(cells)} |")
    return "\n".join(table)


def spread(rates: Sequence[float]) -> str:
    """Returns mean, lowest and highest in percent."""
    if not rates:
        return ""
    mean, low, high = (100 * x for x in (statistics.fmean(rates), min(rates), max(rates)))
    return f"{mean:.1f} ({low:.1f} to {high:.1f})"


if __name__ == "__main__":
    main()
