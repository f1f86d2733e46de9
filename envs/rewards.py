"""From outcomes to rewards: published presets, shaping terms, or a function of one's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from importlib import import_module
from math import isfinite
from types import MappingProxyType

from agentpeft.envs.errors import SettingsError, did_you_mean
from agentpeft.envs.outcomes import Outcome
from agentpeft.envs.tasks import Task


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


RewardFunction = Callable[[Episode], float]
_OPTIONAL = ("invalid_action", "turn_limit", "timeout", "context_limit", "unknown")


@dataclass(frozen=True)
class RewardConfig:
    """Final rewards by outcome, plus shaping terms that are added on every turn.

    None for an outcome means: as `failure`. `reward_fn` (a callable or "module:function") replaces
    the reward by outcome; the shaping terms stay. `turn_cost` and `length_cost` (per character of
    the action) are subtracted, `format_bonus` is added for every valid action.
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

    def __post_init__(self) -> None:
        """Raises: SettingsError on values that are no finite numbers, and on costs below 0."""
        for name, value in vars(self).items():
            if name == "reward_fn" or (value is None and name in _OPTIONAL):
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
                raise SettingsError(f"{name} must be a finite number, got {value!r:.60}")
            if value < 0 and name in ("turn_cost", "length_cost"):
                raise SettingsError(f"{name} is subtracted, so it must be >= 0, got {value}")
        if self.reward_fn is not None and not callable(self._function):
            raise SettingsError(f"reward_fn {self.reward_fn!r:.60} is not callable")

    @cached_property
    def _function(self) -> RewardFunction | None:
        name = self.reward_fn
        return _load_function(name) if isinstance(name, str) else name

    @cached_property
    def _by_outcome(self) -> dict[Outcome, float]:
        given = {
            Outcome.SUCCESS: self.success,
            Outcome.FAILURE: self.failure,
            Outcome.INVALID_ACTION: self.invalid_action,
            Outcome.TURN_LIMIT: self.turn_limit,
            Outcome.TIMEOUT: self.timeout,
            Outcome.CONTEXT_LIMIT: self.context_limit,
            Outcome.UNKNOWN: self.unknown,
        }
        return {
            outcome: self.failure if value is None else value for outcome, value in given.items()
        }

    @classmethod
    def of(cls, value: "RewardConfig | str | Mapping[str, object]") -> "RewardConfig":
        """Returns a config from itself, a preset's name, or a mapping of fields.

        A mapping may have "preset" as the config to start from. Raises: SettingsError.
        """
        if isinstance(value, RewardConfig):
            return value
        if isinstance(value, str):
            if value not in REWARD_PRESETS:
                raise SettingsError(
                    f"unknown reward preset {value!r}{did_you_mean(value, REWARD_PRESETS)}"
                )
            return REWARD_PRESETS[value]
        if not isinstance(value, Mapping):
            raise SettingsError(
                f"reward must be a RewardConfig, a preset's name or a mapping, got {value!r:.60}"
            )
        known = {f.name for f in fields(cls)} | {"preset"}
        for key in value:
            if key not in known:
                raise SettingsError(f"unknown reward field {key!r}{did_you_mean(str(key), known)}")
        settings = dict(value)
        base = cls.of(str(settings.pop("preset"))) if "preset" in settings else cls()
        return replace(base, **settings)  # type: ignore[arg-type]

    def turn_reward(self, action: str, is_valid_action: bool) -> float:
        """Returns the sum of the shaping terms for one turn."""
        bonus = self.format_bonus if is_valid_action else 0.0
        return bonus - self.turn_cost - self.length_cost * len(action)

    def spread(self, max_turns: int) -> float:
        """Returns how much more the best episode of `max_turns` may get than the worst.

        Costs of length are left out, and so is what a `reward_fn` may return.
        """
        outcomes = self._by_outcome.values()
        shaping = max_turns * (self.turn_cost + abs(self.format_bonus))
        return max(outcomes) - min(outcomes) + shaping

    def final_reward(self, episode: Episode) -> float:
        """Returns the reward for how the episode ended."""
        if self._function is not None:
            return float(self._function(episode))
        return self._by_outcome[episode.outcome]


def _load_function(name: str) -> RewardFunction:
    module_name, _, attribute = name.partition(":")
    try:
        function: RewardFunction = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"reward_fn {name!r} must be 'module:function' that can be imported ({error})"
        ) from None
    return function


REWARD_PRESETS: Mapping[str, RewardConfig] = MappingProxyType(
    {
        "db": RewardConfig(success=1.0, failure=-0.1, timeout=-0.3),
        "os": RewardConfig(success=1.0, failure=-0.5, unknown=0.0),
        "exact_match": RewardConfig(success=1.0, failure=0.0),
    }
)
"""Published reward schemes by name."""
