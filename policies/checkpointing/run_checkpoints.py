"""A run's own checkpoints: what is in one, which is the newest and which the best.

How a folder is written whole and read verified is in `checkpoints`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentpeft.policies.checkpointing.best_checkpoint import BEST, forget_best, name_best, read_best
from agentpeft.policies.checkpointing.checkpoints import (
    STATE_FILE,
    WANDB_ID_FILE,
    check_logs,
    checkpoint_path,
    cut_logs,
    is_same_checkpoint,
    measure_logs,
    prune_checkpoints,
    read_checkpoint,
    read_state,
    seal_logs,
    set_aside_newer,
    settings_of,
    write_checkpoint,
)
from agentpeft.policies.checkpointing.run_history import STATS_FILE, RunHistory
from agentpeft.policies.checkpointing.session_files import SESSIONS
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.loop.held_out import SEEN_FILE, SeenTasks
from agentpeft.policies.settings.config import Settings

_FIXED = ("model", "tiny", "lora")
"""Sections of the settings that must be the same in a checkpoint and the run that restores it."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and fits the run.

    `files`: by relative name. `state`: what `algorithm.json` says. `is_own`: it is one of this
    run's, not another run's.
    """

    source: Path
    files: Mapping[str, bytes]
    state: Mapping[str, Any]
    is_own: bool
    seen: SeenTasks
    history: RunHistory


class RunCheckpoints:
    """The checkpoints in a run's folder, and what is saved beside the learner's state.

    `seen`: the tasks that were learnt from. `history`: rewards and success so far. `newest`: the
    checkpoint that was saved or restored last, None before.
    """

    def __init__(self, run_dir: Path, settings: Settings) -> None:
        """Makes the run's folder. It is never made again: a run whose folder is deleted fails."""
        self._run_dir, self._settings = run_dir, settings
        self._folder = run_dir / "checkpoints"
        self._folder.mkdir(parents=True, exist_ok=True)
        if settings.output.episodes:
            (run_dir / SESSIONS).mkdir(exist_ok=True)
        self.seen, self.history = SeenTasks(), RunHistory()
        self.newest: Path | None = None
        self._saved_iteration: int | None = None  # of the own checkpoint last saved or restored
        self._first_logs: dict[str, int] = {}

    def is_saved(self, iteration: int) -> bool:
        """Whether the run's own folder has a checkpoint of the policy after `iteration`."""
        return self._saved_iteration == iteration

    def is_best(self, iteration: int) -> bool:
        """Whether the policy was evaluated after `iteration`, and beats the best checkpoint."""
        rate = self.history.success_rate_at(iteration)
        if rate is None:
            return False
        best = read_best(self._folder)
        return best is None or rate > best.success_rate

    def mark_beginning(self) -> None:
        """Remembers how long the logs are: `go_back_to_beginning` cuts them to that."""
        self._first_logs = measure_logs(self._run_dir)

    def go_back_to_beginning(self) -> None:
        """Forgets all that was learnt since `mark_beginning`."""
        self.seen, self.history = SeenTasks(), RunHistory()
        cut_logs(self._run_dir, self._first_logs)

    def save(
        self, path: str | Path | None, state: Mapping[str, Any], learner_files: Mapping[str, bytes]
    ) -> Path:
        """Writes a checkpoint, whole or not at all, and returns its path.

        `path` None: the run's own folder, which keeps the newest and the best. `state` is a JSON
        object with `iteration` and `num_episodes`. Raises: CheckpointError.
        """
        iteration = state["iteration"]
        target = checkpoint_path(self._folder, iteration) if path is None else Path(path)
        if path is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
        settings = self._settings.model_dump(mode="json")
        state = {**state, "settings": settings, **seal_logs(self._run_dir)}
        files = {
            **learner_files,
            SEEN_FILE: self.seen.to_bytes(),
            STATE_FILE: json.dumps(state, indent=1).encode(),
            STATS_FILE: self.history.to_bytes(iteration, state["num_episodes"]),
        }
        wandb_id = self._run_dir / "logs" / WANDB_ID_FILE
        if wandb_id.is_file():
            files[WANDB_ID_FILE] = wandb_id.read_bytes()
        if path is None and not self.is_saved(iteration):
            best = read_best(self._folder)
            if best is not None and best.checkpoint == target.name:  # another policy's
                forget_best(self._folder)
        write_checkpoint(target, files)
        if path is None:
            self.newest, self._saved_iteration = target, iteration
            self.name_best(iteration)
            prune_checkpoints(self._folder, self._settings.output.num_checkpoints_kept)
        return target

    def read(self, path: str | Path) -> Checkpoint:
        """Returns a checkpoint to go on from.

        Raises: CheckpointError where a file is damaged or missing, or model or adapter differ.
        """
        source = Path(path)
        if source.is_symlink():  # `checkpoints/best`, whose own name says nothing of its age
            source = source.resolve()
        files = read_checkpoint(source)
        state = read_state(files)
        is_own = source.resolve().is_relative_to(self._run_dir.resolve())
        if is_own:
            check_logs(self._run_dir, state)
        own, saved = self._settings.model_dump(mode="json"), settings_of(state)
        for section in _FIXED:
            if saved[section] != own[section]:
                raise CheckpointError(
                    f"checkpoint {str(source)!r} has {section} = {saved[section]}, "
                    f"this run {own[section]}"
                )
        seen, history = SeenTasks.of_bytes(files.get(SEEN_FILE)), RunHistory(files.get(STATS_FILE))
        return Checkpoint(source, files, state, is_own, seen, history)

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Takes in what was read, once the learners have restored theirs.

        If it is this run's own, later checkpoints are set aside and the logs are cut back to it.
        Raises: CheckpointError.
        """
        self.seen, self.history = checkpoint.seen, checkpoint.history
        source, iteration = checkpoint.source, checkpoint.state["iteration"]
        named, best = checkpoint_path(self._folder, iteration), self._folder / BEST
        is_copy = source.resolve() == best.resolve() and not best.is_symlink()
        if is_copy and not named.exists():  # the best was copied alone, its link followed
            source = best.rename(named)
        is_saved = is_same_checkpoint(named, source)
        self.newest = named if is_saved else source
        self._saved_iteration = iteration if is_saved else None
        if checkpoint.is_own:
            set_aside_newer(self._folder, iteration)
            cut_logs(self._run_dir, checkpoint.state["logs"])
            self.name_best(iteration)  # the run may have ended before it could

    def name_best(self, iteration: int) -> None:
        """Names the checkpoint of an iteration the best, once it is saved and evaluated so."""
        rate = self.history.success_rate_at(iteration)
        checkpoint = checkpoint_path(self._folder, iteration)
        is_there = self.is_saved(iteration) and checkpoint.is_dir()
        if rate is not None and is_there and self.is_best(iteration):
            name_best(checkpoint, rate)
            prune_checkpoints(self._folder, self._settings.output.num_checkpoints_kept)
