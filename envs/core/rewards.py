"""How episodes end, and what that earns: published presets, shaping terms, or a user's function."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType

from agentpeft.envs.core.errors import SettingsError, check_choice, is_number, shown
from agentpeft.envs.tasks.task import Task


class Outcome(StrEnum):
    """The value of `info["outcome"]`.

    All but `ONGOING` and `CONTEXT_LIMIT` end an episode with `terminated=True`. `CONTEXT_LIMIT`
    is the caller's: an agent whose context is full ends the episode outside the environment.
    """

    ONGOING = "ongoing"
    SUCCESS = "success"
    FAILURE = "failure"
    INVALID_ACTION = "invalid_action"
    TURN_LIMIT = "turn_limit"
    TIMEOUT = "timeout"
    CONTEXT_LIMIT = "context_limit"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class TurnRecord:
    """One finished turn: the agent's action, the new text it got, and its turn reward."""

    action: str
    observation: str
    reward: float
    is_valid_action: bool


@dataclass(frozen=True)
class Episode:
    """A finished episode, as a reward function sees it."""

    task: Task
    prompt: str
    turns: tuple[TurnRecord, ...]
    outcome: Outcome
    environment: str = "environment"

    @property
    def place(self) -> str:
        """Environment, task and turn, for the beginning of a message."""
        return f"{self.environment}, task {self.task.task_id!r}, turn {len(self.turns)}"


RewardFunction = Callable[[Episode], float]
_FUNCTIONS = ("reward_fn", "turn_reward_fn")
_OPTIONAL = ("invalid_action", "turn_limit", "timeout", "context_limit", "unknown")


@dataclass(frozen=True)
class RewardConfig:
    """Final rewards by outcome, plus shaping terms that are added on every turn.

    None for an outcome means: as `failure`. `reward_fn` (a callable or "module:function") replaces
    the reward by outcome; the shaping terms stay. `turn_reward_fn` (the same) is called after every
    turn, with the episode up to that turn, and adds to the turn's reward. `turn_cost` and
    `length_cost` (per character of the action) are subtracted, `format_bonus` is added for every
    valid action.
    """

    success: float = 1.0
    failure: float = 0.0
    invalid_action: float | None = None
    turn_limit: float | None = None
    timeout: float | None = None
    context_limit: float | None = None
    unknown: float | None = None
    turn_cost: float = 0.0
    length_cost: float = 0.0
    format_bonus: float = 0.0
    reward_fn: RewardFunction | str | None = None
    turn_reward_fn: RewardFunction | str | None = None

    def __post_init__(self) -> None:
        """Raises: SettingsError on values that are no finite numbers, and on costs below 0."""
        for name, value in vars(self).items():
            if name in _FUNCTIONS or (value is None and name in _OPTIONAL):
                continue
            if not is_number(value):
                raise SettingsError(f"{name} must be a finite number, got {shown(value)}")
            if value < 0 and name in ("turn_cost", "length_cost"):
                raise SettingsError(f"{name} is subtracted, so it must be >= 0, got {value}")
        if self.reward_fn is not None or self.turn_reward_fn is not None:
            _ = self._functions  # raises here and not at the first reward

    @cached_property
    def _functions(self) -> dict[str, RewardFunction]:
        # Most rewards are by outcome
        from agentpeft.envs.core.reward_functions import load_reward_function

        given = {name: vars(self)[name] for name in _FUNCTIONS}
        return {n: load_reward_function(n, f) for n, f in given.items() if f is not None}

    @cached_property
    def _by_outcome(self) -> dict[Outcome, float]:
        given = {o: vars(self)[o.value] for o in Outcome if o is not Outcome.ONGOING}
        return {o: self.failure if value is None else value for o, value in given.items()}

    @classmethod
    def build(cls, value: "RewardConfig | str | Mapping[str, object]") -> "RewardConfig":
        """Returns a config from itself, a preset's name, or a mapping of fields.

        A mapping may have "preset" as the config to start from. Raises: SettingsError.
        """
        if isinstance(value, RewardConfig):
            return value
        if isinstance(value, str):
            check_choice("reward preset", value, REWARD_PRESETS)
            return REWARD_PRESETS[value]
        if not isinstance(value, Mapping):
            raise SettingsError(
                f"reward must be a RewardConfig, a preset's name or a mapping, got {shown(value)}"
            )
        for key in value:
            check_choice("reward field", key, (*(f.name for f in fields(cls)), "preset"))
        settings = dict(value)
        preset = settings.pop("preset", cls())
        if not isinstance(preset, str | RewardConfig):
            raise SettingsError(f"reward preset must be a preset's name, got {shown(preset)}")
        base = cls.build(preset)
        return replace(base, **settings)  # type: ignore[arg-type]

    def turn_reward(self, action: str, is_valid_action: bool) -> float:
        """Returns the sum of the shaping terms for one turn."""
        bonus = self.format_bonus if is_valid_action else 0.0
        return bonus - self.turn_cost - self.length_cost * len(action)

    def spread(self, max_turns: int) -> float:
        """Returns the difference between the best and the worst reward of `max_turns`.

        Costs of length are left out, and so is what a `reward_fn` may return.
        """
        outcomes = self._by_outcome.values()
        shaping = max_turns * (self.turn_cost + abs(self.format_bonus))
        return max(outcomes) - min(outcomes) + shaping

    def final_reward(self, episode: Episode) -> float:
        """Returns the reward for how the episode ended.

        Raises: ValueError unless `reward_fn` returns a finite number, and whatever it raises.
        """
        if self.reward_fn is None:
            return self._by_outcome[episode.outcome]
        return self._call("reward_fn", episode)

    def scored_turn(self, episode: Episode) -> float:
        """Returns the `turn_reward_fn` of the episode's last turn. Raises: as `final_reward`."""
        return self._call("turn_reward_fn", episode)

    def _call(self, setting: str, episode: Episode) -> float:
        from agentpeft.envs.core.reward_functions import call_reward_function

        return call_reward_function(setting, self._functions[setting], episode)


REWARD_PRESETS: Mapping[str, RewardConfig] = MappingProxyType(
    {
        "db": RewardConfig(success=1.0, failure=-0.1, timeout=-0.3),
        "os": RewardConfig(success=1.0, failure=-0.5, unknown=0.0),
        "exact_match": RewardConfig(success=1.0, failure=0.0),
    }
)
"""Published reward schemes by name."""
