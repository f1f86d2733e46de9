"""The suite's error vocabulary: our mistakes, bad data, and the world's faults.

An agent's mistake is none of these: it is an observation, a reward and `info["outcome"]`.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from math import isfinite

_MAX_NAMES = 40


class SettingsError(ValueError):
    """A setting that cannot work; the message has what was expected, what was got, what to do."""


class UnknownSettingError(SettingsError, TypeError):
    """A keyword argument that there is not; a TypeError too, as callers of others' code expect."""


class DataError(ValueError):
    """A task file that cannot be read; the message begins with file, line or row, and field."""


class UnknownTaskError(KeyError):
    """A task id that the task source does not have."""

    def __str__(self) -> str:
        """Returns the message itself (`KeyError` would show its repr)."""
        return str(self.args[0])


class EnvFault(RuntimeError):  # noqa: N818 (a fault, not a mistake)
    """The world's fault (database gone, container died): record it, retry, never train on it."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns "; did you mean 'x'?" for the closest known name, else the first known names."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    more = f", … ({len(names)} in all)" if len(names) > _MAX_NAMES else ""
    return f"; known: {', '.join(names[:_MAX_NAMES])}{more}"


def check_count(setting: str, value: int) -> None:
    """Raises: SettingsError if a setting's value is no integer above 0."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SettingsError(f"{setting} must be an integer >= 1, got {value!r:.60}")


def check_duration(setting: str, value: float) -> None:
    """Raises: SettingsError if a setting's value is no finite number above 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and isfinite(value) and value > 0):
        raise SettingsError(f"{setting} must be a number > 0, got {value!r:.60}")


def check_share(setting: str, value: float) -> None:
    """Raises: SettingsError if a setting's value is no number from 0 to 1."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 0 <= value <= 1):
        raise SettingsError(f"{setting} must be a number from 0 to 1, got {value!r:.60}")


def check_choice(setting: str, value: str, known: Iterable[str]) -> None:
    """Raises: SettingsError if a setting's value is none of the known ones."""
    if value not in (names := tuple(known)):
        raise SettingsError(f"unknown {setting} {value!r:.60}{did_you_mean(str(value), names)}")
