"""A run's files: checkpoints that are whole or refused, its settings, and its growing logs.

A checkpoint is a folder that appears in one stroke, so a folder `checkpoint-…` was whole once. Its
manifest has the SHA-256 of every file, so that later damage is found before anything is restored.
The hashes guard against damaged disks and edited files, not against someone who writes a manifest
of their own. Names that begin with a dot are leftovers of killed writers, and never read.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentpeft.envs.core.errors import SettingsError
from agentpeft.envs.system.whole_files import bring_to_disk, making, write_file
from agentpeft.policies.checkpointing.best_checkpoint import mend_best, read_best
from agentpeft.policies.checkpointing.session_files import SESSIONS, find_then, undo_parts
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import merge_settings

CONFIG_FILE = "config.toml"
STATE_FILE = "algorithm.json"
MANIFEST_FILE = "manifest.json"
WANDB_ID_FILE = "wandb.id"
"""Under which id a run is at Weights & Biases, in its `logs` and in each checkpoint."""
_STATE_KEYS = {"iteration", "position", "num_episodes", "settings", "logs", "log_sha256"}
_CONFIG_HASH = "# sha256 of the lines below: "
logger = logging.getLogger(__name__)


def write_checkpoint(path: Path, files: Mapping[str, bytes]) -> None:
    """Writes `files` (by relative name) and their manifest as the folder `path`, in one stroke.

    An older folder of that name is replaced. Folders above `path` must be there: a run whose folder
    was deleted is not begun again without its settings.
    Raises: CheckpointError, the older folder untouched, as when the disk is full.
    """
    manifest = {"sha256": {name: _hash(content) for name, content in files.items()}}
    files = {**files, MANIFEST_FILE: json.dumps(manifest, indent=1).encode()}
    try:
        with making(path, replaces_folder=True) as new:
            for name, content in files.items():
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).write_bytes(content)
    except OSError as error:
        raise CheckpointError(
            f"cannot write checkpoint {str(path)!r}: {error.strerror or error}"
        ) from error


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_checkpoint(path: Path) -> dict[str, bytes]:
    """Returns a checkpoint's files by their relative names, each as it was written.

    Raises: CheckpointError that names the first file that is missing, cannot be read or does not
    match the manifest, and the checkpoint before it that is whole.
    """
    try:
        return _read_verified(path)
    except CheckpointError as error:
        raise CheckpointError(f"{error}{_hint_at_older(path)}") from None


def _read_verified(path: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    name = MANIFEST_FILE
    try:
        hashes = json.loads((path / MANIFEST_FILE).read_bytes())["sha256"]
        for name in sorted(hashes):
            files[name] = (path / name).read_bytes()
    except FileNotFoundError:
        reason = "is missing"
        if name != MANIFEST_FILE:
            reason += f", and {MANIFEST_FILE} lists it"
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError):
        reason = "is no manifest"
    else:
        damaged = [name for name, content in files.items() if _hash(content) != hashes[name]]
        if not damaged:
            return files
        name, reason = damaged[0], f"does not match its SHA-256 in {MANIFEST_FILE}"
    raise CheckpointError(f"checkpoint {str(path)!r} is damaged: {name} {reason}")


def _hint_at_older(path: Path) -> str:
    for older in reversed(list_checkpoints(path.parent)):
        if older.name < path.name:
            try:
                _read_verified(older)
            except CheckpointError:
                continue
            return f"; the newest whole one before it is {str(older)!r}"
    return ""


def read_state(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Returns what a checkpoint's `algorithm.json` says. Raises: CheckpointError."""
    try:
        state = json.loads(files[STATE_FILE])
        missing = _STATE_KEYS - state.keys()
    except (KeyError, ValueError, AttributeError) as error:
        raise CheckpointError(f"no checkpoint: {STATE_FILE} cannot be read ({error})") from None
    if missing:
        raise CheckpointError(f"{STATE_FILE} of a checkpoint lacks {', '.join(sorted(missing))}")
    return dict(state)


def settings_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a run when it wrote the checkpoint whose `read_state` is `state`.

    A setting that did not exist yet has its default: the run did what that does.
    """
    return merge_settings(Settings().model_dump(mode="json"), state["settings"])


def write_config(run_dir: Path, settings: Settings) -> None:
    """Writes a run's settings as TOML below their own SHA-256, in one stroke. Raises: OSError."""
    text = settings.to_toml()
    note = (
        f"{_CONFIG_HASH}{_hash(text.encode())}\n# change them by --resume RUN section.name=value\n"
    )
    write_file(run_dir / CONFIG_FILE, f"{note}{text}".encode())


