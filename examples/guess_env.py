"""An environment in fifty lines: find a number from the answers "higher" and "lower".

```sh
PYTHONPATH=examples agentpeft play guess_env:Mine/Guess-v0
PYTHONPATH=examples agentpeft train examples/guess.toml
```
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import gymnasium as gym
import numpy as np

from agentpeft.envs import (
    EpisodeConfig,
    EpisodeOptions,
    Outcome,
    Task,
    TextEnv,
    Turn,
    UnknownTaskError,
)

LARGEST = 31


@dataclass(frozen=True, kw_only=True)
class GuessTask(Task):
    """A number to find, from 1 to 31."""

    number: int


class GuessGenerator:
    """Draws numbers; a task's id is its number."""

    def draw(self, rng: np.random.Generator) -> GuessTask:
        """Returns a task at random."""
        return self.get(str(rng.integers(1, LARGEST + 1)))

    def get(self, task_id: str) -> GuessTask:
        """Returns the task of an id. Raises: UnknownTaskError."""
        if not task_id.isdecimal() or not 1 <= int(task_id) <= LARGEST:
            raise UnknownTaskError(f"{task_id!r} is no number from 1 to {LARGEST}")
        instruction = f"Find my number from 1 to {LARGEST}."
        return GuessTask(task_id=task_id, instruction=instruction, number=int(task_id))


class GuessEnv(TextEnv[GuessTask]):
    """The agent writes numbers; each is answered by "higher" or "lower"."""

    default_config = EpisodeConfig(max_turns=5)

    def __init__(self, **options: Unpack[EpisodeOptions]) -> None:
        """Takes the settings of every environment."""
        super().__init__(GuessGenerator(), options)

    def _begin(self, task: GuessTask) -> str:
        return f"{task.instruction} Tries: {self.config.max_turns}."

    def _act(self, action: str) -> Turn:
        if not action.strip().isdecimal():
            return Turn("Write a number.", Outcome.INVALID_ACTION)
        guess = int(action)
        if guess == self.task.number:
            return Turn("", Outcome.SUCCESS)
        return Turn("higher" if guess < self.task.number else "lower")

    def oracle_actions(self, task: GuessTask) -> Sequence[str]:
        """Returns the halving that finds the number."""
        low, high, guesses = 1, LARGEST, [(1 + LARGEST) // 2]
        while guesses[-1] != task.number:
            if guesses[-1] < task.number:
                low = guesses[-1] + 1
            else:
                high = guesses[-1] - 1
            guesses.append((low + high) // 2)
        return [str(guess) for guess in guesses]


gym.register("Mine/Guess-v0", entry_point=GuessEnv)
