"""Which settings name files of this machine, and the same settings with other names for them."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.tasks import ENVIRONMENT_FILES

_FILES = {"model": ("name", "adapter"), "training": ("teacher", "chats")}
ENV_KWARGS = {
    "environment": "kwargs",
    "warm_start": "env_kwargs",
    "evaluation": "env_kwargs",
    "curriculum": "stages",
}
"""By section, the setting with keyword arguments of environments: one mapping, or stages."""
_BUILT_IN = ("tiny", "hub")
_HASHED_BYTES = 64 << 20


def rename_files(settings: Settings, rename: Callable[[str], str]) -> Settings:
    """Returns the settings with whatever may name files changed by `rename`.

    They are the names of models, adapters and chats, which may be hub ids too, and of environments'
    files, in mixtures too.
    """

    def change(value: Any) -> Any:
        if isinstance(value, dict):  # a task file and its index
            return {key: change(item) for key, item in value.items()}
        return rename(value) if isinstance(value, str) else value

    changed: dict[str, Any] = {}
    for name, section in settings:
        update = {key: change(getattr(section, key)) for key in _FILES.get(name, ())}
        if name in ENV_KWARGS:
            update[ENV_KWARGS[name]] = _change_data(getattr(section, ENV_KWARGS[name]), change)
        if update:
            changed[name] = section.model_copy(update=update)
    return settings.model_copy(update=changed)


def find_path(name: str) -> Path | None:
    """Returns the whole path of what a setting names here; None where there is no such file."""
    try:
        path = Path(name).expanduser().resolve()
        return path if name not in _BUILT_IN and path.exists() else None
    except (OSError, RuntimeError, ValueError):  # no path, or of no user
        return None


def hash_files(path: Path) -> str:
    """Returns the SHA-256 of a file, or of a folder's names and files.

    Of a file above 64 MiB, as a base's weights, the size and the last MiB count. Raises: OSError.
    """
    digest = hashlib.sha256()
    for file in files_of(path):
        size = file.stat().st_size
        digest.update(f"{file.relative_to(path)} {size}\n".encode())
        with file.open("rb") as content:
            content.seek(0 if size <= _HASHED_BYTES else size - (1 << 20))
            digest.update(content.read())
    return digest.hexdigest()


def hash_named(name: str) -> str | None:
    """Returns the hash of the files that a setting names here; None where there are none."""
    path = find_path(name)
    return None if path is None else hash_files(path)


def files_of(path: Path) -> list[Path]:
    """Returns a file, or all files in a folder and below."""
    return sorted(file for file in (path, *path.rglob("*")) if file.is_file())


def _change_data(value: Any, change: Callable[[Any], Any]) -> Any:
    """Returns keyword arguments, or several, with each name of files changed."""
    if isinstance(value, list | tuple):
        return type(value)(_change_data(item, change) for item in value)
    if not isinstance(value, dict):
        return value
    return {
        key: change(item) if key in ENVIRONMENT_FILES else _change_data(item, change)
        for key, item in value.items()
    }
