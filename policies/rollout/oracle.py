"""Episodes played by an environment's oracle, as tokens: what supervised steps learn from."""

import logging
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import count, islice, pairwise
from typing import Any

import numpy as np

from agentpeft.envs import Outcome, Task, TextEnv
from agentpeft.envs.core.spaces import to_utf8
from agentpeft.envs.tasks.task import content_hash
from agentpeft.policies.errors import EnvironmentBugError
from agentpeft.policies.messages import Completion, EpisodeGroup, StopReason, Trajectory
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.environments import EnvPool, call_environment
from agentpeft.policies.rollout.episodes import EpisodeBuilder
from agentpeft.policies.rollout.play import StepResult, play_episode
from agentpeft.policies.rollout.scripted_play import (
    ScriptedAgent,
    begin,
    opened,
    play_actions,
    read_any_reward,
    run_without_waiting,
)
from agentpeft.policies.settings.config import EnvironmentSettings, Settings
from agentpeft.policies.settings.environment_kwargs import drawn_kwargs

logger = logging.getLogger(__name__)
_NUM_JUDGED = 8
"""Of the oracle's first episodes: then it is said whether they are worth imitating."""
WARM_START_STREAM = 2
"""The warm start's tasks: other ones than training's (0) and evaluation's (1)."""


def imitated_groups(
    environment: EnvironmentSettings,
    chats: str | None,
    chat: ChatFormat,
    seed: int,
    first: int = 0,
) -> Generator[EpisodeGroup, None, None]:
    """Yields groups of one episode without end: conversations of the file `chats`, or the oracle's.

    An oracle's task depends on seed and position (from `first` on) alone. Raises: DataError,
    SettingsError, EnvFault; EnvironmentBugError, where the oracle does not play to the end.
    """
    if chats is not None:
        from agentpeft.policies.rollout.chat_rows import chat_groups

        yield from chat_groups(chats, chat, seed, first)
    ends: Counter[Outcome] = Counter()
    with opened(environment.id, environment.kwargs) as env:
        for position in count(first):
            task = _draw(env, seed, position)
            played = (play_oracle(env, task, chat),)
            ends[played[0].outcome] += 1
            if first == 0 and ends.total() == _NUM_JUDGED:
                _judge_oracle(environment, ends)
            yield EpisodeGroup(position, task.task_id, task.skills, 0, played, content_hash(task))


def _judge_oracle(environment: EnvironmentSettings, ends: Counter[Outcome]) -> None:
    """Says where none of the oracle's episodes succeeds, unless its settings have it err.

    Raises: EnvironmentBugError where the oracle ends none of them.
    """
    how = ", ".join(f"{outcome}: {number}" for outcome, number in sorted(ends.items()))
    found = f"environment {environment.id}: of the oracle's first {_NUM_JUDGED} episodes"
    if set(ends) == {Outcome.ONGOING}:
        raise EnvironmentBugError(
            f"{found} none comes to its end: let oracle_actions return all that solves a task "
            "(check_text_env shows an episode)"
        )
    settings = {name for kwargs in drawn_kwargs(environment.kwargs) for name in kwargs}
    is_to_err = any(name.startswith("oracle_") for name in settings)
    if not ends[Outcome.SUCCESS] and not is_to_err:
        logger.warning("%s none succeeds (%s), and they are imitated all the same", found, how)


def warm_start_environments(settings: Settings) -> list[EnvironmentSettings]:
    """Returns the environments that the warm start's stages learn from."""
    env_id = settings.environment.id
    return [EnvironmentSettings(id=env_id, kwargs=kwargs) for kwargs in settings.warm_start_kwargs]


