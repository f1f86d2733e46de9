"""What each level of adaptive difficulty pays.

If all levels paid alike, an agent that cannot do the next level would gain by failing now and then,
so as to stay where it is. Hence each level pays more, by as much as a success is worth over a
failure: the worst episode of a level gets what the best one of the level below gets. A success
gets its own reward and can only raise the levels that follow, so no policy gains by failing on
purpose.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentpeft.envs.arithmetic.tasks import ArithmeticTask
from agentpeft.envs.core.errors import SettingsError, check_choice, shown
from agentpeft.envs.core.rewards import Episode, RewardConfig
from agentpeft.envs.tasks.difficulty import AdaptiveDifficulty


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
