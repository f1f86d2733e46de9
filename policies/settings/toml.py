"""Settings as TOML: files that build on one another, and values as text."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from agentpeft.envs.core.errors import SettingsError, add_user_folder, shown
from agentpeft.policies.settings.environment_kwargs import mix_tables

CONFIG_HASH = "# sha256 of the lines below: "
"""Begins the file of settings that a run has written."""
_ENVIRONMENT_KEYWORDS = (
    ("environment", "kwargs"),
    ("warm_start", "env_kwargs"),
    ("warm_start", "promote_at"),
    ("evaluation", "env_kwargs"),
    ("curriculum", "stages"),
)
PRETRAINED = "pretrained"
"""In a file about the built-in model: the table of what another model takes in its place."""
_OF_BUILT_IN = ("base", "tiny", "warm_start", "env_runners", "training")
"""What such a file says of the built-in model alone; the rest is about its tasks."""


def read_toml(
    path: str | Path, presets: Path | None = None, above: tuple[Path, ...] = ()
) -> dict[str, Any]:
    """Returns a TOML file's values, over those of the file that it names as its `base`.

    Several `[[environment]]` tables are the sources of one mixture. A base is a file
    (`base = "mine.toml"`, beside this one) or the name of one in `presets` (`base = "db_bench"`).
    `above` are the files that build on this one. Modules that settings name are looked for beside
    it too, but not in a run's folder. Raises: SettingsError.

    A file about the built-in model may have a table `pretrained`, with a `base` of its own. Then
    the result has all settings once more below that name, for any other model: of this file those
    of its tasks, over the table's base, and below the table's own.
    """
    own = Path(path).resolve()
    try:
        text = own.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"cannot read settings from {str(path)!r}: {error}") from None
    if own.parent != presets and not text.startswith(CONFIG_HASH):  # a run's folder is data
        add_user_folder(own.parent)
    if isinstance(values.get("environment"), list):
        values["environment"] = mix_tables(values["environment"])
    if PRETRAINED in values:
        table = values.pop(PRETRAINED)
        if not isinstance(table, dict):
            raise SettingsError(f"{path}: {PRETRAINED} must be a table, got {shown(table)}")
        tasks = {name: value for name, value in values.items() if name not in _OF_BUILT_IN}
        values[PRETRAINED] = _over_base(_merge(deepcopy(tasks), table), own, presets, above)
    return _over_base(values, own, presets, above)


def _over_base(
    values: dict[str, Any], own: Path, presets: Path | None, above: tuple[Path, ...]
) -> dict[str, Any]:
    """Returns a file's values over those of its `base`. Raises: SettingsError."""
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str) or not base:
        raise SettingsError(f"{own}: base must be a config's name or file, got {base!r:.60}")
    folder = own.parent if presets is None or base.endswith(".toml") else presets
    below = (folder / f"{base.removesuffix('.toml')}.toml").resolve()
    if below in (own, *above):
        raise SettingsError(f"{own}: base {base!r} leads back to {below.name}")
    return merge_settings(read_toml(below, presets, (own, *above)), values)


def merge_settings(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested settings in which `above` wins, setting by setting and keyword by keyword.

    Of a warm start's stages, keywords that are no list are the first stage's.

    Where it names another environment, the keywords for the one of `below` are left out. What
    either has for pretrained models is merged alike.
    """
    if PRETRAINED in {*below, *above}:
        sides = dict(below), dict(above)
        others = [side.pop(PRETRAINED, side) for side in sides]
        return {**merge_settings(*sides), PRETRAINED: merge_settings(*others)}
    result = deepcopy(dict(below))
    env_id = _table(above, "environment").get("id")
    if env_id not in (None, _table(below, "environment").get("id")):
        for section, key in _ENVIRONMENT_KEYWORDS:
            _table(result, section).pop(key, None)
    return _merge(result, above)


def describe_pretrained(values: Mapping[str, Any], overrides: Sequence[str]) -> str:
    """Returns which settings a pretrained model leaves out, and which it takes but `overrides`."""
    after = values[PRETRAINED]
    old, new = dict(_flatten({**values, PRETRAINED: {}})), dict(_flatten(after))
    overridden = {override.partition("=")[0].strip() for override in overrides}
    left_out = [
        name if name.partition(".")[0] in after else name.partition(".")[0]
        for name in old.keys() - new.keys()
    ]
    taken = [
        f"{name}={to_toml_value(value)}"
        for name, value in new.items()
        if old.get(name) != value and name not in overridden
    ]
    return (
        f"left out what is for the built-in model ({', '.join(sorted({*left_out}))}); "
        f"took {' '.join(taken)}"
    )


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


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
