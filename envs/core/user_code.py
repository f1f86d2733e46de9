"""Code that users name in settings, imported with one-line errors."""

import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType

from agentpeft.envs.core.errors import SettingsError, shown

_MAX_CHARS = 400


def describe_error(error: BaseException) -> str:
    """Returns an error in one line: its type, text, notes, and where it was raised.

    >>> describe_error(KeyError("x"))
    "KeyError: 'x'"
    """
    text = " ".join([str(error), *getattr(error, "__notes__", ())])
    line = f"{type(error).__name__}: {' '.join(text.split())[:_MAX_CHARS]}".rstrip(": ")
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or isinstance(error, ImportError | SyntaxError):  # they say it themselves
        return line
    return f"{line} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


def import_user_module(name: str) -> ModuleType:
    """Imports a module that a setting names. Raises: SettingsError with what its import raises."""
    try:
        return import_module(name)
    except BaseException as error:  # a module may even exit
        if not isinstance(error, KeyboardInterrupt):
            raise SettingsError(
                f"module {shown(name)} cannot be imported ({describe_error(error)})"
            ) from error
        raise
