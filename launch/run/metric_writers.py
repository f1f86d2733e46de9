"""Where metrics go: the console, `metrics.jsonl`, TensorBoard, Weights & Biases."""

import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Protocol, TextIO

from agentpeft.envs.system.whole_files import naming_file
from agentpeft.launch.reporting.run_data import METRICS_FILE, Row, read_rows
from agentpeft.launch.run.summary import LEFT
from agentpeft.policies.settings.config import Settings

CONSOLE_FIELDS = {
    "loss": "train/policy_loss",
    "accuracy": "train/accuracy",
    "reward": "train/avg_reward",
    "lr": "train/lr",
    "grad_norm": "train/grad_norm",
}


class MetricWriter(Protocol):
    """Takes the metrics of one iteration; step 0 is before the first."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows or keeps them. Raises: OSError."""
        ...

    def close(self) -> None:
        """Writes what is pending."""
        ...


class JsonlWriter:
    """Appends one object per iteration to `metrics.jsonl`."""

    def __init__(self, path: Path) -> None:
        """Opens the file when there is something to write."""
        self.path = path

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends a line; what is no finite number is written as null."""
        line = {name: _finite(value) for name, value in {**metrics, "train/step": step}.items()}
        with naming_file(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Does nothing: every line is on its way."""


class TensorBoardWriter:
    """Writes event files beside the metrics."""

    def __init__(self, folder: Path) -> None:
        """Opens an event file in `folder`."""
        from torch.utils.tensorboard import SummaryWriter

        self._folder = folder
        with naming_file(folder):
            self._writer = SummaryWriter(str(folder))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds one scalar for each metric that is a finite number."""
        with naming_file(self._folder):
            for name, value in metrics.items():
                if math.isfinite(value):
                    self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Closes the event file."""
        with naming_file(self._folder):
            self._writer.close()


class LineConsole:
    """Prints one JSON line per iteration: for logs, where no terminal is."""

    def __init__(self, output: TextIO) -> None:
        """Prints to `output`."""
        self._output = output

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Prints the console's fields, success where it was measured, and the time left."""
        line: dict[str, float | None] = {"step": step}
        names = CONSOLE_FIELDS | {"success_rate": "eval/success_rate", "left_s": LEFT}
        line |= {f: _finite(metrics[name]) for f, name in names.items() if name in metrics}
        print(json.dumps(line), file=self._output, flush=True)

    def close(self) -> None:
        """Does nothing."""


_WIDE = 120
"""Columns of a terminal from which on there is room for a bar and all numbers."""


class ProgressConsole:
    """A progress bar with the console's fields, on a terminal."""

    def __init__(self, num_iterations: int, output: TextIO) -> None:
        """Starts the bar on `output`."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        console = Console(file=output)
        names = {field: field for field in CONSOLE_FIELDS} | {"accuracy": "success"}
        if console.width < _WIDE:
            names = {field: names[field] for field in ("loss", "accuracy", "reward")}
        fields = [TextColumn(f"{name} {{task.fields[{field}]}}") for field, name in names.items()]
        bar = [BarColumn(20)] if console.width >= _WIDE else []
        self._progress = Progress(
            TextColumn("iteration"),
            MofNCompleteColumn(),
            *bar,
            *fields,
            TextColumn("{task.fields[left]}"),
            console=console,
            redirect_stdout=sys.stderr.isatty(),  # lines of others stand above the bar
            redirect_stderr=sys.stderr.isatty(),
        )
        blank = {**dict.fromkeys(CONSOLE_FIELDS, "-"), "left": ""}
        self._progress.start()
        self._task = self._progress.add_task("train", total=num_iterations, **blank)  # type: ignore[arg-type]

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Moves the bar; evaluations stay on the screen above it."""
        shown = {
            field: f"{metrics[name]:.4g}" if math.isfinite(metrics[name]) else "-"
            for field, name in CONSOLE_FIELDS.items()
            if name in metrics
        }
        if LEFT in metrics:
            shown["left"] = f"{timedelta(seconds=round(metrics[LEFT]))} left"
        self._progress.update(self._task, completed=step, **shown)  # type: ignore[arg-type]
        if "eval/success_rate" in metrics:
            rate = metrics["eval/success_rate"]
            self._progress.console.print(f"iteration {step}: success {rate:.1%}")

    def close(self) -> None:
        """Leaves the last state of the bar on the screen."""
        self._progress.stop()


@contextmanager
def open_writers(
    settings: Settings,
    run_dir: Path,
    output: TextIO | None = None,
) -> Iterator[list[MetricWriter]]:
    """Yields all writers that the settings ask for, and closes them. Raises: SettingsError.

    The console's is on `output` (None: standard output).
    """
    output = output or sys.stdout
    with ExitStack() as stack:
        writers: list[MetricWriter] = []

        def add(writer: MetricWriter) -> None:
            stack.callback(writer.close)
            writers.append(writer)

        add(JsonlWriter(run_dir / METRICS_FILE))
        if "tensorboard" in settings.output.loggers:
            add(TensorBoardWriter(run_dir / "logs"))
        if "wandb" in settings.output.loggers:
            from agentpeft.launch.run.wandb_writer import WandbWriter

            add(WandbWriter(settings, run_dir))
        if output.isatty():
            add(ProgressConsole(settings.training.num_iterations, output))
        else:
            add(LineConsole(output))
        yield writers


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def read_metrics(run_dir: Path) -> list[Row]:
    """Returns the lines of a run's `metrics.jsonl`; none of a missing file. Raises: DataError."""
    return list(read_rows(run_dir / METRICS_FILE))
