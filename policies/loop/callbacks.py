"""`Callbacks`: your own code, called during a run; RLlib's idea, with fewer moments."""

import sys
from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentpeft.envs.core.errors import (
    SettingsError,
    describe_error,
    did_you_mean,
    import_user_class,
    shown,
)
from agentpeft.policies.errors import TrainingError
from agentpeft.policies.messages import EpisodeRecord

if TYPE_CHECKING:  # it imports this module where a run has callbacks
    from agentpeft.policies.loop.algorithm import Algorithm


class Callbacks:
    """What is called, and when: subclass it and override what you need.

    One object is made for a run, in the driver's process, where all calls come one after another.
    What a method raises ends the run. A checkpoint holds nothing of the object.
    """

    def on_episode_end(
        self, algorithm: "Algorithm", episode: EpisodeRecord, *, is_evaluation: bool
    ) -> None:
        """Takes each episode of a round, once the round has been learnt from, or evaluated.

        `episode.messages` is empty where `output.loggers` lacks `episodes`. Algorithm `sft` plays
        none.
        """

    def on_iteration_end(self, algorithm: "Algorithm", metrics: dict[str, float]) -> None:
        """Takes what `Algorithm.train` is about to return; numbers that are added are logged."""

    def on_checkpoint(self, algorithm: "Algorithm", path: Path) -> None:
        """Takes the folder of a checkpoint that has just been written."""


HOOKS = [name for name in vars(Callbacks) if name.startswith("on_")]


def call_hook(hook: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Calls a hook. Raises: TrainingError, in one line, of any error."""
    try:
        hook(*args, **kwargs)
    except Exception as error:
        if not isinstance(error, TrainingError):
            name = getattr(hook, "__qualname__", repr(hook))
            raise TrainingError(f"callback {name} raised {describe_error(error)}") from error
        raise


def check_metrics(metrics: Mapping[str, object]) -> None:
    """Raises: TrainingError where a callback has left a metric that is no number."""
    for name, value in metrics.items():
        is_small = isinstance(value, int) and abs(value) <= sys.float_info.max
        if not (is_small or isinstance(value, float)):
            raise TrainingError(
                f"callback on_iteration_end: metric {name!r} must be a number, got {shown(value)}"
            )


def check_class(kind: type[Callbacks]) -> None:
    """Checks a class of callbacks without making an object, which may open or write things.

    Raises: SettingsError if it is none, has a hook that nobody calls, or takes arguments.
    """
    name = getattr(kind, "__qualname__", repr(kind))
    if not (isinstance(kind, type) and issubclass(kind, Callbacks)):
        raise SettingsError(f"callbacks {name} is no subclass of agentpeft's Callbacks")
    for hook in dir(kind):
        if hook.startswith("on_") and hook not in HOOKS:
            raise SettingsError(
                f"callbacks {name}: nobody calls {hook!r}{did_you_mean(hook, HOOKS)}"
            )
    try:
        signature(kind).bind()
    except TypeError as error:
        raise SettingsError(f"callbacks {name}: making it, {describe_error(error)}") from error


def make_callbacks(kind: type[Callbacks]) -> Callbacks:
    """Returns an object of a class of callbacks. Raises: SettingsError, as if it cannot be made."""
    check_class(kind)
    try:
        return kind()
    except Exception as error:
        if not isinstance(error, SettingsError):
            name = kind.__qualname__
            raise SettingsError(f"callbacks {name}: making it, {describe_error(error)}") from error
        raise


def find_class(setting: str) -> type[Callbacks]:
    """Returns the checked class that the setting `module:Class` names, of which nothing is made.

    Raises: SettingsError.
    """
    try:
        kind: type[Callbacks] = import_user_class(setting)
    except SettingsError as error:
        raise SettingsError(f"callbacks {setting!r}: {error}") from error
    check_class(kind)
    return kind
