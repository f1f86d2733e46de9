"""`AgentPEFT/Mixture-v0`: the tasks of several environments as one, each with its own rules."""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypedDict

import gymnasium
import numpy as np

from agentpeft.envs.core.errors import (
    SettingsError,
    UnknownTaskError,
    check_choice,
    is_number,
    shown,
)
from agentpeft.envs.core.rewards import Outcome, RewardConfig
from agentpeft.envs.core.spaces import Unicode
from agentpeft.envs.core.text_env import TextEnv, Turn
from agentpeft.envs.registration import find_spec
from agentpeft.envs.tasks.task import Task

_NO_REWARD = RewardConfig(success=0.0)


class MixturePart(TypedDict, total=False):
    """An environment of a mixture: its name, Gymnasium id and keyword arguments."""

    name: str
    id: str
    kwargs: Mapping[str, Any]


class MixtureSource:
    """A task source that draws one of several by their weights, then a task of it.

    A task's id begins with its source's name and a slash, and its skills with the name.
    """

    def __init__(self, envs: Mapping[str, TextEnv[Any]], shares: Sequence[float]) -> None:
        """`shares` sum to 1, one for each environment in turn."""
        self._envs, self._shares = envs, shares

    def draw(self, rng: np.random.Generator) -> Task:
        """Returns one random task."""
        name = list(self._envs)[int(rng.choice(len(self._shares), p=self._shares))]
        return _name(name, self._envs[name].task_source.draw(rng))

    def get(self, task_id: str) -> Task:
        """Returns the task of an id. Raises: UnknownTaskError."""
        name, slash, rest = task_id.partition("/")
        if not slash or name not in self._envs:
            known = ", ".join(self._envs)
            raise UnknownTaskError(f"no task {task_id!r:.80}: ids begin with {known} and a slash")
        return _name(name, self._envs[name].task_source.get(rest))


class MixtureEnv(TextEnv[Task]):
    """One episode of one of several environments.

    Description:
        Each episode is one of a source: its prompt, its turn limit, its grading and its rewards are
        the source's own. Sources are drawn by their weights.

    Action Space:
        Text, as the episode's source reads it.

    Observation Space:
        Text, as the episode's source writes it.

    Rewards:
        Those of the episode's source.

    Episode End:
        As the episode's source ends it.

    Arguments:
        sources: environments of the suite's kind, `{"name": …, "id": …, "kwargs": {…}}`. The name
            becomes the first skill of a source's tasks, so that results are told by source.
        weights: how often each source is drawn, in their order; 0 is never. None: alike.
        shared: keyword arguments of all sources, over their own (`split="test"`).

    Version History:
        v0: first version.
    """

    def __init__(
        self, sources: Sequence[MixturePart], weights: Sequence[float] | None = None, **shared: Any
    ) -> None:
        """Raises: SettingsError."""
        self._envs: dict[str, TextEnv[Any]] = {}
        shares = _to_shares(sources, weights)
        with ExitStack() as on_error:
            on_error.callback(self._release)
            for source in sources:
                self._add(source, shared)
            on_error.pop_all()
        super().__init__(MixtureSource(self._envs, shares), {})
        configs = [env.config for env in self._envs.values()]
        self.render_mode = "ansi" if any(config.render_mode for config in configs) else None
        self.action_space = Unicode(max(config.max_action_chars for config in configs))
        self.observation_space = Unicode(max(config.max_observation_chars for config in configs))
        self.reward_config = _NO_REWARD
        self.has_waiting_steps = any(env.has_waiting_steps for env in self._envs.values())
        self._env = next(iter(self._envs.values()))
        self.config = self._env.config

    def oracle_actions(self, task: Task) -> Sequence[str]:
        """Returns the oracle actions of the task's source."""
        env, source_task = self._find(task)
        return env.oracle_actions(source_task)

    def final_reward(self, outcome: Outcome) -> float:
        """Returns the final reward of the episode's source."""
        return self._env.final_reward(outcome)

    def _begin(self, task: Task) -> str:
        self._env, source_task = self._find(task)
        self.config = self._env.config
        prompt, _ = self._env.reset(options={"task": source_task})
        return prompt

    def _act(self, action: str) -> Turn:
        observation, reward, _, _, info = self._env.step(action)
        return Turn(observation, info["outcome"], reward, info["is_valid_action"])

    def _checked_act(self, action: str) -> Turn:
        """Passes the action on unchecked: the source checks it."""
        return self._act(action)

    def _settle(self, outcome: Outcome) -> Outcome:
        """Returns the outcome as it is: the source has settled it by its own limits."""
        return outcome

    def _release(self) -> None:
        for env in self._envs.values():
            env.close()

    def _add(self, source: MixturePart, shared: Mapping[str, Any]) -> None:
        name = source["name"]
        env_id, kwargs = source["id"], {**source.get("kwargs", {}), **shared}
        find_spec(env_id)
        if kwargs.get("adaptive"):
            problem = "adapts its difficulty, which a mixture cannot follow"
            raise SettingsError(f"source {name!r}: {env_id} {problem}")
        try:
            env = gymnasium.make(env_id, disable_env_checker=True, **kwargs).unwrapped
        except (SettingsError, TypeError, gymnasium.error.Error) as error:
            raise SettingsError(f"source {name!r}: {error}") from error
        if isinstance(env, TextEnv):
            self._envs[name] = env
            return
        env.close()
        raise SettingsError(f"source {name!r}: {env_id} is no TextEnv")

    def _find(self, task: Task) -> tuple[TextEnv[Any], Task]:
        """Returns a task's environment, and the task as that one knows it."""
        name, slash, task_id = task.task_id.partition("/")
        if not slash or name not in self._envs:
            raise UnknownTaskError(f"task {task.task_id!r:.80} is of no source of this mixture")
        return self._envs[name], replace(task, task_id=task_id, skills=task.skills[1:])


def _name(name: str, task: Task) -> Task:
    return replace(task, task_id=f"{name}/{task.task_id}", skills=(name, *task.skills))


def _to_shares(sources: Sequence[MixturePart], weights: Sequence[float] | None) -> list[float]:
    """Returns the sources' shares, which sum to 1. Raises: SettingsError on wrong arguments."""
    if isinstance(sources, str | Mapping) or not isinstance(sources, Sequence) or not sources:
        raise SettingsError(f"sources must list one environment or more, got {shown(sources)}")
    for source in sources:
        is_mapping = isinstance(source, Mapping)
        if not is_mapping or not isinstance(source.get("kwargs", {}), Mapping):
            expected = "a mapping of name, id and kwargs (a mapping)"
            raise SettingsError(f"a source is {expected}, got {source!r:.80}")
        for key in source:
            check_choice("key of a source", key, MixturePart.__annotations__)
        name, env_id = source.get("name"), source.get("id")
        if not (isinstance(name, str) and name and "/" not in name and isinstance(env_id, str)):
            expected = "a name (without a slash) and an id"
            raise SettingsError(f"a source needs {expected}, got {source!r:.80}")
    names = [source["name"] for source in sources]
    if len(set(names)) < len(names):
        raise SettingsError(f"two sources have one name: {', '.join(names)}")
    weights = [1.0] * len(names) if weights is None else weights
    are_numbers = isinstance(weights, Sequence) and all(is_number(w) and w >= 0 for w in weights)
    if not are_numbers or len(weights) != len(names) or not 0 < sum(weights) < math.inf:
        expected = f"{len(names)} numbers >= 0, one for each source, whose sum is above 0"
        raise SettingsError(f"weights must be {expected} and finite, got {shown(weights)}")
    total = math.fsum(weights)
    return [weight / total for weight in weights]
