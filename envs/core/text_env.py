"""`TextEnv`: the one episode loop that every environment of the suite shares."""

import inspect
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypedDict, cast

import gymnasium
from gymnasium.error import ResetNeeded

from agentpeft.envs.core.closing import Closable, gated
from agentpeft.envs.core.errors import (
    DataError,
    EnvFault,
    SettingsError,
    UnknownSettingError,
    UnknownTaskError,
    check_count,
    check_duration,
    check_flag,
    did_you_mean,
    shown,
)
from agentpeft.envs.core.rewards import Episode, Outcome, RewardConfig, TurnRecord
from agentpeft.envs.core.spaces import Unicode, to_utf8
from agentpeft.envs.tasks.task import Task, TaskSource, TaskT

if TYPE_CHECKING:  # most agents answer in text
    from agentpeft.envs.tools.tool_table import ToolTable


@dataclass(frozen=True)
class Turn:
    """The result of one action: the new text, and the outcome if it ended the episode.

    `INVALID_ACTION` and `TIMEOUT` end the episode unless the settings say otherwise. `reward` is
    for environments that reward single turns; final rewards come from the outcome. An action is
    invalid where the outcome says so, or where `is_valid_action` does and the episode continues.
    """

    observation: str
    outcome: Outcome = Outcome.ONGOING
    reward: float = 0.0
    is_valid_action: bool = True


class EpisodeOptions(TypedDict, total=False):
    """The keyword arguments that every environment takes; see `EpisodeConfig`."""

    max_turns: int
    invalid_ends: bool
    timeout_ends: bool
    episode_timeout_s: float | None
    reward: RewardConfig | str | Mapping[str, object]
    max_action_chars: int
    max_observation_chars: int
    render_mode: str | None


@dataclass(frozen=True)
class EpisodeConfig:
    """Settings of the episode loop.

    `max_turns`: actions per episode. `invalid_ends`, `timeout_ends`: an invalid action, or a
    statement or command over its time, ends the episode (else it costs a turn).
    `episode_timeout_s`: how long the environment itself may take in an episode, from `reset` on;
    the agent's time is not counted. None is no limit. `reward`: see `RewardConfig.build`.
    """

    max_turns: int = 1
    invalid_ends: bool = True
    timeout_ends: bool = True
    episode_timeout_s: float | None = None
    reward: RewardConfig | str | Mapping[str, object] = "exact_match"
    max_action_chars: int = 65_536
    max_observation_chars: int = 262_144
    render_mode: str | None = None

    def __post_init__(self) -> None:
        """Raises: SettingsError on limits that leave no room for an episode."""
        for name in ("max_turns", "max_action_chars", "max_observation_chars"):
            check_count(name, vars(self)[name])
        for name in ("invalid_ends", "timeout_ends"):
            check_flag(name, vars(self)[name])
        if self.episode_timeout_s is not None:
            check_duration("episode_timeout_s", self.episode_timeout_s)
        if self.render_mode not in (None, "ansi"):
            raise SettingsError(
                f"render_mode must be None or 'ansi', got {shown(self.render_mode)}"
            )


