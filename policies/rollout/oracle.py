"""Episodes played by an environment's oracle, as tokens: what supervised steps learn from."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import count, islice
from typing import Any, TypeVar

import numpy as np

from agentpeft.envs import SettingsError, Task, TextEnv
from agentpeft.envs.tasks.task_rows import content_hash
from agentpeft.policies.errors import EnvironmentBugError
from agentpeft.policies.messages import EpisodeGroup, Ids, Trajectory
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.environment_calls import (
    call_environment,
    close_environments,
    make_environment,
)
from agentpeft.policies.settings.config import EnvironmentSettings, Settings

T = TypeVar("T")
_CLOSE_S = 60.0
WARM_START_STREAM = 2
"""The warm start's tasks: other ones than training's (0) and evaluation's (1)."""


def make_text_env(environment: EnvironmentSettings) -> TextEnv[Task]:
    """Returns the environment. Raises: SettingsError if it has no oracle, or on bad arguments."""
    env = make_environment(environment.id, environment.kwargs).unwrapped
    if not isinstance(env, TextEnv):
        raise SettingsError(
            f"environment {environment.id!r} is no TextEnv: it has no oracle to learn from"
        )
    return env


@contextmanager
def _text_env(environment: EnvironmentSettings) -> Iterator[TextEnv[Task]]:
    """Yields the environment, and closes it. Raises: as `make_text_env`."""
    env = make_text_env(environment)
    try:
        yield env
    finally:
        close_environments([env], _CLOSE_S)


def oracle_groups(
    environment: EnvironmentSettings, chat: ChatFormat, seed: int, first: int = 0
) -> Generator[EpisodeGroup, None, None]:
    """Yields groups of one oracle episode without end, from task position `first` on.

    A task depends on seed and position alone. Raises: SettingsError, EnvFault.
    """
    with _text_env(environment) as env:
        for position in count(first):
            task = _draw(env, seed, position)
            played = (play_oracle(env, task, chat),)
            yield EpisodeGroup(position, task.task_id, task.skills, 0, played, content_hash(task))


def warm_start_environment(settings: Settings) -> EnvironmentSettings:
    """Returns the environment that the warm start learns from."""
    kwargs = {**settings.environment.kwargs, **settings.warm_start.env_kwargs}
    return EnvironmentSettings(id=settings.environment.id, kwargs=kwargs)


def warm_start_batches(settings: Settings, chat: ChatFormat) -> Iterator[list[EpisodeGroup]]:
    """Yields the `num_steps` batches of fresh episodes that a warm start learns from."""
    warm_start = settings.warm_start
    with closing(oracle_groups(warm_start_environment(settings), chat, settings.seed)) as groups:
        for _ in range(warm_start.num_steps):
            yield list(islice(groups, warm_start.batch_size))


def _draw(env: TextEnv[Task], seed: int, position: int) -> Task:
    return env.task_source.draw(np.random.default_rng([seed, WARM_START_STREAM, position]))


def play_oracle(env: TextEnv[Task], task: Task, chat: ChatFormat) -> Trajectory:
    """Plays one episode; the mask is on the actions, their stop tokens included."""
    prompt, _ = _call(env, task, partial(env.reset, options={"task": task}))
    prompt_ids = chat.begin(prompt)
    parts: list[Ids] = []
    masks: list[bool] = []
    turn_ends: list[int] = []
    rewards: list[float] = []
    for action in env.oracle_actions(task):
        ids = chat.encode_action(action)
        observation, reward, terminated, truncated, _ = _call(env, task, partial(env.step, action))
        parts.append(ids)
        masks += [True] * len(ids)
        turn_ends.append(len(masks))
        rewards.append(reward)
        if terminated or truncated:
            break
        parts.append(chat.extend(ids, observation))
        masks += [False] * len(parts[-1])
    token_ids = np.concatenate(parts)[: turn_ends[-1]]
    mask = np.array(masks[: turn_ends[-1]], np.bool_)
    logprobs = np.zeros(len(token_ids), np.float32)
    ends, earned = tuple(turn_ends), tuple(rewards)
    return Trajectory(prompt_ids, token_ids, mask, logprobs, ends, earned, env.outcome)


def _call(env: TextEnv[Any], task: Task, function: Callable[[], T]) -> T:
    try:
        return call_environment(function)
    except EnvironmentBugError as bug:
        name = env.spec.id if env.spec else type(env).__name__
        place = f"environment {name}, the oracle's episode of task {task.task_id!r}"
        raise EnvironmentBugError(f"{place}: {bug}") from bug


def oracle_texts(environment: EnvironmentSettings, num: int, seed: int) -> Iterator[str]:
    """Yields the prompts, actions and observations of `num` oracle episodes."""
    with _text_env(environment) as env:
        for position in range(num):
            yield from _texts(env, _draw(env, seed, position))


def _texts(env: TextEnv[Any], task: Task) -> Iterator[str]:
    yield _call(env, task, partial(env.reset, options={"task": task}))[0]
    for action in env.oracle_actions(task):
        yield action
        observation, _, terminated, truncated, _ = _call(env, task, partial(env.step, action))
        yield observation
        if terminated or truncated:
            return
