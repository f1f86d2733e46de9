"""The JSONL files of a run, which only grow: its metrics, and its episodes in `sessions`.

A checkpoint has their sizes. A run that goes back to it cuts them to what they were, so what is
there must begin as it did then.
"""

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentpeft.envs.system.whole_files import bring_to_disk
from agentpeft.policies.checkpointing.checkpoints import compute_hash
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.messages import EpisodeRecord, TokenRecord

logger = logging.getLogger(__name__)
SESSIONS = "sessions"
"""A run's folder of episodes."""
RUN_LOGS = ("metrics.jsonl", *(f"{SESSIONS}/{name}.jsonl" for name in ("train", "eval", "tokens")))


def append_episodes(
    path: Path, iteration: int, records: Iterable[EpisodeRecord | TokenRecord]
) -> None:
    """Appends one JSON line per episode.

    A folder that was deleted since the run began is made again, and what is lost with it said.
    Raises: CheckpointError.
    """
    try:
        if not path.parent.exists():
            path.parent.mkdir()
            logger.warning("%s was deleted, with all episodes so far: made again", path.parent)
        with path.open("a", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps({"iteration": iteration, **asdict(record)}) + "\n")
    except OSError as error:
        raise CheckpointError(f"cannot write episodes to {str(path)!r}: {error}") from error


def measure_logs(run_dir: Path) -> dict[str, int]:
    """Returns the size in bytes of every JSONL file that a run has written, by its relative name.

    What others have put into its folder, as an evaluation or an export, is not the run's.
    """
    return {name: (run_dir / name).stat().st_size for name in RUN_LOGS if (run_dir / name).exists()}


def seal_logs(run_dir: Path) -> dict[str, Any]:
    """Brings a run's JSONL files to the disk; returns what a resume needs to know them again.

    The metrics are known by their hash. The episodes below, which may be gigabytes and are never
    read again, are known by their size alone. Raises: CheckpointError.
    """
    try:
        sizes = measure_logs(run_dir)
        for name in sizes:
            bring_to_disk(run_dir / name)
        hashes = {n: compute_hash((run_dir / n).read_bytes()) for n in sizes if "/" not in n}
    except OSError as error:
        raise CheckpointError(f"cannot write {error.filename!r} to the disk: {error}") from error
    return {"logs": sizes, "log_sha256": hashes}
