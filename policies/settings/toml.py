"""Settings as TOML: files that build on one another, and overrides of the command line."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from agentpeft.envs.core.errors import SettingsError, add_user_folder, did_you_mean, shown
from agentpeft.policies.checkpointing.checkpoints import CONFIG_HASH
from agentpeft.policies.settings.config import setting_names, to_toml_value
from agentpeft.policies.settings.environment_kwargs import MIXTURE, SOURCES, parse_value
from agentpeft.policies.settings.wrong_settings import unknown_setting

_ENVIRONMENT_KEYWORDS = (
    ("environment", "kwargs"),
    ("warm_start", "env_kwargs"),
    ("warm_start", "promote_at"),
    ("evaluation", "env_kwargs"),
    ("curriculum", "stages"),
)
_SOURCE_KEYS = ("name", "id", "kwargs", "weight")
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
    except (OSError, ValueError, RecursionError) as error:  # no TOML, or thousands of digits
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"cannot read settings from {str(path)!r}: {reason}") from None
    if not values:
        raise SettingsError(f"{str(path)!r} has no settings")
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
    if not (base.endswith(".toml") or below.is_file()):
        names = [file.stem for file in folder.glob("*.toml")]
        raise SettingsError(
            f"{own}: no config has the name base = {base!r}{did_you_mean(base, names)} "
            "(that of a file beside this one ends in .toml)"
        )
    if below in (own, *above):
        raise SettingsError(f"{own}: base {base!r} leads back to {below.name}")
    return merge_settings(read_toml(below, presets, (own, *above)), values)


def mix_tables(tables: Sequence[Any]) -> dict[str, Any]:
    """Returns the section `environment` that `[[environment]]` tables stand for: their mixture.

    A table is a source with its `name`, `id` and `kwargs`, and may have a `weight`, 1 otherwise.
    Raises: SettingsError.

    >>> mix_tables([{"name": "a", "id": "A", "weight": 3}, {"name": "b", "id": "B"}])["kwargs"]
    {'sources': [{'name': 'a', 'id': 'A'}, {'name': 'b', 'id': 'B'}], 'weights': [3, 1]}
    """
    kwargs: dict[str, Any] = {SOURCES: []}
    for number, table in enumerate(tables):
        if not isinstance(table, Mapping):
            raise SettingsError(f"environment {number} must be a table, got {shown(table)}")
        for key in sorted(table.keys() - set(_SOURCE_KEYS)):
            raise SettingsError(
                f"[[environment]] table {number} has an unknown key {key!r}"
                f"{did_you_mean(key, _SOURCE_KEYS)}"
            )
        kwargs[SOURCES].append({key: value for key, value in table.items() if key != "weight"})
    if any("weight" in table for table in tables):
        kwargs["weights"] = [table.get("weight", 1) for table in tables]
    return {"id": MIXTURE, "kwargs": kwargs}


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


def with_overrides(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Returns nested settings with `section.name=value` overrides applied.

    A value is read as TOML, else as a bare word; empty is the default. Where `values` have others
    for pretrained models and the model is one, those are taken. Raises: SettingsError.
    """
    result = deepcopy(dict(values))
    other = result.pop(PRETRAINED, None)
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals:
            raise SettingsError(f"an override is written section.name=value, got {override!r}")
        *path, leaf = parts = name.strip().split(".")
        section: Any = result
        for part in path:
            if (
                part == "reward"
                and isinstance(section, dict)
                and isinstance(section.get(part), str)
            ):
                section[part] = {"preset": section[part]}
            section = section.setdefault(part, {}) if isinstance(section, dict) else None
            if isinstance(section, list | tuple) and parts[:2] == ["warm_start", "env_kwargs"]:
                section = section[0] if section else None  # later stages keep what the first has
        if ".".join(parts[:2]) not in setting_names() or not isinstance(section, dict):
            raise unknown_setting(name.strip())
        section[leaf] = parse_value(text.strip())
        if not text.strip():
            del section[leaf]
    model = result.get("model")
    name = model.get("name", "tiny") if isinstance(model, dict) else "tiny"
    if name == "tiny":
        return result
    is_word = isinstance(name, str) and "/" not in name
    if is_word and get_close_matches(name, ["tiny"], cutoff=0.75) and not Path(name).exists():
        raise SettingsError(f"model.name {name!r} is no folder; did you mean 'tiny'?")
    return result if other is None else with_overrides(other, overrides)
