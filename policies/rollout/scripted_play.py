"""Episodes whose actions are given beforehand, as an oracle's, or recorded ones."""

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from agentpeft.envs import EnvFault
from agentpeft.policies.rollout.environments import Env
from agentpeft.policies.rollout.play import StepResult, check_reward, play_episode

T = TypeVar("T")


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
    except EnvFault:
        return 0.0
