"""How far is the time that `agentpeft estimate` expects of a run from what the run takes?

    python benchmarks/expected_time.py arithmetic_add training.num_iterations=20
    python benchmarks/expected_time.py db_bench_commit training.num_iterations=10

Takes what `train` takes. The time is estimated before the run and again after it, since what else
the machine does changes meanwhile. One JSON line: seconds that both estimates expected and that the
run spent, by part and in all (its warm start and the loading of models apart, which neither
counts), and the ratios of the second to the mean of the first.
"""

import json
import logging
import os
import sys
import tempfile
from contextlib import redirect_stdout
from io import StringIO

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

from agentpeft.apps.lab.estimate import RunTime, measure_run_time
from agentpeft.launch.data.task_files import with_task_files
from agentpeft.launch.run.command_line import split_settings
from agentpeft.launch.run.run_folder import read_start
from agentpeft.launch.train import main as train
from agentpeft.policies.models.tiny_cache import load_tiny
from agentpeft.policies.settings.config import Settings

PARTS = {"sample": "sampling_s", "learn": "learning_s", "broadcast": "delivery_s"}


def expected(settings: Settings) -> dict[str, float]:
    """Returns an estimate's seconds by part, and in all."""
    run_time: RunTime = measure_run_time(settings)
    parts = {part: float(getattr(run_time, field)) for part, field in PARTS.items()}
    return parts | {"total": sum(parts.values()) + run_time.evaluation_s}


def spent(words: list[str]) -> dict[str, float]:
    """Runs `train` in a folder that is then removed; returns the seconds of its summary."""
    printed = StringIO()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(printed):
        status = train([*words, f"output.dir={folder}"])
    if status != 0:
        sys.exit(status)
    seconds: dict[str, float] = json.loads(printed.getvalue().splitlines()[-1])["seconds"]
    return seconds


def main() -> None:
    """Estimates, runs, estimates again, and prints the line."""
    logging.getLogger("agentpeft").setLevel(logging.WARNING)
    words = sys.argv[1:]
    settings = with_task_files(read_start(*split_settings(words)).settings)
    if settings.is_tiny:
        load_tiny(settings)  # its warm start is no part of either
    first = expected(settings)
    run = spent(words)
    second = expected(settings)
    rounded = [{n: round(s, 2) for n, s in each.items()} for each in (first, second, run)]
    ratios = {name: round(run[name] * 2 / (first[name] + second[name]), 2) for name in first}
    names = ("expected_before_s", "expected_after_s", "spent_s")
    line = dict(zip(names, rounded, strict=True)) | {"ratio": ratios}
    print(json.dumps({"words": words, **line, "load": round(os.getloadavg()[0], 1)}))


if __name__ == "__main__":
    main()
