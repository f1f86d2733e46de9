"""Reading what a run has written, its settings and checkpoints: they are whole or refused.

The hashes of the manifest guard against damaged disks and edited files, not against someone who
writes a manifest of their own.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentpeft.envs.core.errors import SettingsError, put_user_folders_first
from agentpeft.policies.checkpointing.checkpoints import (
    CONFIG_FILE,
    CONFIG_HASH,
    MANIFEST_FILE,
    MODULE_FOLDERS,
    STATE_FILE,
    compute_hash,
    list_checkpoints,
)
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import merge_settings

_WEIGHTS = (".safetensors", ".bin")
_OTHER = f"does not match its SHA-256 in {MANIFEST_FILE}"
_STATE_KEYS = {"iteration", "position", "num_episodes", "settings", "logs", "log_sha256"}


def read_checkpoint(path: Path) -> dict[str, bytes]:
    """Returns a checkpoint's files by their relative names, each as it was written.

    Raises: CheckpointError that names the first file that is missing, cannot be read or does not
    match the manifest, and the checkpoint before it that is whole.
    """
    try:
        return _read_verified(path)
    except CheckpointError as error:
        raise CheckpointError(f"{error}{_hint_at_older(path)}") from None


def check_policy(folder: Path) -> None:
    """Compares the weights of a checkpoint's adapter, or whole model, with its manifest.

    The settings beside them are text, in which a user may name a base that was moved. What lies
    elsewhere has no manifest, and passes. Raises: CheckpointError.
    """
    place = folder.resolve()
    checkpoint = place.parent
    if (checkpoint / STATE_FILE).is_file():
        try:
            _check_weights(checkpoint, place.name)
        except CheckpointError as error:
            raise CheckpointError(f"{error}{_hint_at_older(checkpoint)}") from None


def _check_weights(path: Path, policy: str) -> None:
    """Reads the weights in parts, since a whole model's may be larger than the memory."""
    for name, sha256 in _read_hashes(path).items():
        if Path(name).parent != Path(policy) or Path(name).suffix not in _WEIGHTS:
            continue
        try:
            with (path / name).open("rb") as file:
                is_same = hashlib.file_digest(file, "sha256").hexdigest() == sha256
            reason = _OTHER
        except (OSError, ValueError) as error:
            is_same, reason = False, f"cannot be read ({error})"
        if not is_same:
            advice = "weights that were changed on purpose are used from a copy elsewhere"
            raise _damaged(path, f"{name} {reason}; {advice}")


def _read_hashes(path: Path) -> dict[str, str]:
    """Returns a manifest's hashes by the files' names. Raises: CheckpointError."""
    try:
        return dict(json.loads((path / MANIFEST_FILE).read_bytes())["sha256"])
    except FileNotFoundError:
        reason = "is missing"
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, RecursionError):
        reason = "is no manifest"
    raise _damaged(path, f"{MANIFEST_FILE} {reason}")


def _read_verified(path: Path) -> dict[str, bytes]:
    hashes, files = _read_hashes(path), dict[str, bytes]()
    for name in sorted(hashes):
        try:
            files[name] = (path / name).read_bytes()
        except FileNotFoundError:
            raise _damaged(path, f"{name} is missing, and {MANIFEST_FILE} lists it") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise _damaged(path, f"{name} cannot be read ({reason})") from None
    for name, content in files.items():
        if compute_hash(content) != hashes[name]:
            raise _damaged(path, f"{name} {_OTHER}")
    return files


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"checkpoint {str(path)!r} is damaged: {what}")


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


def latest_checkpoint(folder: Path) -> Path:
    """Returns the newest checkpoint in a folder. Raises: CheckpointError where there is none."""
    checkpoints = list_checkpoints(folder)
    if not checkpoints:
        raise CheckpointError(f"no checkpoint in {str(folder)!r}")
    return checkpoints[-1]


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
        line = next((line for line in lines if line.startswith(MODULE_FOLDERS)), "")
        folders = json.loads(line.removeprefix(MODULE_FOLDERS) or "[]")
        put_user_folders_first(f for f in folders if not Path(f).is_relative_to(inside))
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(f"cannot read settings from {str(path)!r}: {error}") from None
