"""`config.toml`: the settings in a run's folder, below their hash, for a resume."""

import hashlib
import json
from pathlib import Path

from agentpeft.envs.core.errors import SettingsError, put_user_folders_first, user_folders
from agentpeft.envs.system.whole_files import write_file
from agentpeft.policies.settings.config import Settings

CONFIG_FILE = "config.toml"
CONFIG_HASH = "# sha256 of the lines below: "
"""Begins the file of settings that a run has written."""
_MODULE_FOLDERS = "# modules: "
"""Begins the line that says where the modules lie that the settings name."""


def write_config(run_dir: Path, settings: Settings) -> None:
    """Writes a run's settings as TOML below their own SHA-256, in one stroke. Raises: OSError."""
    text = f"{_MODULE_FOLDERS}{json.dumps(user_folders)}\n{settings.to_toml()}"
    sha256 = hashlib.sha256(text.encode()).hexdigest()
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
    if first != f"{CONFIG_HASH}{hashlib.sha256(text).hexdigest()}".encode():
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