class WarmStartBatches:
    """The batches that a warm start learns from. Close it, as it has an environment open."""

    def __init__(self, settings: Settings, chat: ChatFormat) -> None:
        self._settings, self._chat = settings, chat
        self._environments = warm_start_environments(settings)
        self._groups: Generator[EpisodeGroup, None, None] | None = None
        self._next = (0, 0)

    def make(self, step: int, stage: int) -> list[EpisodeGroup]:
        """Returns the batch of a step (from 0): its tasks depend on the step and its stage alone.

        The next step of the same stage is the quick one. Raises: as `imitated_groups`.
        """
        warm_start, seed = self._settings.warm_start, self._settings.seed
        if self._groups is None or self._next != (step, stage):
            self.close()
            environment, first = self._environments[stage], step * warm_start.batch_size
            chats = self._settings.warm_start_chats
            self._groups = imitated_groups(environment, chats, self._chat, seed, first)
        batch = list(islice(self._groups, warm_start.batch_size))
        self._next = (step + 1, stage)
        return batch

    def close(self) -> None:
        """Closes the environment, wherever the last batch has left it."""
        if self._groups is not None:
            self._groups.close()
            self._groups = None


def warm_start_batches(
    settings: Settings, chat: ChatFormat
) -> Generator[list[EpisodeGroup], None, None]:
    """Yields the `num_steps` batches that a warm start learns from, no stage ending early."""
    with closing(WarmStartBatches(settings, chat)) as batches:
        for stage, (begin, end) in enumerate(pairwise([0, *settings.warm_start.stage_ends])):
            for step in range(begin, end):
                yield batches.make(step, stage)


def _draw(env: TextEnv[Task], seed: int, position: int) -> Task:
    return env.task_source.draw(np.random.default_rng([seed, WARM_START_STREAM, position]))


class _Imitated(ScriptedAgent):
    """The oracle at play: its actions are added to the episode as if they had been sampled."""

    def __init__(self, episode: EpisodeBuilder, actions: Iterable[str], chat: ChatFormat) -> None:
        super().__init__(actions)
        self._episode, self._chat = episode, chat

    async def act(self) -> str | None:
        action = await super().act()
        if action is not None:
            ids = self._chat.encode_action(action)
            logprobs = np.zeros(len(ids), np.float32)
            self._episode.add_turn(Completion(ids, logprobs, StopReason.STOP_TOKEN, 0), action)
        return action

    def receive(self, result: StepResult) -> None:
        self._episode.add_reward(result.reward)
        self._episode.add_answers([result.observation], result.is_last)


def play_oracle(env: TextEnv[Task], task: Task, chat: ChatFormat) -> Trajectory:
    """Plays one episode; the mask is on the actions, their stop tokens included.

    The environment is told the oracle's own words, not what the tokenizer makes of them.
    """
    with _naming(env, task):
        prompt = begin(env, task)
        episode = EpisodeBuilder(prompt, chat.begin(prompt), chat)
        agent = _Imitated(episode, env.oracle_actions(task), chat)
        run_without_waiting(play_episode(env, agent, read_reward=read_any_reward))
    episode.outcome = env.outcome
    return episode.to_trajectory()


@contextmanager
def _naming(env: TextEnv[Any], task: Task) -> Iterator[None]:
    try:
        yield
    except EnvironmentBugError as bug:
        name = env.spec.id if env.spec else type(env).__name__
        place = f"environment {name}, the oracle's episode of task {task.task_id!r}"
        raise EnvironmentBugError(f"{place}: {bug}") from bug


def oracle_texts(environment: EnvironmentSettings, num: int, seed: int) -> Iterator[str]:
    """Yields the prompts, actions and observations of `num` oracle episodes.

    Of an environment that has no oracle, as it is no `TextEnv`, the prompts alone.
    """
    with closing(EnvPool(environment.id, environment.kwargs, (seed, WARM_START_STREAM))) as pool:
        if not pool.has_tasks:
            for position in range(num):
                task = pool.task_at(position)
                env, prompt = call_environment(partial(pool.begin, position, task))
                pool.give_back(env)
                yield prompt
            return
    with opened(environment.id, environment.kwargs) as env:
        for position in range(num):
            task = _draw(env, seed, position)
            with _naming(env, task):
                prompt, actions = begin(env, task), list(env.oracle_actions(task))
                results = play_actions(env, actions, read_any_reward)
            yield prompt
            for action, result in zip(actions, results, strict=False):  # it may end before them
                yield from (to_utf8(action), result.observation)
