"""A run's settings and checkpoints, written whole or not at all, and the best checkpoint.

A checkpoint is a folder that appears in one stroke, so a folder `checkpoint-…` was whole once. Its
manifest has the SHA-256 of every file, by which `reading` finds later damage. Names that begin with
a dot are leftovers of killed writers, and never read.

`best.json` names the best checkpoint by evaluation, and what it was measured at. `best` is a link
to it, for people and commands: made after the file, and again when a run is resumed.
"""

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from agentpeft.envs.core.errors import SettingsError, user_folders
from agentpeft.envs.system.whole_files import making, write_file
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.settings.config import Settings

CONFIG_FILE = "config.toml"
CONFIG_HASH = "# sha256 of the lines below: "
"""Begins the file of settings that a run has written."""
MODULE_FOLDERS = "# modules: "
"""Begins the line in it that says where the modules lie that the settings name."""
STATE_FILE = "algorithm.json"
MANIFEST_FILE = "manifest.json"
WANDB_ID_FILE = "wandb.id"
"""Under which id a run is at Weights & Biases, in its `logs` and in each checkpoint."""
BEST, _BEST_FILE = "best", "best.json"
logger = logging.getLogger(__name__)


def write_checkpoint(path: Path, files: Mapping[str, bytes]) -> None:
    """Writes `files` (by relative name) and their manifest as the folder `path`, in one stroke.

    An older folder of that name is replaced. Folders above `path` must be there: a run whose folder
    was deleted is not begun again without its settings.
    Raises: CheckpointError, the older folder untouched, as when the disk is full.
    """
    manifest = {"sha256": {name: compute_hash(content) for name, content in files.items()}}
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


def compute_hash(content: bytes) -> str:
    """Returns the SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()


def make_dated_folder(base: Path) -> Path:
    """Makes a run's folder in `base`, called by the time, and by a number where that is there.

    Raises: SettingsError where nothing can be written.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1, 1000):
        run_dir = base / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            run_dir.mkdir(parents=True)
        except FileExistsError as error:
            if not base.is_dir():
                raise cannot_write(base, error) from None
        except OSError as error:
            raise cannot_write(base, error) from None
        else:
            return run_dir
    raise cannot_write(base, FileExistsError(17, f"too many runs of {stamp}"))


def cannot_write(base: Path, error: OSError) -> SettingsError:
    """Returns the refusal of a folder in which no run can be made."""
    return SettingsError(f"output.dir: cannot write into {base}: {error.strerror}")


def write_config(run_dir: Path, settings: Settings) -> None:
    """Writes a run's settings as TOML below their own SHA-256, in one stroke. Raises: OSError."""
    text = f"{MODULE_FOLDERS}{json.dumps(user_folders)}\n{settings.to_toml()}"
    sha256 = compute_hash(text.encode())
    note = f"{CONFIG_HASH}{sha256}\n# change them by --resume RUN section.name=value\n"
    write_file(run_dir / CONFIG_FILE, f"{note}{text}".encode())


def checkpoint_path(folder: Path, iteration: int) -> Path:
    """Returns where the checkpoint after `iteration` lies; names sort by iteration."""
    return folder / f"checkpoint-{iteration:06d}"


def list_checkpoints(folder: Path) -> list[Path]:
    """Returns the checkpoints in a folder, oldest first; they may be damaged."""
    return sorted(path for path in folder.glob("checkpoint-*") if path.is_dir())


def prune_checkpoints(folder: Path, num_kept: int) -> None:
    """Deletes all but the newest checkpoints and the best."""
    best = read_best(folder)
    old = [
        path
        for path in list_checkpoints(folder)[:-num_kept]
        if best is None or path.name != best.checkpoint
    ]
    for path in old:
        shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True)
class BestCheckpoint:
    """The name of a checkpoint's folder, and its success rate on the evaluated tasks."""

    checkpoint: str
    success_rate: float


def read_best(folder: Path) -> BestCheckpoint | None:
    """Returns the best checkpoint in a folder; None where none was evaluated, or it is gone.

    Raises: CheckpointError where the file that names it is damaged.
    """
    path = folder / _BEST_FILE
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_bytes())
        best = BestCheckpoint(**{**values, "success_rate": float(values["success_rate"])})
        if not 0 <= best.success_rate <= 1:
            raise ValueError(f"success_rate {best.success_rate} is none")
        is_there = (folder / best.checkpoint).is_dir()
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise CheckpointError(f"{str(path)!r} is damaged: {error}; delete it") from None
    return best if is_there else None


def name_best(checkpoint: Path, success_rate: float) -> None:
    """Names a checkpoint the best of its folder. Raises: CheckpointError."""
    folder = checkpoint.parent
    content = json.dumps(asdict(BestCheckpoint(checkpoint.name, success_rate))).encode()
    try:
        write_file(folder / _BEST_FILE, content)
    except OSError as error:
        raise CheckpointError(f"cannot write {error.filename!r}: {error.strerror}") from error
    link_best(folder, checkpoint.name)


def forget_best(folder: Path) -> None:
    """Takes the name away, until an evaluation gives it again. Raises: CheckpointError."""
    path = folder / _BEST_FILE
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot take {str(path)!r} away: {error.strerror}") from error
    link_best(folder, None)


def link_best(folder: Path, name: str | None) -> None:
    """Links `best`, or takes the link away; a file system without links goes without one.

    A folder of that name, as a copy that followed links has it, is kept: it need not be a copy of
    what is there.
    """
    link = folder / BEST
    try:
        if link.is_dir() and not link.is_symlink():
            names = (folder / f"abandoned-{BEST}-{number}" for number in count(1))
            aside = next(path for path in names if not path.exists())
            link.rename(aside)
            logger.warning("%s was a folder and no link: set aside as %s", link, aside.name)
        if name is None:
            link.unlink(missing_ok=True)
            return
        new = folder / f".new-{BEST}"  # a reader finds the old link or the new one
        new.unlink(missing_ok=True)
        new.symlink_to(name)
        new.replace(link)
    except OSError as error:
        if name is None:
            raise CheckpointError(f"cannot take {str(link)!r} away: {error.strerror}") from error
        logger.warning("%s: no link to %s (%s)", link, name, error.strerror)
