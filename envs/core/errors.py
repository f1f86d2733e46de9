"""The suite's error vocabulary: our mistakes, bad data, and the world's faults.

An agent's mistake is none of these: it is an observation, a reward and `info["outcome"]`.
"""

import os
import sys
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from math import isfinite
from os import PathLike, fspath
from pathlib import Path
from types import ModuleType
from typing import Any

_MAX_NAMES = 40
_MAX_NAME_CHARS = 200
_MAX_PATH_CHARS = 32_767
_MAX_ERROR_CHARS = 400
_MAX_COUNT = 2**31 - 1
_MAX_DURATION_S = 1_000_000  # the system's clocks and polls take no more than some weeks


class SettingsError(ValueError):
    """A setting that cannot work; the message says what was expected, the value got, what to do."""


class UnknownSettingError(SettingsError, TypeError):
    """An unknown keyword argument; also a TypeError, which callers expect for one."""


class DataError(ValueError):
    """A task file that cannot be read; the message begins with file, line or row, and field."""


class UnknownTaskError(KeyError):
    """An unknown task id."""

    def __str__(self) -> str:
        """Returns the message itself (`KeyError` would show its repr)."""
        return str(self.args[0])


class EnvFault(RuntimeError):  # noqa: N818 (a fault, not a mistake)
    """The world's fault (database gone, container died): record it, retry, never train on it."""


def in_sentence(text: str) -> str:
    """Returns the text with a small first letter, as after a colon; that of URL stays."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Returns "; did you mean 'x'?" for the closest known name, else the first known names.

    `cutoff`: how alike they must be, from 0 to 1; names that begin and end alike need more.
    """
    names = sorted(known)
    close = get_close_matches(name[:_MAX_NAME_CHARS], names, n=1, cutoff=cutoff)
    if close:
        return f"; did you mean {close[0]!r}?"
    more = f", … ({len(names)} in all)" if len(names) > _MAX_NAMES else ""
    return f"; known: {', '.join(names[:_MAX_NAMES])}{more}"


def shown(value: object) -> str:
    """Returns a value for a message: one line of at most 60 characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of over 4,300 digits, or deep nesting
        text = f"an {type(value).__name__} that cannot be shown"
    return " ".join(text.split())[:60]


def check_count(setting: str, value: int, least: int = 1) -> None:
    """Raises: SettingsError unless a value is an integer from `least` to 2^31 - 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SettingsError(f"{setting} must be an integer >= {least}, got {shown(value)}")
    if value > _MAX_COUNT:
        raise SettingsError(f"{setting} must be an integer <= {_MAX_COUNT}, got {shown(value)}")


def check_duration(setting: str, value: float) -> None:
    """Raises: SettingsError unless a value is a number above 0 and up to a million."""
    if not is_number(value) or not value > 0:
        raise SettingsError(f"{setting} must be a number > 0, got {shown(value)}")
    if value > _MAX_DURATION_S:
        raise SettingsError(f"{setting} must be <= {_MAX_DURATION_S}, got {shown(value)}")


def check_share(setting: str, value: float) -> None:
    """Raises: SettingsError unless a value is a number from 0 to 1."""
    if not (is_number(value) and 0 <= value <= 1):
        raise SettingsError(f"{setting} must be a number from 0 to 1, got {shown(value)}")


def check_flag(setting: str, value: bool) -> None:
    """Raises: SettingsError unless a value is True or False."""
    if not isinstance(value, bool):
        raise SettingsError(f"{setting} must be True or False, got {shown(value)}")


def check_path(setting: str, value: str | PathLike[str] | None, what: str = "a path") -> None:
    """Raises: SettingsError unless a value is None or a path, or a name like one."""
    path = fspath(value) if isinstance(value, str | PathLike) else None
    is_path = isinstance(path, str) and 0 < len(path) <= _MAX_PATH_CHARS and "\0" not in path
    if value is not None and not is_path:
        raise SettingsError(f"{setting} must be {what} or None, got {shown(value)}")


def check_choice(setting: str, value: str | None, known: Iterable[str | None]) -> None:
    """Raises: SettingsError unless a value is one of the known ones."""
    names = tuple(known)
    if value not in names:
        hint = did_you_mean(value if isinstance(value, str) else "", filter(None, names))
        raise SettingsError(f"unknown {setting} {shown(value)}{hint}")


def is_number(value: object) -> bool:
    """Returns whether a value is a finite number as settings have them: int or float, no bool."""
    try:
        is_real = isinstance(value, int | float) and not isinstance(value, bool)
        return is_real and isfinite(value)  # type: ignore[arg-type]
    except OverflowError:  # an integer beyond all floats
        return False


def describe_error(error: BaseException) -> str:
    """Returns an error in one line: its type, text, notes, and where it was raised.

    >>> describe_error(KeyError("x"))
    "KeyError: 'x'"
    """
    text = " ".join([str(error), *getattr(error, "__notes__", ())])
    line = f"{type(error).__name__}: {' '.join(text.split())[:_MAX_ERROR_CHARS]}".rstrip(": ")
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or isinstance(error, ImportError | SyntaxError):  # they say it themselves
        return line
    return f"{line} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


user_folders: list[str] = []
"""Where users' modules are looked for after all others: Ray's workers take them over."""


def add_user_folder(folder: Path) -> None:
    """Has modules that settings name looked for in a folder too; they shadow no others."""
    path = str(folder.resolve())
    if path not in user_folders and folder.is_dir():
        user_folders.append(path)
        sys.path += [path] if path not in sys.path else []


def put_user_folders_first(folders: Iterable[str]) -> None:
    """Has modules looked for in these folders before all others of users."""
    user_folders[:] = dict.fromkeys([*filter(os.path.isdir, folders), *user_folders])
    sys.path[:] = [path for path in sys.path if path not in user_folders] + user_folders


def is_installed(package: str) -> bool:
    """Returns whether a package can be imported; a mere folder of that name is none.

    >>> is_installed("gymnasium"), is_installed("nowhere")
    (True, False)
    """
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def import_user_module(name: str) -> ModuleType:
    """Imports a module that a setting names. Raises: SettingsError with what its import raises."""
    try:
        return import_module(name)
    except BaseException as error:  # a module may even exit
        if not isinstance(error, KeyboardInterrupt):
            problem = f"module {shown(name)} cannot be imported ({describe_error(error)})"
            if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
                problem += (
                    f": put {error.name:.60}.py into the current folder or beside the TOML "
                    "file, or add its folder to PYTHONPATH"
                )
            raise SettingsError(problem) from error
        raise


def import_user_class(name: str) -> Any:
    """Returns what a setting names as `module:Class`. Raises: SettingsError, as the import does."""
    module, _, class_name = name.partition(":")
    names = vars(import_user_module(module))
    if class_name not in names:
        raise SettingsError(f"{module} has no {class_name!r}")
    return names[class_name]
