"""How an episode is played: an agent acts and the environment answers, until it is over.

`play_episode` is the one loop that steps an environment, whoever the agent is: an engine under an
env runner, or a list of actions (`scripted_play`), as an oracle's. It imports neither torch nor a
tokenizer.

Environments raise `EnvFault` for infrastructure failures; a step that takes too long or returns
anything but a step's five values counts as one. `DataError` and `UnknownTaskError` are about tasks.
Anything else that they raise is a bug of theirs, and so is a reward that is no finite number:
`call_environment` makes it an `EnvironmentBugError`.
"""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from agentpeft.envs import EnvFault, Outcome, TextEnv
from agentpeft.envs.core.spaces import to_utf8
from agentpeft.policies.rollout.environments import Env, call_environment

MAX_REWARD = 1e6
"""Larger rewards are bugs: they would dominate the baseline and all advantages."""
T = TypeVar("T")


@dataclass(frozen=True)
class StepResult:
    """What a step of an environment returned."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]

    @property
    def is_last(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated

    @property
    def outcome(self) -> Outcome:
        """How the last step ended its episode.

        As `info["outcome"]` says (an `Outcome`'s value), else success by the bool
        `info["is_success"]`, else by whether the step terminated with a reward above 0.
        """
        outcome, is_success = self.info.get("outcome"), self.info.get("is_success")
        if isinstance(outcome, str) and outcome in set(Outcome):
            return Outcome(outcome)
        if not isinstance(is_success, bool | np.bool_):
            is_success = self.terminated and self.reward > 0
        if is_success:
            return Outcome.SUCCESS
        return Outcome.FAILURE if self.terminated else Outcome.TURN_LIMIT


class Agent(Protocol):
    """Acts in one episode, whose prompt it has read."""

    async def act(self) -> str | None:
        """Returns the next action; None ends the episode, as where the context is full."""
        ...

    def receive(self, result: StepResult) -> None:
        """Takes the result of the action."""
        ...


async def call_here(function: Callable[[], T]) -> T:
    """Returns `function()`, an environment's code, in this thread and without a time limit."""
    return call_environment(function)


async def play_episode(
    env: Env,
    agent: Agent,
    call: Callable[[Callable[[], StepResult]], Awaitable[StepResult]] = call_here,
    read_reward: Callable[[object], float] | None = None,
) -> Outcome | None:
    """Plays an episode, for which `env` has been reset, and returns how it ended.

    Returns None if the agent ended the episode; the environment is not told. `call`
    carries out a step: the env runner's does so in another thread, with a time limit. `read_reward`
    is `check_reward`, or another where rewards are ignored, as in imitation.

    Raises: EnvFault, EnvironmentBugError, and what the agent raises.
    """
    while (action := await agent.act()) is not None:
        result = await call(partial(step, env, action, read_reward or check_reward))
        agent.receive(result)
        if result.is_last:
            return result.outcome
    return None


def check_reward(reward: object) -> float:
    """Returns a reward as a float. Raises: ValueError unless it is a number up to `MAX_REWARD`."""
    try:
        value = float(reward)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not abs(value) <= MAX_REWARD:
        raise ValueError(f"a reward must be a number of at most ±{MAX_REWARD:g}, is {reward!r:.60}")
    return value


def step(
    env: Env, action: str, read_reward: Callable[[object], float] = check_reward
) -> StepResult:
    """Carries out an action. Raises: EnvFault on a malformed result; as `read_reward`.

    Half a surrogate pair in an observation, as of a file's name, becomes `?`.
    """
    returned = env.step(action)
    if not isinstance(returned, tuple) or len(returned) != 5:
        raise EnvFault(f"step() must return five values, returned {returned!r:.60}")
    observation, reward, terminated, truncated, info = returned
    if not isinstance(observation, str):
        raise EnvFault(f"the observation must be text, is {observation!r:.60}")
    if not isinstance(info, dict):
        raise EnvFault(f"the info must be a dict, is {info!r:.60}")
    value = read_reward(reward)
    return StepResult(to_utf8(observation), value, bool(terminated), bool(truncated), info)


def reward_for(env: Env, outcome: Outcome) -> float:
    """Returns the final reward of an episode that the caller ended; 0 where it has no rewards.

    Raises: EnvFault, EnvironmentBugError.
    """
    text_env = env.unwrapped
    if not isinstance(text_env, TextEnv):
        return 0.0
    return call_environment(lambda: check_reward(text_env.final_reward(outcome)))
