"""Difficulty that follows success: a level that rises and falls, and what each level pays.

If all levels paid alike, an agent that cannot do the next level would gain by failing now and then,
so as to stay where it is. Hence each level pays more, by as much as a success is worth over a
failure: the worst episode of a level gets what the best one of the level below gets. A success
gets its own reward and can only raise the levels that follow, so no policy gains by failing on
purpose.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentpeft.envs.arithmetic.tasks import ArithmeticTask
from agentpeft.envs.core.errors import (
    SettingsError,
    check_choice,
    check_count,
    check_share,
    shown,
)
from agentpeft.envs.core.rewards import Episode, RewardConfig


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


@dataclass(frozen=True)
class LevelReward:
    """A reward function: `base`, and `step` more for each level above the lowest.

    An episode on a given task of another level gets `base` alone, as it does not count.
    """

    base: RewardConfig
    difficulty: AdaptiveDifficulty
    step: float

    def __call__(self, episode: Episode) -> float:
        """Returns the final reward."""
        reward, level, task = self.base.final_reward(episode), self.difficulty.level, episode.task
        if not isinstance(task, ArithmeticTask) or task.num_digits != level:
            return reward
        return reward + self.step * (level - self.difficulty.lowest)


def make_difficulty(
    digits: tuple[int, int], adaptive: bool | Mapping[str, Any]
) -> AdaptiveDifficulty:
    """Returns a difficulty between two numbers of digits. Raises: SettingsError."""
    settings = {} if adaptive is True else adaptive
    if not isinstance(settings, Mapping):
        raise SettingsError(f"adaptive is True, False or a mapping, got {shown(adaptive)}")
    if digits[0] == digits[1]:
        raise SettingsError(f"adaptive needs num_digits=(fewest, most), got {digits[0]}")
    for name in settings:
        check_choice("adaptive setting", name, ("window", "raise_at", "lower_at"))
    return AdaptiveDifficulty(digits, **settings)


def reward_by_level(
    rewards: RewardConfig, difficulty: AdaptiveDifficulty, max_turns: int
) -> RewardConfig:
    """Returns rewards that each level raises; those of a user's function stay."""
    if rewards.reward_fn is not None:
        return rewards
    level_reward = LevelReward(rewards, difficulty, rewards.spread(max_turns))
    return replace(rewards, reward_fn=level_reward)