class TextEnv(Closable, gymnasium.Env[str, str], Generic[TaskT]):
    """A Gymnasium environment whose observations and actions are plain text.

    A subclass defines a task's prompt (`_begin`), the effect of an action (`_act`) and how a
    perfect agent would act (`oracle_actions`). This class does the rest:

    * `reset(seed=, options={"task": task or task_id})` returns the whole prompt; `step` returns
      only the new text.
    * The turn limit is in the prompt and ends the episode with `terminated=True`, outcome
      `turn_limit`. `truncated` is always False.
    * `info` has `outcome` (an `Outcome`), `is_success`, `is_valid_action`, `num_turns`, `task_id`
      and `skills`.
    * An agent's mistake is text and reward, never an exception.
    * `reset`, `step` and `oracle_actions` run one at a time. After `close` they raise
      ClosedEnvironmentError, as does one that `close` interrupted.
    * A pickled or copied environment has the settings, the tasks and the random state, but no
      episode: it must be reset. A closed one cannot be copied.

    `task_source` may be given a `Taskset` or a generator after construction too. A subclass that
    holds something frees it in `_release` and leaves it out of `__getstate__`.
    """

    # Frames per second mean nothing for text, but Gymnasium warns without them
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}  # type: ignore[misc]
    default_config: ClassVar[EpisodeConfig] = EpisodeConfig()
    tools_module: ClassVar[str | None] = None
    """The module whose `TOOLS` the environment has; most agents answer in text, and need none."""
    has_waiting_steps: bool = False
    """True if steps wait on a server or another process, so that threads speed up many."""
    has_quick_steps: bool = False
    """True if `reset` and `step` take a millisecond at most, so that a server needs no thread."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Makes the subclass's oracle a call like `reset` and `step`."""
        super().__init_subclass__(**kwargs)
        if "tools" in vars(cls):
            raise TypeError(f"{cls.__name__}.tools is not read: return the table from get_tools()")
        if "oracle_actions" in vars(cls):
            cls.oracle_actions = gated(cls.oracle_actions)  # type: ignore[assignment, method-assign]

    def __init__(self, task_source: TaskSource[TaskT], options: EpisodeOptions) -> None:
        """`options` override the class's `default_config`. Raises: SettingsError."""
        super().__init__()
        for name in options:
            if name not in EpisodeOptions.__annotations__:
                hint = did_you_mean(name, {*EpisodeOptions.__annotations__, *self._list_settings()})
                word = f"unexpected keyword argument {name!r}"  # what TorchRL looks for
                raise UnknownSettingError(f"unknown setting {name!r}{hint} ({word})")
        self.config = replace(self.default_config, **options)
        self.reward_config = RewardConfig.build(self.config.reward)
        self.render_mode = self.config.render_mode
        self.task_source = task_source
        self.action_space = Unicode(self.config.max_action_chars)
        self.observation_space = Unicode(self.config.max_observation_chars)
        self._task: TaskT | None = None
        self._prompt = ""
        self._turns: list[TurnRecord] = []
        self._outcome = Outcome.UNKNOWN
        self._spent_s = 0.0

    @abstractmethod
    def _begin(self, task: TaskT) -> str:
        """Prepares an episode of `task` and returns its prompt. Raises: EnvFault."""

    @abstractmethod
    def _act(self, action: str) -> Turn:
        """Carries out one action (valid UTF-8, within its length). Raises: EnvFault, DataError."""

    @abstractmethod
    def oracle_actions(self, task: TaskT) -> Sequence[str]:
        """Returns the actions of a perfect agent, whose last one ends in success."""

    @classmethod
    def get_tools(cls) -> "ToolTable":
        """Returns the tools of an agent that plays by tool calls; each call becomes an action."""
        if cls.tools_module is not None:
            return cast("ToolTable", import_module(cls.tools_module).TOOLS)
        from agentpeft.envs.tools.tool_table import ANY_TEXT

        return ANY_TEXT

    @classmethod
    def _list_settings(cls) -> list[str]:
        """Returns the names of the constructor's arguments, to suggest for a wrong one."""
        parameters = inspect.signature(cls).parameters.values()
        return [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]

    def _end(self, outcome: Outcome) -> None:
        """Called once when an episode has ended; not when a reset or a fault cuts it short."""

    def _release(self) -> None:
        """Frees what the environment holds: called once, after the last call."""

    @gated
    def __getstate__(self) -> dict[str, Any]:
        """Returns all but the running episode. Raises: ClosedEnvironmentError."""
        state = {**vars(self), "_task": None, "_prompt": "", "_turns": []}
        del state["_lock"]
        return {**state, "_depth": 0, "_outcome": Outcome.UNKNOWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    @property
    def task_source(self) -> TaskSource[TaskT]:
        """The source of tasks."""
        return self._task_source

    @task_source.setter
    def task_source(self, source: TaskSource[TaskT]) -> None:
        """Raises: SettingsError if it is no task source."""
        if isinstance(source, type) or not isinstance(source, TaskSource):
            raise SettingsError(
                "task_source must be a Taskset or a generator (an object with draw and get), "
                f"got {shown(source)}; for a list of tasks, Taskset(tasks)"
            )
        self._task_source = source

    @property
    def task(self) -> TaskT:
        """The present task. Raises: ResetNeeded before the first reset."""
        if self._task is None:
            raise ResetNeeded("call reset() first")
        return self._task

    @property
    def outcome(self) -> Outcome:
        """How the present episode stands."""
        return self._outcome

    @property
    def episode(self) -> Episode:
        """The present episode so far."""
        name = self.spec.id if self.spec else type(self).__name__
        return Episode(self.task, self._prompt, tuple(self._turns), self._outcome, name)

    @gated
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Starts an episode and returns (prompt, info).

        `options["task"]` is a task or a task id of the task source; without it one is drawn.
        Raises: UnknownTaskError, SettingsError (unknown option), EnvFault, ClosedEnvironmentError.
        """
        super().reset(seed=seed)
        self._outcome = Outcome.UNKNOWN
        self._task = self._choose_task(options or {})
        if isinstance(self._task.skills, str):
            raise TypeError(f"a task's skills must be a tuple, got {self._task.skills!r:.60}")
        self._turns = []
        start_s = time.monotonic()
        self._prompt = self._cut(self._begin(self._task))
        self._spent_s = time.monotonic() - start_s
        self._outcome = Outcome.ONGOING
        return self._prompt, self._info(is_valid_action=True)

    @gated
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carries out an action; returns (new text, reward, terminated, truncated, info).

        Raises: ResetNeeded where no episode is running, TypeError if the action is no string,
        EnvFault (and then the episode is over, without an outcome; also where the task's own
        solution or check fails), ValueError where a reward is no finite number,
        ClosedEnvironmentError.
        """
        if self._outcome is not Outcome.ONGOING:
            raise ResetNeeded("no episode is going on; call reset() before step()")
        if not isinstance(action, str):
            raise TypeError(f"an action is a str, got {type(action).__name__} {action!r:.60}")
        self._outcome = Outcome.UNKNOWN  # stays so, and needs a reset, if the world fails
        start_s = time.monotonic()
        try:
            turn = self._checked_act(action)
        except DataError as error:  # the task's solution or check fails, as only grading shows
            raise EnvFault(f"{self.episode.place}: {error}") from error
        if not isinstance(turn, Turn):
            raise TypeError(f"{type(self).__name__}._act must return a Turn, got {turn!r:.60}")
        self._spent_s += time.monotonic() - start_s
        is_valid_action = turn.is_valid_action and turn.outcome is not Outcome.INVALID_ACTION
        outcome = self._settle(turn.outcome)
        reward = turn.reward + self.reward_config.turn_reward(action, is_valid_action)
        observation = self._cut(turn.observation)
        self._turns.append(TurnRecord(action, observation, reward, is_valid_action))
        if self.reward_config.turn_reward_fn is not None:
            reward += self.reward_config.scored_turn(replace(self.episode, outcome=outcome))
            self._turns[-1] = replace(self._turns[-1], reward=reward)
        is_over = outcome is not Outcome.ONGOING
        if is_over:
            reward += self.reward_config.final_reward(replace(self.episode, outcome=outcome))
        if not isfinite(reward):
            raise ValueError(f"{self.episode.place}: the reward is {reward}, no finite number")
        self._outcome = outcome
        if is_over:
            self._end(outcome)
        return observation, float(reward), is_over, False, self._info(is_valid_action)

    def final_reward(self, outcome: Outcome) -> float:
        """Returns the final reward where the caller, and no step, ends the present episode so."""
        return self.reward_config.final_reward(replace(self.episode, outcome=outcome))

    def render(self) -> str | None:
        """Returns the episode as text in render mode "ansi", else None."""
        if self.render_mode is None:
            return None
        turns = [f"> {turn.action}\n{turn.observation}" for turn in self._turns]
        return "\n".join([self._prompt, *turns, f"[{self._outcome}]"])

    def _choose_task(self, options: Mapping[str, Any]) -> TaskT:
        for name in options:
            if name != "task":
                raise SettingsError(f"unknown reset option {name!r}; known: task")
        task = options.get("task")
        if task is None:
            return self.task_source.draw(self.np_random)
        if isinstance(task, str):
            return self.task_source.get(task)
        if not isinstance(task, Task):
            raise UnknownTaskError(f"options['task'] is a task or a task id, got {task!r:.60}")
        return cast(TaskT, task)

    def _checked_act(self, action: str) -> Turn:
        if len(action) > (limit := self.config.max_action_chars):
            return Turn(f"The action is longer than {limit} characters.", Outcome.INVALID_ACTION)
        return self._act(to_utf8(action))

    def _settle(self, outcome: Outcome) -> Outcome:
        """Returns the outcome after the settings, the turn and the time limit are applied."""
        config = self.config
        if config.episode_timeout_s is not None and self._spent_s > config.episode_timeout_s:
            return Outcome.TIMEOUT
        ends = {Outcome.INVALID_ACTION: config.invalid_ends, Outcome.TIMEOUT: config.timeout_ends}
        if not ends.get(outcome, True):
            outcome = Outcome.ONGOING
        if outcome is Outcome.ONGOING and len(self._turns) + 1 >= config.max_turns:
            return Outcome.TURN_LIMIT
        return outcome

    def _cut(self, text: str) -> str:
        if not isinstance(text, str):
            name = type(self).__name__
            raise TypeError(f"{name}: prompts and observations must be a str, got {text!r:.60}")
        limit = self.config.max_observation_chars
        if len(text) <= limit:
            return text
        note = f"\n[cut: {len(text)} characters]"
        return (text[: max(0, limit - len(note))] + note)[:limit]

    def _info(self, is_valid_action: bool) -> dict[str, Any]:
        return {
            "outcome": self._outcome,
            "is_success": self._outcome is Outcome.SUCCESS,
            "is_valid_action": is_valid_action,
            "num_turns": len(self._turns),
            "task_id": self.task.task_id,
            "skills": self.task.skills,
        }
