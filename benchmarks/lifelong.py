"""What do methods of lifelong learning remember, over several orders and seeds?

    python benchmarks/lifelong.py arith5 --orders 3 --seeds 2
    python benchmarks/lifelong.py arith5 --orders 3 --seeds 6 --hours 5
    python benchmarks/lifelong.py db9 --seeds 3 --methods sequential,replay_5,bank,joint --no-kl

Runs the courses of `agentpeft lifelong` in `outputs/lifelong/<sequence>`, where the same command
goes on after it was stopped; with `--hours` no course begins after that time. Writes
`benchmarks/results/lifelong-<sequence>.json` after each course, with all matrices of those that are
done, and prints the table of methods as Markdown: means in points, with 95 % bootstrap
intervals, and the p-value of ACC against `sequential` (sign flips over the courses, by Holm).
"""

import argparse
import logging
import math
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from agentpeft.apps.lifelong.course import CourseResult
from agentpeft.apps.lifelong.lifelong_study import Study, run_study, summarize, write_results
from agentpeft.apps.lifelong.methods import METHODS
from agentpeft.apps.lifelong.page import write_page
from agentpeft.apps.lifelong.task_sequence import read_sequence
from agentpeft.envs import SettingsError
from agentpeft.launch.run.standard_streams import reserved_stdout
from agentpeft.launch.run.stop_signals import Stopped, StopSignals

ROOT = Path(__file__).parents[1]
SCORES = ("acc", "aia", "bwt", "fwt", "forgetting", "intransigence", "min_acc")


def main() -> None:
    """Runs the command."""
    parser = make_parser()
    args = parser.parse_intermixed_args()
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    methods = tuple(args.methods.split(",")) if args.methods else tuple(METHODS)
    try:
        sequence = read_sequence(args.sequence, args.settings)
        study = Study(sequence, methods, args.orders, args.seeds, not args.no_kl)
    except SettingsError as error:
        parser.error(str(error))
    folder = args.output or ROOT / "outputs" / "lifelong" / sequence.settings.experiment
    end_s = math.inf if args.hours is None else time.monotonic() + 3600 * args.hours
    path = ROOT / "benchmarks" / "results" / f"lifelong-{sequence.settings.experiment}.json"
    signals = StopSignals()
    done: list[CourseResult] = []
    with reserved_stdout() as stdout:
        try:
            with signals.handle(), closing(run_study(study, folder, signals)) as courses:
                for course in courses:
                    done.append(course)
                    write_results(done, summarize(done), path)
                    write_page(done, summarize(done), folder)
                    if time.monotonic() > end_s:
                        break
        except Stopped as stop:
            print(f"stopped by {stop}; the same command goes on", file=sys.stderr)
        if done:
            print(format_table(summarize(done)), file=stdout)


def make_parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sequence")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    parser.add_argument("--methods", metavar="A,B,...", help="some methods alone")
    parser.add_argument("--orders", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--no-kl", action="store_true", help="measure no KL divergences")
    parser.add_argument("--hours", type=float, help="begin no course after this time")
    parser.add_argument("--output", type=Path, help="where the runs are")
    return parser


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
