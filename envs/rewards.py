"""From outcomes to rewards: published presets, shaping terms, or a function of one's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
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
    _by_outcome: Mapping[Outcome, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Fills in the outcomes that are None. Raises: SettingsError on costs below 0."""
        for name in ("turn_cost", "length_cost"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} is subtracted, so it must be >= 0")
        given = {
            Outcome.SUCCESS: self.success,
            Outcome.FAILURE: self.failure,
            Outcome.INVALID_ACTION: self.invalid_action,
            Outcome.TURN_LIMIT: self.turn_limit,
            Outcome.TIMEOUT: self.timeout,
            Outcome.CONTEXT_LIMIT: self.context_limit,
            Outcome.UNKNOWN: self.unknown,
        }
        by_outcome = {
            outcome: self.failure if value is None else value for outcome, value in given.items()
        }
        object.__setattr__(self, "_by_outcome", by_outcome)
        if isinstance(self.reward_fn, str):
            object.__setattr__(self, "reward_fn", _load_function(self.reward_fn))

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
        known = {f.name for f in fields(cls) if f.init} | {"preset"}
        for key in value:
            if key not in known:
                raise SettingsError(f"unknown reward field {key!r}{did_you_mean(key, known)}")
        settings = dict(value)
        base = cls.of(str(settings.pop("preset"))) if "preset" in settings else cls()
        return replace(base, **settings)  # type: ignore[arg-type]

    def turn_reward(self, action: str, is_valid_action: bool) -> float:
        """Returns the sum of the shaping terms for one turn."""
        bonus = self.format_bonus if is_valid_action else 0.0
        return bonus - self.turn_cost - self.length_cost * len(action)

    def final_reward(self, episode: Episode) -> float:
        """Returns the reward for how the episode ended."""
        if callable(self.reward_fn):
            return float(self.reward_fn(episode))
        return self._by_outcome[episode.outcome]


def _load_function(name: str) -> RewardFunction:
    module_name, _, attribute = name.partition(":")
    try:
        function: RewardFunction = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"reward_fn {name!r} must be 'module:function' that can be imported ({error})"
        ) from None
    if not callable(function):
        raise SettingsError(f"reward_fn {name!r} is not callable")
    return function


REWARD_PRESETS: Mapping[str, RewardConfig] = MappingProxyType(
    {
        "db": RewardConfig(success=1.0, failure=-0.1, timeout=-0.3),
        "os": RewardConfig(success=1.0, failure=-0.5, unknown=0.0),
        "exact_match": RewardConfig(success=1.0, failure=0.0),
    }
)
"""Published reward schemes by name."""
