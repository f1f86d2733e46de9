"""A text environment that faults, hangs and ends as it is told, and a plain Gymnasium one."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import gymnasium
import numpy as np

from agentpeft.envs import (
    EnvFault,
    EpisodeConfig,
    EpisodeOptions,
    Outcome,
    Task,
    TextEnv,
    Turn,
    Unicode,
)
from agentpeft.envs.core.errors import UnknownTaskError

HEARD: list[tuple[str, str]] = []
"""(task id, action), in order."""
FAULTS: Counter[str] = Counter()
"""How many times more a task faults (or hangs), by its id."""


@dataclass(frozen=True, kw_only=True)
class WordTask(Task):
    word: str


class WordSource:
    def draw(self, rng: np.random.Generator) -> WordTask:
        return self.get(f"word/{rng.integers(10**6)}")

    def get(self, task_id: str) -> WordTask:
        if not task_id.startswith("word/"):
            raise UnknownTaskError(f"no task {task_id!r}")
        return WordTask(task_id=task_id, instruction="Say it.", word=task_id[5:])


class WordEnv(TextEnv[WordTask]):
    """Say the word: success. `fault` and `hang` do so as long as the task has FAULTS left."""

    default_config = EpisodeConfig(max_turns=4)
    num_made: ClassVar[int] = 0

    def __init__(self, hint: str = "Go on.", **options: Unpack[EpisodeOptions]) -> None:
        super().__init__(WordSource(), options)
        self.hint = hint
        type(self).num_made += 1

    def _begin(self, task: WordTask) -> str:
        return f"Say {task.word} in 4 turns."

    def _act(self, action: str) -> Turn:
        HEARD.append((self.task.task_id, action))
        if action in ("fault", "hang") and FAULTS[self.task.task_id] > 0:
            FAULTS[self.task.task_id] -= 1
            if action == "fault":
                raise EnvFault("the word service is gone")
            time.sleep(3.0)
        if action == self.task.word:
            return Turn("Right.", Outcome.SUCCESS)
        return Turn(self.hint)

    def oracle_actions(self, task: WordTask) -> Sequence[str]:
        return ["please", task.word]


class PlainEnv(gymnasium.Env[str, str]):
    """No TextEnv: the prompt is a random number of the seed; "yes" is worth 1."""

    observation_space = action_space = Unicode(100)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return f"number {self.np_random.integers(10**9)}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", float(action == "yes"), action != "wait", action == "wait", {}


gymnasium.register("Tests/Word-v0", WordEnv)
gymnasium.register("Tests/Plain-v0", PlainEnv)
