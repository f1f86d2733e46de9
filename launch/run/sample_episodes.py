"""A few of the episodes that a run has written since one last looked, as rows of a table."""

import json
from collections import deque
from pathlib import Path
from typing import Any

from agentpeft.policies.checkpointing.session_files import SESSIONS, number_parts

COLUMNS = ["set", "iteration", "task_id", "skills", "outcome", "episode_return", "conversation"]
_NUM_SHOWN = 8


class SampleEpisodes:
    """Reads `sessions/train.jsonl` and `sessions/eval.jsonl` as they grow."""

    def __init__(self, run_dir: Path) -> None:
        """What is there already counts as seen."""
        self._files = {name: run_dir / SESSIONS / f"{name}.jsonl" for name in ("train", "eval")}
        self._seen: dict[str, tuple[int, int]] = {}
        for name, path in self._files.items():
            for number, part in number_parts(path)[-1:]:
                self._seen[name] = number, part.stat().st_size

    def take(self) -> list[list[Any]]:
        """Returns the newest eight of each file since the last call, with `COLUMNS`."""
        return [_to_row(name, line) for name in self._files for line in self._newest(name)]

    def _newest(self, name: str) -> list[bytes]:
        """Returns the last new lines; `_seen` is the number of the part read last, and how far.

        The file that is appended to is the part after the last one.
        """
        last_part, size = self._seen.get(name, (0, 0))
        lines: deque[bytes] = deque(maxlen=_NUM_SHOWN)
        for number, path in number_parts(self._files[name]):
            if number < last_part:
                continue
            with path.open("rb") as file:
                file.seek(size if number == last_part else 0)
                lines.extend(file)
                self._seen[name] = number, file.tell()
        return list(lines)


def _to_row(name: str, line: bytes) -> list[Any]:
    episode = json.loads(line)
    said = "\n\n".join(f"{role}: {text}" for role, text in episode["messages"])
    facts = {**episode, "set": name, "skills": ", ".join(episode["skills"]), "conversation": said}
    return [facts[column] for column in COLUMNS]
