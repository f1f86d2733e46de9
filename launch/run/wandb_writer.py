"""Metrics and some of the episodes, for Weights & Biases."""

import json
import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from agentpeft.envs import SettingsError
from agentpeft.envs.core.errors import is_installed
from agentpeft.envs.system.whole_files import write_file
from agentpeft.policies.checkpointing.checkpoints import WANDB_ID_FILE
from agentpeft.policies.checkpointing.run_logs import SESSIONS
from agentpeft.policies.settings.config import Settings

COLUMNS = ["set", "iteration", "task_id", "skills", "outcome", "episode_return", "conversation"]
_NUM_SHOWN = 8


class WandbWriter:
    """Sends metrics to Weights & Biases, or keeps them for `wandb sync` when offline.

    With each evaluation, and at the end, a table `episodes` has some of those played since.

    A resumed run goes on under its id, which `logs/wandb.id` and each checkpoint hold. wandb takes
    no step twice: of one that is repeated after a return to an older checkpoint it keeps what came
    first.
    """

    def __init__(self, settings: Settings, run_dir: Path) -> None:
        """Raises: SettingsError where wandb is not installed, OSError."""
        if not is_installed("wandb"):  # it makes folders of its own name where it has run
            raise SettingsError(
                "output.loggers has 'wandb', which is not here: pip install 'agentpeft[wandb]'"
            )
        import wandb

        self._episodes, self._make_table = SampleEpisodes(run_dir), wandb.Table
        self._run = wandb.init(
            project=settings.experiment,
            name=run_dir.name,
            dir=str(run_dir / "logs"),
            id=_find_wandb_id(run_dir),
            resume=None if os.environ.get("WANDB_MODE") == "offline" else "allow",
            config=settings.model_dump(),
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs the metrics of one step; of an evaluation with the table."""
        table = self._table() if "eval/success_rate" in metrics else {}
        self._run.log({**metrics, **table}, step=step)

    def close(self) -> None:
        """Logs the table of what was played since the last one, and ends the run."""
        if table := self._table():
            self._run.log(table)
        self._run.finish()

    def _table(self) -> dict[str, object]:
        rows = self._episodes.take()
        return {"episodes": self._make_table(columns=[*COLUMNS], data=rows)} if rows else {}


def _find_wandb_id(run_dir: Path) -> str:
    """Returns the run's id; a new one where neither its logs nor a checkpoint have it."""
    path = run_dir / "logs" / WANDB_ID_FILE
    if not path.is_file():
        saved = sorted((run_dir / "checkpoints").glob(f"*/{WANDB_ID_FILE}"))
        write_file(path, saved[-1].read_bytes() if saved else uuid4().hex[:12].encode())
    return path.read_text(encoding="utf-8")


class SampleEpisodes:
    """Reads `sessions/train.jsonl` and `sessions/eval.jsonl` as they grow."""

    def __init__(self, run_dir: Path) -> None:
        """What is there already counts as seen."""
        paths = [run_dir / SESSIONS / f"{name}.jsonl" for name in ("train", "eval")]
        self._sizes = {path: path.stat().st_size if path.is_file() else 0 for path in paths}

    def take(self) -> list[list[Any]]:
        """Returns the newest eight of each file since the last call, with `COLUMNS`."""
        return [_to_row(path.stem, line) for path in self._sizes for line in self._read_new(path)]

    def _read_new(self, path: Path) -> list[bytes]:
        lines: deque[bytes] = deque(maxlen=_NUM_SHOWN)
        if path.is_file():
            with path.open("rb") as file:
                # A run that goes back to a checkpoint cuts its files: then a line may be under way
                start = min(self._sizes[path], path.stat().st_size)
                file.seek(max(start - 1, 0))
                if start:
                    file.readline()
                lines.extend(file)
                self._sizes[path] = file.tell()
        return list(lines)


def _to_row(name: str, line: bytes) -> list[Any]:
    episode = json.loads(line)
    talk = "\n\n".join(f"{role}: {text}" for role, text in episode["messages"])
    facts = {**episode, "set": name, "skills": ", ".join(episode["skills"]), "conversation": talk}
    return [facts[column] for column in COLUMNS]
