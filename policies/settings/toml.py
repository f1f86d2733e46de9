"""Settings as TOML: files that build on one another, and values as text."""

import json
import os
import tomllib
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from agentpeft.envs.core.errors import SettingsError, add_user_folder, user_folders
from agentpeft.policies.settings.environment_kwargs import mix_tables

_MODULE_FOLDERS = "# PYTHONPATH="
_ENVIRONMENT_KEYWORDS = (
    ("environment", "kwargs"),
    ("warm_start", "env_kwargs"),
    ("warm_start", "promote_at"),
    ("evaluation", "env_kwargs"),
    ("curriculum", "stages"),
)


def read_toml(
    path: str | Path, presets: Path | None = None, above: tuple[Path, ...] = ()
) -> dict[str, Any]:
    """Returns a TOML file's values, over those of the file that it names as its `base`.

    Several `[[environment]]` tables are the sources of one mixture. A base is a file
    (`base = "mine.toml"`, beside this one) or the name of one in `presets` (`base = "db_bench"`).
    `above` are the files that build on this one. Modules that settings name are looked for beside
    it too; those of a run where they were when it began. Raises: SettingsError.
    """
    own = Path(path).resolve()
    try:
        text = own.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"cannot read settings from {str(path)!r}: {error}") from None
    for modules in _find_module_folders(text) or [own.parent]:
        if modules != presets:
            add_user_folder(modules)
    if isinstance(values.get("environment"), list):
        values["environment"] = mix_tables(values["environment"])
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str) or not base:
        raise SettingsError(f"{path}: base must be a config's name or file, got {base!r:.60}")
    folder = own.parent if presets is None or base.endswith(".toml") else presets
    below = (folder / f"{base.removesuffix('.toml')}.toml").resolve()
    if below in (own, *above):
        raise SettingsError(f"{path}: base {base!r} leads back to {below.name}")
    return merge_settings(read_toml(below, presets, (own, *above)), values)


def note_module_folders() -> str:
    """Returns the comment by which a run's settings say where the modules that they name lie."""
    return f"{_MODULE_FOLDERS}{os.pathsep.join(user_folders)}\n" if user_folders else ""


def _find_module_folders(text: str) -> list[Path]:
    for line in text.splitlines():
        if line.startswith(_MODULE_FOLDERS):
            return [Path(folder) for folder in line[len(_MODULE_FOLDERS) :].split(os.pathsep)]
    return []


def merge_settings(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested settings in which `above` wins, setting by setting and keyword by keyword.

    Of a warm start's stages, keywords that are no list are the first stage's.

    Where it names another environment, the keywords for the one of `below` are left out.
    """
    result = deepcopy(dict(below))
    env_id = _table(above, "environment").get("id")
    if env_id not in (None, _table(below, "environment").get("id")):
        for section, key in _ENVIRONMENT_KEYWORDS:
            _table(result, section).pop(key, None)
    return _merge(result, above)


def _table(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = values.get(name)
    return table if isinstance(table, dict) else {}


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in above.items():
        match below.get(name), value:
            case dict() as old, dict():
                below[name] = _merge(old, value)
            case dict() as old, [dict() as first, *later] if name == "env_kwargs":
                below[name] = [_merge(old, first), *deepcopy(later)]
            case [dict() as first, *later], dict() if name == "env_kwargs":
                below[name] = [_merge(first, value), *later]
            case _:
                below[name] = deepcopy(value)
    return below


def parse_value(text: str) -> Any:
    """Returns what TOML makes of a value's text; what is no TOML is a bare word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def to_toml_value(value: Any) -> str:
    """Returns a value's TOML text, in one line."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {to_toml_value(item)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(to_toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
