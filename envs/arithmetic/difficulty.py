"""Difficulty that follows the success rate: a level that rises and falls."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from agentpeft.envs.errors import SettingsError, did_you_mean


@dataclass(frozen=True)
class AdaptiveConfig:
    """When the level changes, from the success rate of its last `window` episodes.

    At `raise_at` or above the level goes up by one, at `lower_at` or below down by one; each
    change starts a new window.
    """

    window: int = 50
    raise_at: float = 0.8
    lower_at: float = 0.3

    def __post_init__(self) -> None:
        """Raises: SettingsError."""
        if self.window < 1:
            raise SettingsError(f"window must be >= 1, got {self.window}")
        if not 0 <= self.lower_at < self.raise_at <= 1:
            raise SettingsError(
                f"adaptive needs 0 <= lower_at < raise_at <= 1, got {self.lower_at} and "
                f"{self.raise_at}"
            )

    @classmethod
    def of(cls, value: "bool | Mapping[str, float]") -> "AdaptiveConfig":
        """Returns the defaults for True, or those changed by a mapping. Raises: SettingsError."""
        settings = value if isinstance(value, Mapping) else {}
        known = cls.__dataclass_fields__
        for name in settings:
            if name not in known:
                raise SettingsError(f"unknown adaptive setting {name!r}{did_you_mean(name, known)}")
        return cls(**settings)  # type: ignore[arg-type]


class AdaptiveDifficulty:
    """A level between two bounds; it depends on nothing but the recorded successes."""

    def __init__(self, lowest: int, highest: int, config: AdaptiveConfig) -> None:
        """Starts at the lowest level."""
        self.level = lowest
        self.config = config
        self._bounds = (lowest, highest)
        self._successes: deque[bool] = deque(maxlen=config.window)

    def record(self, is_success: bool) -> bool:
        """Records an episode of the present level and returns whether the level changed."""
        self._successes.append(is_success)
        if len(self._successes) < self.config.window:
            return False
        rate = sum(self._successes) / self.config.window
        change = int(rate >= self.config.raise_at) - int(rate <= self.config.lower_at)
        level = min(max(self.level + change, self._bounds[0]), self._bounds[1])
        if level == self.level:
            return False
        self.level = level
        self._successes.clear()
        return True
