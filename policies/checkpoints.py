"""Checkpoints as folders that are there whole or not at all, and the logs that grow beside them.

A folder is written under a temporary name beside its place, brought to the disk, then renamed.
Names that begin with a dot are such leftovers, and never read.
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.samples import EpisodeRecord, TokenRecord

CONFIG_FILE = "config.toml"
STATE_FILE = "algorithm.json"


def write_checkpoint(path: Path, files: Mapping[str, bytes]) -> None:
    """Writes `files` (by relative name) as the folder `path`, in one stroke.

    An older folder of that name stays until the new one is on the disk.
    Raises: CheckpointError, the older folder untouched, as when the disk is full.
    """
    new, old = (path.parent / f".{kind}-{path.name}-{os.getpid()}" for kind in ("new", "old"))
    try:
        for folder in (new, old):
            shutil.rmtree(folder, ignore_errors=True)
        for name, content in files.items():
            _write_synced(new / name, content)
        if path.exists():
            path.rename(old)
        new.rename(path)
        _sync(path.parent)
    except OSError as error:
        raise CheckpointError(f"cannot write checkpoint {str(path)!r}: {error}") from error
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        for folder in (new, old):
            shutil.rmtree(folder, ignore_errors=True)


def _write_synced(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    _sync(path.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_state(path: Path) -> dict[str, Any]:
    """Returns what a checkpoint's `algorithm.json` says. Raises: CheckpointError."""
    try:
        state = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{str(path)!r} is no checkpoint: {error}") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{str(path)!r} is no checkpoint: {STATE_FILE} holds no mapping")
    return state


def read_files(path: Path) -> dict[str, bytes]:
    """Returns all files of a checkpoint by their relative names. Raises: CheckpointError."""
    try:
        found = [file for file in path.rglob("*") if file.is_file()]
        return {str(file.relative_to(path)): file.read_bytes() for file in found}
    except OSError as error:
        raise CheckpointError(f"cannot read checkpoint {str(path)!r}: {error}") from None


def checkpoint_path(folder: Path, iteration: int) -> Path:
    """Returns where the checkpoint after `iteration` lies; names sort by iteration."""
    return folder / f"checkpoint-{iteration:06d}"


def list_checkpoints(folder: Path) -> list[Path]:
    """Returns the whole checkpoints in a folder, oldest first."""
    return sorted(path.parent for path in folder.glob(f"checkpoint-*/{STATE_FILE}"))


def latest_checkpoint(folder: Path) -> Path:
    """Returns the newest checkpoint in a folder. Raises: CheckpointError where there is none."""
    found = list_checkpoints(folder)
    if not found:
        raise CheckpointError(f"no checkpoint in {str(folder)!r}")
    return found[-1]


def prune_checkpoints(folder: Path, num_kept: int) -> None:
    """Deletes all but the newest checkpoints, and what killed writers left behind."""
    for path in (*list_checkpoints(folder)[:-num_kept], *folder.glob(".new-checkpoint-*")):
        shutil.rmtree(path, ignore_errors=True)


def append_episodes(
    path: Path, iteration: int, records: Iterable[EpisodeRecord | TokenRecord]
) -> None:
    """Appends one JSON line per episode. Raises: CheckpointError."""
    lines = [json.dumps({"iteration": iteration, **asdict(record)}) for record in records]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
    except OSError as error:
        raise CheckpointError(f"cannot write episodes to {str(path)!r}: {error}") from error


def measure_logs(run_dir: Path) -> dict[str, int]:
    """Returns the size in bytes of every JSONL file of a run, by its relative name."""
    found = run_dir.rglob("*.jsonl")
    return {str(path.relative_to(run_dir)): path.stat().st_size for path in sorted(found)}


def cut_logs(run_dir: Path, sizes: Mapping[str, int]) -> None:
    """Cuts a run's JSONL files back to what they were when measured (then unknown: to nothing)."""
    for name, size in measure_logs(run_dir).items():
        if size > sizes.get(name, 0):
            os.truncate(run_dir / name, sizes.get(name, 0))
