"""Calls into an environment's code, whose author may be anyone: what it raises gets a name."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import gymnasium

from agentpeft.envs import DataError, EnvFault, SettingsError, Task, TextEnv, UnknownTaskError
from agentpeft.envs.core.errors import UnknownSettingError, describe_error
from agentpeft.envs.core.unicode_text import to_utf8
from agentpeft.policies.errors import EnvironmentBugError

logger = logging.getLogger(__name__)
Env: TypeAlias = gymnasium.Env[str, str]
T = TypeVar("T")
_EXPECTED = (EnvFault, SettingsError, DataError, UnknownTaskError)
CLOSE_S = 60.0
"""How long an environment that nothing waits for may take to close."""
ENVIRONMENT_ERRORS = (*_EXPECTED, EnvironmentBugError)
"""All that `call_environment` raises."""
_GYMNASIUMS_END = " was raised from the environment creator for"
"""Gymnasium ends its words with all arguments, of which some may be secrets."""


def call_environment(function: Callable[[], T]) -> T:
    """Returns `function()`, which is an environment's code.

    Raises: what an environment may raise (`EnvFault`, bad settings, data or task ids);
    EnvironmentBugError for all else, were it meant to end the process. Signals pass: they reach the
    main thread alone.
    """
    try:
        return function()
    except BaseException as error:
        in_main_thread = threading.current_thread() is threading.main_thread()
        is_signal = in_main_thread and isinstance(error, KeyboardInterrupt)
        if not (is_signal or isinstance(error, ENVIRONMENT_ERRORS)):
            raise EnvironmentBugError(f"the environment raised {describe_error(error)}") from error
        raise


def make_environment(env_id: str, kwargs: Mapping[str, Any]) -> Env:
    """Returns a new environment. Raises: SettingsError, EnvFault, DataError."""
    try:
        return call_environment(lambda: gymnasium.make(env_id, disable_env_checker=True, **kwargs))
    except UnknownSettingError as error:
        problem = str(error).partition(_GYMNASIUMS_END)[0]
        raise SettingsError(f"environment {env_id!r}: {problem}") from None
    except EnvironmentBugError as bug:
        known = isinstance(bug.__cause__, gymnasium.error.Error | TypeError)
        problem = str(bug.__cause__) if known else f"making it, {bug}"
        problem = problem.partition(_GYMNASIUMS_END)[0]
        raise SettingsError(f"environment {env_id!r}: {problem}") from bug.__cause__


def make_text_env(env_id: str, kwargs: Mapping[str, Any]) -> TextEnv[Any]:
    """Returns a new environment of the suite's kind, without Gymnasium's wrappers.

    Raises: SettingsError where it is of another kind, or as `make_environment`.
    """
    env = make_environment(env_id, kwargs).unwrapped
    if not isinstance(env, TextEnv):
        raise SettingsError(
            f"environment {env_id!r} is no TextEnv: it has no tasks, nor an oracle to imitate (RL "
            "needs none: set warm_start.num_steps = 0)"
        )
    return env


def close_environments(environments: Sequence[gymnasium.Env[Any, Any]], limit_s: float) -> None:
    """Closes environments, all at once and for `limit_s` at most; what fails is one warning.

    A run that is over is not spoilt by it: a thread that still closes one is left behind.
    """
    problems: list[str] = []

    def close(env: gymnasium.Env[Any, Any]) -> None:
        try:
            call_environment(env.close)
        except ENVIRONMENT_ERRORS as error:
            problems.append(str(error))

    threads = [threading.Thread(target=close, args=[e], daemon=True) for e in environments]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    problems += [f"it takes longer than {limit_s:g} s" for each in threads if each.is_alive()]
    if problems:
        counts = len(problems), len(environments)
        logger.warning("closing %d of %d environments failed: %s", *counts, problems[-1])


@contextmanager
def opened(env_id: str, kwargs: Mapping[str, Any]) -> Iterator[TextEnv[Any]]:
    """Yields an environment, and closes it with all that it holds. Raises: as `make_text_env`."""
    env = make_text_env(env_id, kwargs)
    try:
        yield env
    finally:
        close_environments([env], CLOSE_S)


def begin(env: TextEnv[Any], task: Task) -> str:
    """Returns the prompt of an episode of a task. Raises: as `call_environment`."""
    return to_utf8(call_environment(lambda: env.reset(options={"task": task}))[0])
