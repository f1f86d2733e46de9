"""What a run's folder holds, read for reports and exports."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import TypeAdapter, ValidationError

from agentpeft.envs import DataError, SettingsError
from agentpeft.launch.run.run_folder import say_no_run
from agentpeft.policies.checkpointing.checkpoints import CONFIG_FILE
from agentpeft.policies.checkpointing.run_logs import SESSIONS
from agentpeft.policies.loop.evaluation import is_held_out
from agentpeft.policies.messages import EpisodeRecord
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.section import Section

METRICS_FILE = "metrics.jsonl"
Row: TypeAlias = dict[str, Any]
"""A line of a JSONL file."""
_PLACE: dict[str, Any] = {"iteration": int, "group_id": int, "sample": int}
_TOKENS_FILE = "tokens.jsonl"
_FIELDS: dict[str, dict[str, Any]] = {METRICS_FILE: {"train/step": int}, _TOKENS_FILE: _PLACE}
"""What each line of a run's files has at least, by the file's name."""
_NEEDED = {"group_id", "sample", "task_id", "outcome", "episode_return", "messages"}
"""What each line of the other files in `sessions` has at least, beside its iteration."""
_EPISODES = TypeAdapter(EpisodeRecord)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
"""What a model that writes halves of characters leaves, and pydantic's reader refuses."""


@dataclass(frozen=True)
class RunData:
    """A run's metrics by line, and its settings by dotted name, as TOML would write them.

    `is_held_out`: training could not draw the tasks of evaluation; False where nobody can tell.
    """

    name: str
    path: Path
    metrics: list[Row]
    settings: dict[str, str]
    is_held_out: bool = False

    @property
    def evaluated_tasks(self) -> str:
        """The tasks of evaluation, as one speaks of them: "400 held-out tasks"."""
        last = self.evaluations()[1]
        samples = max(1, self.number("evaluation.samples_per_task", 1))
        num_tasks, num_seen = (
            int(last.get(f"eval/{name}") or 0) for name in ("num_episodes", "num_seen_tasks")
        )
        if num_seen:
            return f"evaluation tasks ({num_seen} of {num_tasks // samples} were trained on)"
        number = f"{num_tasks // samples} " if num_tasks else ""
        return f"{number}{'held-out' if self.is_held_out else 'evaluation'} tasks"

    def number(self, setting: str, default: int) -> int:
        """Returns a setting that is a whole number. Raises: DataError."""
        text = self.settings.get(setting, str(default))
        if not text.isdecimal():
            place = self.path / CONFIG_FILE
            raise DataError(f"{place}: {setting} must be a whole number from 0 on, got {text:.60}")
        return int(text)

    def series(self, metric: str) -> tuple[list[int], list[float]]:
        """Returns the steps at which a metric is a number, and its values."""
        points = [(r["train/step"], r[metric]) for r in self.metrics if r.get(metric) is not None]
        return [step for step, _ in points], [float(value) for _, value in points]

    def evaluations(self) -> tuple[Row, Row]:
        """Returns the first and the last line with an evaluation; both empty where none was."""
        evaluated = [row for row in self.metrics if "eval/success_rate" in row] or [{}]
        return evaluated[0], evaluated[-1]

    def total(self, metric: str) -> float:
        """Returns the sum over all lines."""
        return sum(self.series(metric)[1])


def read_run(path: Path, *, may_be_new: bool = False) -> RunData:
    """Reads a run's folder, also that of a run that still runs.

    `may_be_new`: it need not have measured anything yet. Raises: SettingsError, DataError.
    """
    metrics = list(read_rows(path / METRICS_FILE))
    config = path / CONFIG_FILE
    if not metrics and not config.is_file():
        raise SettingsError(say_no_run(path, METRICS_FILE))
    if not metrics and not may_be_new:
        raise SettingsError(f"{path}: the run has measured nothing yet: no line in {METRICS_FILE}")
    settings = _read_settings(config) if config.is_file() else {}
    name = f"{settings.get('experiment', 'run')}/{path.resolve().name}"
    return RunData(name, path, metrics, dict(_flatten(settings)), _is_held_out(settings))


def _is_held_out(settings: Mapping[str, Any]) -> bool:
    """Returns whether training cannot draw what is evaluated, if the settings are valid still."""
    made = Settings.__new__(Settings)
    try:
        Section.__init__(made, **settings)  # looking at a run imports none of its modules
    except ValidationError:
        return False
    return is_held_out(made)


def _read_settings(path: Path) -> dict[str, Any]:
    """Returns a file of settings as it is. Raises: DataError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged: {error}") from None


def read_rows(path: Path) -> Iterator[Row]:
    """Yields a JSONL file's lines; none of a missing file, nor a last one that is being written.

    Raises: DataError.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            yield parse_row(line, path, f"line {number}")


def parse_row(line: bytes, path: Path, place: str) -> Row:
    """Returns a line of a JSONL file, with what a line of a run's file must have.

    `place` is what messages call the line. Raises: DataError.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, {place}: no JSON ({error})") from None
    if not isinstance(row, dict):
        raise DataError(f"{path}, {place}: expected an object, got {row!r:.60}")
    if path.parent.name == SESSIONS and path.name != _TOKENS_FILE:
        _check_episode(line, row, f"{path}, {place}")
        return row
    for name, kind in _FIELDS.get(path.name, {}).items():
        if not isinstance(row.get(name), kind):
            raise DataError(f"{path}, {place}: {name!r} is damaged or missing")
    if path.name == METRICS_FILE:
        for name, value in row.items():
            if not isinstance(value, int | float | None):
                raise DataError(f"{path}, {place}: {name} is no number, got {value!r:.60}")
    return row


def _check_episode(line: bytes, row: Row, place: str) -> None:
    """Raises: DataError where a field has another type, or one is missing that all have."""
    wrong = [] if isinstance(row.get("iteration"), int) else ["iteration"]
    try:
        _EPISODES.validate_json(_SURROGATE.sub(rb"\\u0041", line), strict=True)
    except ValidationError as error:
        for each in error.errors():
            name = str(each["loc"][0]) if each["loc"] else "the line"
            if each["type"] != "missing" or name in _NEEDED:
                wrong.append(name)
    if wrong:
        raise DataError(f"{place}: {wrong[0]!r} is damaged or missing")


def read_sessions(run_dir: Path, name: str) -> Iterator[Row]:
    """Yields the lines of `sessions/NAME.jsonl`. Raises: DataError."""
    return read_rows(run_dir / SESSIONS / f"{name}.jsonl")


def to_record(row: Row) -> EpisodeRecord:
    """Returns an episode from a line of a sessions file. Raises: DataError."""
    try:
        return _EPISODES.validate_python(row)
    except ValidationError as error:
        name = error.errors()[0]["loc"][0]
        raise DataError(f"episode {row.get('task_id')!r}: {name!r} is damaged or missing") from None


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, dict) and value and not name.endswith("kwargs"):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", json.dumps(value, default=str)
