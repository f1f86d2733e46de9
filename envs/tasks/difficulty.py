"""Difficulty that follows the success rate: a level that rises and falls."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from agentpeft.envs.core.errors import SettingsError, check_count, check_share


class AdaptiveDifficulty:
    """A level between two bounds, which depends only on the recorded successes.

    Where the success rate of its last `window` episodes is `raise_at` or above, the level goes up
    by one; at `lower_at` or below, down by one (None: never). Each change starts a new window.
    """

    def __init__(
        self,
        bounds: tuple[int, int],
        window: int = 50,
        raise_at: float = 0.8,
        lower_at: float | None = 0.3,
    ) -> None:
        """Starts at the lower bound. Raises: SettingsError."""
        check_count("window", window)
        check_share("raise_at", raise_at)
        if lower_at is not None:
            check_share("lower_at", lower_at)
            if lower_at >= raise_at:
                got = f"{lower_at} and {raise_at}"
                raise SettingsError(f"lower_at must be below raise_at, got {got}")
        self.level = self.lowest = bounds[0]
        self._bounds = bounds
        self._raise_at, self._lower_at = raise_at, lower_at
        self._successes: deque[bool] = deque(maxlen=window)

    def record(self, is_success: bool) -> bool:
        """Records an episode of the present level and returns whether the level changed."""
        self._successes.append(is_success)
        if len(self._successes) < (self._successes.maxlen or 0):
            return False
        rate = sum(self._successes) / len(self._successes)
        is_low = self._lower_at is not None and rate <= self._lower_at
        change = int(rate >= self._raise_at) - int(is_low)
        level = min(max(self.level + change, self._bounds[0]), self._bounds[1])
        if level == self.level:
            return False
        self.level = level
        self._successes.clear()
        return True

    def state_dict(self) -> dict[str, Any]:
        """Returns the level and its window, JSON-able."""
        return {"level": self.level, "successes": list(self._successes)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned."""
        self.level = state["level"]
        self._successes.clear()
        self._successes.extend(state["successes"])