def read_config(run_dir: Path) -> Settings:
    """Returns a run's settings. Raises: SettingsError where the file is missing or was edited."""
    path = run_dir / CONFIG_FILE
    try:
        first, _, rest = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise SettingsError(f"cannot read settings from {str(path)!r}: {error.strerror}") from None
    text = rest.partition(b"\n")[2]
    if first != f"{_CONFIG_HASH}{_hash(text)}".encode():
        raise SettingsError(
            f"{str(path)!r} is not as the run has written it: put it back as it was, and change "
            "settings by --resume RUN section.name=value"
        )
    return Settings.from_toml(path)


def checkpoint_path(folder: Path, iteration: int) -> Path:
    """Returns where the checkpoint after `iteration` lies; names sort by iteration."""
    return folder / f"checkpoint-{iteration:06d}"


def list_checkpoints(folder: Path) -> list[Path]:
    """Returns the checkpoints in a folder, oldest first; they may be damaged."""
    return sorted(path for path in folder.glob("checkpoint-*") if path.is_dir())


def latest_checkpoint(folder: Path) -> Path:
    """Returns the newest checkpoint in a folder. Raises: CheckpointError where there is none."""
    found = list_checkpoints(folder)
    if not found:
        raise CheckpointError(f"no checkpoint in {str(folder)!r}")
    return found[-1]


def prune_checkpoints(folder: Path, num_kept: int) -> None:
    """Deletes all but the newest checkpoints and the best, and what killed writers left behind."""
    best = read_best(folder)
    old = [
        path
        for path in list_checkpoints(folder)[:-num_kept]
        if best is None or path.name != best.checkpoint
    ]
    for path in (*old, *folder.glob(".new-checkpoint-*")):
        shutil.rmtree(path, ignore_errors=True)


def is_same_checkpoint(path: Path, other: Path) -> bool:
    """Whether two folders are checkpoints with the same files, as their manifests say."""
    manifests = (path / MANIFEST_FILE, other / MANIFEST_FILE)
    if not all(manifest.is_file() for manifest in manifests):
        return False
    return manifests[0].read_bytes() == manifests[1].read_bytes()


def set_aside_newer(folder: Path, iteration: int) -> None:
    """Renames the checkpoints after an iteration to `abandoned-…`: the run goes on without them.

    Raises: CheckpointError.
    """
    for path in list_checkpoints(folder):
        if path.name > checkpoint_path(folder, iteration).name:
            aside = path.with_name(f"abandoned-{path.name}")
            try:
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)
            except OSError as error:
                raise CheckpointError(f"cannot set {str(path)!r} aside: {error}") from error
            logger.warning("%s: set aside as %s", path.name, aside.name)
    mend_best(folder)


def measure_logs(run_dir: Path) -> dict[str, int]:
    """Returns the size in bytes of every JSONL file of a run, by its relative name."""
    found = run_dir.rglob("*.jsonl")
    return {str(path.relative_to(run_dir)): path.stat().st_size for path in sorted(found)}


def seal_logs(run_dir: Path) -> dict[str, Any]:
    """Brings a run's JSONL files to the disk; returns what `check_logs` needs to know them again.

    The metrics are known by their hash. The episodes below, which may be gigabytes and are never
    read again, are known by their size alone. Raises: CheckpointError.
    """
    try:
        sizes = measure_logs(run_dir)
        for name in sizes:
            bring_to_disk(run_dir / name)
        hashes = {n: _hash((run_dir / n).read_bytes()) for n in sizes if "/" not in n}
    except OSError as error:
        raise CheckpointError(f"cannot write {error.filename!r} to the disk: {error}") from error
    return {"logs": sizes, "log_sha256": hashes}


def check_logs(run_dir: Path, state: Mapping[str, Any]) -> None:
    """Raises: CheckpointError where a JSONL file no longer begins as it did at a checkpoint."""
    for name, size in state["logs"].items():
        is_session = name.startswith(f"{SESSIONS}/")
        path = find_then(run_dir, name, state["logs"]) if is_session else run_dir / name
        if path is None:
            continue
        expected, present = state["log_sha256"].get(name), 0
        if path.is_file():
            present = path.stat().st_size
        if present < size:
            problem = f"has {present} bytes, and had {size} at the checkpoint"
        elif expected and _hash(path.read_bytes()[:size]) != expected:
            problem = "no longer begins as it did at the checkpoint"
        else:
            continue
        raise CheckpointError(f"{str(path)!r} is damaged: it {problem}")


def cut_logs(run_dir: Path, sizes: Mapping[str, int]) -> None:
    """Cuts a run's JSONL files back to what they were when measured (then unknown: to nothing)."""
    undo_parts(run_dir, sizes)
    for name, size in measure_logs(run_dir).items():
        if size > sizes.get(name, 0):
            os.truncate(run_dir / name, sizes.get(name, 0))
