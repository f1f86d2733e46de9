"""Going back to a checkpoint: the learner's state, and the run's own checkpoints and logs."""

import io
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from agentpeft.envs import SettingsError
from agentpeft.policies.checkpointing.checkpoints import (
    BEST,
    MANIFEST_FILE,
    checkpoint_path,
    compute_hash,
    forget_best,
    link_best,
    list_checkpoints,
    read_best,
)
from agentpeft.policies.checkpointing.reading import read_checkpoint, read_state, settings_of
from agentpeft.policies.checkpointing.run_checkpoints import (
    SEEN_FILE,
    STATS_FILE,
    RunCheckpoints,
    RunHistory,
)
from agentpeft.policies.checkpointing.run_logs import RUN_LOGS, measure_logs
from agentpeft.policies.delivery.adapter_files import rename_base
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.workers.learner_group import ADAPTER, STATE, LearnerActor

logger = logging.getLogger(__name__)
_FIXED = ("model", "tiny", "lora")
"""Sections of the settings that must be the same in a checkpoint and the run that restores it."""
_ZIP = b"PK\3\4"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and fits the run.

    `files`: by relative name. `state`: what `algorithm.json` says. `is_own`: it is one of this
    run's, not another run's. `seen`, `history`: see `RunCheckpoints`.
    """

    source: Path
    files: Mapping[str, bytes]
    state: Mapping[str, Any]
    is_own: bool
    seen: set[int]
    history: RunHistory


def read_to_resume(run: RunCheckpoints, path: str | Path) -> Checkpoint:
    """Returns a checkpoint to resume from.

    Raises: CheckpointError where a file is damaged or missing, or model or adapter differ.
    """
    source = Path(path)
    if source.is_symlink():  # `checkpoints/best`, whose own name says nothing of its age
        source = source.resolve()
    files = read_checkpoint(source)
    state = read_state(files)
    is_own = source.resolve().is_relative_to(run.run_dir.resolve())
    if is_own:
        check_logs(run.run_dir, state)
    present, saved = run.settings.model_dump(mode="json"), settings_of(state)
    for section in _FIXED:
        if saved[section] != present[section]:
            raise CheckpointError(
                f"checkpoint {str(source)!r} has {section} = {saved[section]}, "
                f"this run {present[section]}"
            )
    if SEEN_FILE not in files:
        raise CheckpointError(f"the checkpoint has no {SEEN_FILE}: an older version wrote it")
    seen = set(np.frombuffer(files[SEEN_FILE], "<u8").tolist())
    return Checkpoint(source, files, state, is_own, seen, _read_history(files.get(STATS_FILE)))


def _read_history(content: bytes | None) -> RunHistory:
    try:
        stats: dict[str, Any] = json.loads(content or "{}")
        return RunHistory(stats.get("iterations", []), stats.get("evaluations", []))
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"{STATS_FILE} cannot be read ({error})") from None


def restore_learner(actor: LearnerActor, files: Mapping[str, bytes]) -> None:
    """Restores what `LearnerActor.to_files` returned. Raises: CheckpointError, SettingsError."""
    try:
        if not files[STATE].startswith(_ZIP):  # torch would take it for a pickle
            raise UnpicklingError("it is no file of torch")
        state = torch.load(io.BytesIO(files[STATE]), map_location="cpu", weights_only=True)
    except (KeyError, RuntimeError, EOFError, UnpicklingError) as error:
        raise CheckpointError(f"the learner's state cannot be read: {error}") from None
    with TemporaryDirectory() as folder:
        for name, content in rename_base(files, actor.places).items():
            if name.startswith(f"{ADAPTER}/"):
                path = Path(folder) / Path(name).relative_to(ADAPTER)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        try:
            actor.learner.policy.load(folder)
        except (CheckpointError, SettingsError) as error:  # by then this folder is gone
            text = str(error).replace(f"{folder}/", "").replace(folder, "of the checkpoint")
            raise type(error)(text) from error
    actor.learner.load_state_dict(state)


def resume_from(run: RunCheckpoints, checkpoint: Checkpoint) -> None:
    """Takes over what was read, once the learners have restored theirs.

    If it is one of this run's, later checkpoints are set aside and the logs are cut back to it.
    Raises: CheckpointError.
    """
    run.seen, run.history = checkpoint.seen, checkpoint.history
    source, iteration = checkpoint.source, checkpoint.state["iteration"]
    named, best = checkpoint_path(run.folder, iteration), run.folder / BEST
    is_copy = source.resolve() == best.resolve() and not best.is_symlink()
    if is_copy and not named.exists():  # the best was copied alone, its link followed
        source = best.rename(named)
    is_saved = _is_same(named / MANIFEST_FILE, source / MANIFEST_FILE)
    run.newest = named if is_saved else source
    run.saved_iteration = iteration if is_saved else None
    if checkpoint.is_own:
        set_aside_newer(run.folder, iteration)
        cut_logs(run.run_dir, checkpoint.state["logs"])
        run.name_best(iteration)  # the run may have ended before it could


def _is_same(manifest: Path, other: Path) -> bool:
    """Returns whether both are there and name the same files."""
    are_there = manifest.is_file() and other.is_file()
    return are_there and manifest.read_bytes() == other.read_bytes()


def go_back_to_beginning(run: RunCheckpoints) -> None:
    """Forgets all that was learnt since `RunCheckpoints.mark_beginning`."""
    run.seen, run.history = set(), RunHistory()
    cut_logs(run.run_dir, run.first_logs)


def set_aside_newer(folder: Path, iteration: int) -> None:
    """Renames the checkpoints after an iteration to `abandoned-…`: the run resumes without them.

    If the best is among them it loses its name. Raises: CheckpointError.
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
    if (best := read_best(folder)) is None:
        forget_best(folder)
    else:
        link_best(folder, best.checkpoint)


def check_logs(run_dir: Path, state: Mapping[str, Any]) -> None:
    """Raises: CheckpointError where a JSONL file no longer begins as it did at a checkpoint."""
    for name, size in state["logs"].items():
        if name not in RUN_LOGS:
            continue  # an export, say, which older checkpoints list
        path, expected = run_dir / name, state["log_sha256"].get(name)
        present = path.stat().st_size if path.is_file() else 0
        if present < size:
            problem = f"has {present} bytes, and had {size} at the checkpoint"
        elif expected and compute_hash(path.read_bytes()[:size]) != expected:
            problem = "no longer begins as it did at the checkpoint"
        else:
            continue
        raise CheckpointError(f"{str(path)!r} is damaged: it {problem}")


def cut_logs(run_dir: Path, sizes: Mapping[str, int]) -> None:
    """Cuts a run's JSONL files back to what they were when measured (then unknown: to nothing)."""
    for name, size in measure_logs(run_dir).items():
        if size > sizes.get(name, 0):
            os.truncate(run_dir / name, sizes.get(name, 0))
