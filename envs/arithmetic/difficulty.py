"""Rewards of a level of adaptive difficulty.

If all levels paid alike, an agent that cannot do the next level would gain by failing now and then,
so as to stay where it is. Hence each level pays more, by as much as a success is worth over a
failure: the worst episode of a level gets what the best one of the level below gets. A success
gets its own reward and can only raise the levels that follow, so no policy gains by failing on
purpose.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentpeft.envs.arithmetic.tasks import ArithmeticTask
from agentpeft.envs.core.rewards import Episode, RewardConfig
from agentpeft.envs.tasks.difficulty import AdaptiveDifficulty
from agentpeft.envs.tasks.taskset import Task


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
        reward, level = self.base.final_reward(episode), self.difficulty.level
        if not is_of_level(episode.task, level):
            return reward
        return reward + self.step * (level - self.difficulty.lowest)


def is_of_level(task: Task, level: int) -> bool:
    """Returns whether a task is of a level: its longer operand has as many digits."""
    return isinstance(task, ArithmeticTask) and task.num_digits == level


def make_difficulty(digits: tuple[int, int], numbers: Mapping[str, Any]) -> AdaptiveDifficulty:
    """Returns a difficulty between two numbers of digits. Raises: SettingsError."""
    return AdaptiveDifficulty(digits, **numbers)
