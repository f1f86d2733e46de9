"""A few of the episodes that a run has written since one last looked, as rows of a table."""

import json
from collections import deque
from pathlib import Path
from typing import Any

COLUMNS = ["set", "iteration", "task_id", "skills", "outcome", "episode_return", "conversation"]
_NUM_SHOWN = 8


class SampleEpisodes:
    """Reads `sessions/train.jsonl` and `sessions/eval.jsonl` as they grow."""

    def __init__(self, run_dir: Path) -> None:
        """What is there already counts as seen."""
        self._files = {name: run_dir / "sessions" / f"{name}.jsonl" for name in ("train", "eval")}
        self._seen = {n: p.stat().st_size if p.is_file() else 0 for n, p in self._files.items()}

    def take(self) -> list[list[Any]]:
        """Returns the newest eight of each file since the last call, with `COLUMNS`."""
        return [_to_row(name, line) for name in self._files for line in self._newest(name)]

    def _newest(self, name: str) -> list[bytes]:
        path = self._files[name]
        if not path.is_file():
            return []
        with path.open("rb") as file:
            file.seek(self._seen[name])
            lines = deque(file, _NUM_SHOWN)
            self._seen[name] = file.tell()
        return list(lines)


def _to_row(name: str, line: bytes) -> list[Any]:
    episode = json.loads(line)
    said = "\n\n".join(f"{role}: {text}" for role, text in episode["messages"])
    facts = {**episode, "set": name, "skills": ", ".join(episode["skills"]), "conversation": said}
    return [facts[column] for column in COLUMNS]
