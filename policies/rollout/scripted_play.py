"""Playing without a model: the suite's environments, their oracle, and actions that are given."""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from agentpeft.envs import SettingsError, Task, TextEnv
from agentpeft.envs.core.spaces import to_utf8
from agentpeft.policies.rollout.environments import (
    CLOSE_S,
    Env,
    call_environment,
    close_environments,
    make_environment,
)
from agentpeft.policies.rollout.play import StepResult, check_reward, play_episode

T = TypeVar("T")


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


def oracle_actions(env: Env, task: Task) -> Sequence[str]:
    """Returns how a perfect agent acts. Raises: SettingsError where there is no oracle."""
    if not isinstance(env.unwrapped, TextEnv):
        raise SettingsError("env_runners.engine 'scripted' plays the oracle of a TextEnv")
    return env.unwrapped.oracle_actions(task)


def run_without_waiting(coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a coroutine that never has to wait.

    It needs no event loop, so this also works where one is running already, as in a notebook.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError(f"{coroutine!r} waits for something: it needs an event loop")


class ScriptedAgent:
    """Says what it is given, turn by turn, and stops after the last; keeps all results."""

    def __init__(self, actions: Iterable[str]) -> None:
        self._actions = iter(actions)
        self.results: list[StepResult] = []

    async def act(self) -> str | None:
        """Returns the next action, None after the last."""
        return next(self._actions, None)

    def receive(self, result: StepResult) -> None:
        """Keeps the result."""
        self.results.append(result)


def play_actions(
    env: Env, actions: Iterable[str], read_reward: Callable[[object], float] | None = None
) -> list[StepResult]:
    """Plays these actions, as far as the episode goes, and returns what each has led to.

    Raises: EnvFault, EnvironmentBugError.
    """
    agent = ScriptedAgent(actions)
    run_without_waiting(play_episode(env, agent, read_reward=read_reward))
    return agent.results


def read_any_reward(reward: object) -> float:
    """Returns a reward as a float, 0 for what is none: an oracle is imitated whatever it earns."""
    try:
        return check_reward(reward)
    except ValueError:
        return 0.0
