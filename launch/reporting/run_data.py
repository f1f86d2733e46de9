"""What a run's folder holds, read for reports and exports."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from agentpeft.envs import DataError, SettingsError
from agentpeft.launch.run.metric_writers import METRICS_FILE

Row: TypeAlias = dict[str, Any]
"""A line of a JSONL file."""


@dataclass(frozen=True)
class RunData:
    """A run's metrics by line, and its settings by dotted name, as TOML would write them."""

    name: str
    path: Path
    metrics: list[Row]
    settings: dict[str, str]

    def series(self, metric: str) -> tuple[list[int], list[float]]:
        """Returns the steps at which a metric is a number, and its values."""
        found = [(r["train/step"], r[metric]) for r in self.metrics if r.get(metric) is not None]
        return [step for step, _ in found], [float(value) for _, value in found]

    def evaluations(self) -> tuple[Row, Row]:
        """Returns the first and the last line with an evaluation; both empty where none was."""
        found = [row for row in self.metrics if "eval/success_rate" in row] or [{}]
        return found[0], found[-1]

    def total(self, metric: str) -> float:
        """Returns the sum over all lines."""
        return sum(self.series(metric)[1])


def read_run(path: Path, *, may_be_new: bool = False) -> RunData:
    """Reads a run's folder, also of a run that goes on.

    `may_be_new`: it need not have measured anything yet. Raises: SettingsError, DataError.
    """
    metrics = list(read_rows(path / METRICS_FILE))
    config = path / "config.toml"
    if not metrics and not (may_be_new and config.is_file()):
        raise SettingsError(f"no run in {str(path)!r}: a run's folder has a {METRICS_FILE}")
    settings = tomllib.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    name = f"{settings.get('experiment', 'run')}/{path.resolve().name}"
    return RunData(name, path, metrics, dict(_flatten(settings)))


def read_rows(path: Path) -> Iterator[Row]:
    """Yields a JSONL file's lines; none of a missing file, nor a last one that is being written.

    Raises: DataError.
    """
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return
            try:
                yield json.loads(line)
            except ValueError as error:
                raise DataError(f"{path}, line {number}: {error}") from None


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, dict) and value and not name.endswith("kwargs"):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", json.dumps(value)
