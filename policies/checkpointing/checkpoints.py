"""A run's checkpoints, which are whole or refused, the best among them, and its settings.

A checkpoint is a folder that appears in one stroke, so a folder `checkpoint-…` was whole once. Its
manifest has the SHA-256 of every file, so that later damage is found before anything is restored.
The hashes guard against damaged disks and edited files, not against someone who writes a manifest
of their own. Names that begin with a dot are leftovers of killed writers, and never read.

`best.json` names the best checkpoint by evaluation, and what it was measured at. `best` is a link
to it, for people and commands: made after the file, and again when a run is resumed.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from agentpeft.envs.core.errors import SettingsError, put_user_folders_first, user_folders
from agentpeft.envs.system.whole_files import making, write_file
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import CONFIG_HASH, merge_settings

CONFIG_FILE = "config.toml"
STATE_FILE = "algorithm.json"
MANIFEST_FILE = "manifest.json"
WANDB_ID_FILE = "wandb.id"
"""Under which id a run is at Weights & Biases, in its `logs` and in each checkpoint."""
BEST, _BEST_FILE = "best", "best.json"
_STATE_KEYS = {"iteration", "position", "num_episodes", "settings", "logs", "log_sha256"}
_MODULE_FOLDERS = "# modules: "
"""Begins the line of a run's settings that says where the modules that they name lie."""
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
        damaged = [name for name, content in files.items() if compute_hash(content) != hashes[name]]
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
    text = f"{_MODULE_FOLDERS}{json.dumps(user_folders)}\n{settings.to_toml()}"
    sha256 = compute_hash(text.encode())
    note = f"{CONFIG_HASH}{sha256}\n# change them by --resume RUN section.name=value\n"
    write_file(run_dir / CONFIG_FILE, f"{note}{text}".encode())


def read_config(run_dir: Path) -> Settings:
    """Returns a run's settings, for a resume: modules are looked for where they were.

    Raises: SettingsError where the file is missing or was edited.
    """
    path = run_dir / CONFIG_FILE
    try:
        first, _, below = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise SettingsError(f"cannot read settings from {str(path)!r}: {error.strerror}") from None
    text = below.partition(b"\n")[2]
    if first != f"{CONFIG_HASH}{compute_hash(text)}".encode():
        raise SettingsError(
            f"{str(path)!r} is not as the run has written it: put it back as it was, and change "
            "settings by --resume RUN section.name=value"
        )
    use_module_folders(run_dir)
    return Settings.from_toml(path)


def use_module_folders(run_dir: Path) -> None:
    """Looks for modules where a run's file of settings says that they were; never in the run.

    Raises: SettingsError where the file is damaged.
    """
    path, inside = run_dir / CONFIG_FILE, run_dir.resolve()
    try:
        lines = path.read_text("utf-8").splitlines()[:3]
        line = next((line for line in lines if line.startswith(_MODULE_FOLDERS)), "")
        folders = json.loads(line.removeprefix(_MODULE_FOLDERS) or "[]")
        put_user_folders_first(f for f in folders if not Path(f).is_relative_to(inside))
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(f"cannot read settings from {str(path)!r}: {error}") from None


def checkpoint_path(folder: Path, iteration: int) -> Path:
    """Returns where the checkpoint after `iteration` lies; names sort by iteration."""
    return folder / f"checkpoint-{iteration:06d}"


def list_checkpoints(folder: Path) -> list[Path]:
    """Returns the checkpoints in a folder, oldest first; they may be damaged."""
    return sorted(path for path in folder.glob("checkpoint-*") if path.is_dir())


def latest_checkpoint(folder: Path) -> Path:
    """Returns the newest checkpoint in a folder. Raises: CheckpointError where there is none."""
    checkpoints = list_checkpoints(folder)
    if not checkpoints:
        raise CheckpointError(f"no checkpoint in {str(folder)!r}")
    return checkpoints[-1]


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


def is_same_checkpoint(path: Path, other: Path) -> bool:
    """Whether two folders are checkpoints with the same files, as their manifests say."""
    manifests = (path / MANIFEST_FILE, other / MANIFEST_FILE)
    if not all(manifest.is_file() for manifest in manifests):
        return False
    return manifests[0].read_bytes() == manifests[1].read_bytes()


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
        _link_best(folder, best.checkpoint)


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
    _link_best(folder, checkpoint.name)


def forget_best(folder: Path) -> None:
    """Takes the name away, until an evaluation gives it again. Raises: CheckpointError."""
    path = folder / _BEST_FILE
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot take {str(path)!r} away: {error.strerror}") from error
    _link_best(folder, None)


def _link_best(folder: Path, name: str | None) -> None:
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
