"""`Callbacks`: your own code, called during a run; RLlib's idea, with fewer moments."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Protocol

from agentpeft.envs.core.errors import (
    SettingsError,
    describe_error,
    did_you_mean,
    import_user_module,
    shown,
)
from agentpeft.policies.errors import TrainingError
from agentpeft.policies.messages import EpisodeRecord
from agentpeft.policies.settings.config import Settings


class TrainedRun(Protocol):
    """What callbacks see of an `Algorithm`, which has further methods."""

    settings: Settings
    run_dir: Path
    iteration: int

    @property
    def position(self) -> int:
        """How many tasks of the stream have been taken."""
        ...

    def evaluate(self) -> dict[str, float]:
        """Plays held-out tasks with the present adapter."""
        ...

    def save_to_path(self, path: str | Path | None = None) -> Path:
        """Writes a checkpoint."""
        ...


class Callbacks:
    """What is called, and when: subclass it and override what you need.

    One object is made for a run, in the driver's process, where all calls come one after another.
    What a method raises ends the run. A checkpoint holds nothing of the object.
    """

    def on_episode_end(
        self, algorithm: TrainedRun, episode: EpisodeRecord, *, is_evaluation: bool
    ) -> None:
        """Takes each episode of a round, once the round has been learnt from, or evaluated.

        `episode.messages` is empty where `output.loggers` lacks `episodes`. Algorithm `sft` plays
        none.
        """

    def on_iteration_end(self, algorithm: TrainedRun, metrics: dict[str, float]) -> None:
        """Takes what `Algorithm.train` is about to return; numbers that are added are logged."""

    def on_checkpoint(self, algorithm: TrainedRun, path: Path) -> None:
        """Takes the folder of a checkpoint that has just been written."""


HOOKS = [name for name in vars(Callbacks) if name.startswith("on_")]


class CallbackCaller:
    """Calls the hooks of a run's callbacks. Raises: TrainingError, in one line, of any error."""

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks

    def end_episodes(
        self, algorithm: TrainedRun, episodes: Iterable[EpisodeRecord], *, is_evaluation: bool
    ) -> None:
        """Calls `on_episode_end` for each episode."""
        with _naming(self._callbacks.on_episode_end):
            for episode in episodes:
                self._callbacks.on_episode_end(algorithm, episode, is_evaluation=is_evaluation)

    def end_iteration(self, algorithm: TrainedRun, metrics: dict[str, float]) -> None:
        """Calls `on_iteration_end`. Raises: TrainingError too if it leaves a metric no number."""
        with _naming(self._callbacks.on_iteration_end):
            self._callbacks.on_iteration_end(algorithm, metrics)
        for name, value in metrics.items():
            if not _is_number(value):
                raise TrainingError(
                    f"callback on_iteration_end: metric {name!r} must be a number, "
                    f"got {shown(value)}"
                )

    def save_checkpoint(self, algorithm: TrainedRun, path: Path) -> None:
        """Calls `on_checkpoint`."""
        with _naming(self._callbacks.on_checkpoint):
            self._callbacks.on_checkpoint(algorithm, path)


@contextmanager
def _naming(hook: Callable[..., None]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not isinstance(error, TrainingError):
            name = getattr(hook, "__qualname__", repr(hook))
            raise TrainingError(f"callback {name} raised {describe_error(error)}") from error
        raise


def _is_number(value: object) -> bool:
    """Whether a value is a number that a float holds; infinity and NaN are."""
    try:
        return isinstance(value, float | int) and isinstance(float(value), float)
    except OverflowError:
        return False


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
    module_name, _, name = setting.partition(":")
    try:
        module = import_user_module(module_name)
    except SettingsError as error:
        raise SettingsError(f"callbacks {setting!r}: {error}") from error
    if name not in vars(module):
        raise SettingsError(f"callbacks {setting!r}: {module_name} has no {name!r}")
    kind: type[Callbacks] = vars(module)[name]
    check_class(kind)
    return kind
